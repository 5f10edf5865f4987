"""The installed call's worker: torch, a one-entry cast and the judge's buffers in a sandboxed child.

The same Python loop runs `op(*args)` with the cast on and with it off, in turns that the judge asks for; guard,
dispatch and launch are inside the clock. Holds no reference; what it replies is a claim beside the judge's own clock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from forge_tui import cast
from forge_tui.judge.arguments import python_call
from forge_tui.judge.eager_worker import Side, as_captured
from forge_tui.judge.reference import operator_of
from forge_tui.judge.wire import read_request, take_fds
from forge_tui.records.card import VariantKey
from forge_tui.records.codec import from_json
from forge_tui.records.frames import TRUSTED_LIMIT, encode
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.sandbox import probe, stage2

WARM_CALLS = 20


class Calls:
    """The operator's calls over all input sets, through whatever is switched on in this thread."""

    def __init__(self, key: VariantKey, side: Side) -> None:
        self.key, self.side = key, side
        self.overload = operator_of(key)
        self.calls = [python_call(key, own) for own in side.inputs]

    def restore(self, index: int) -> None:
        for own, m in zip(self.side.written, self.key.mutates, strict=True):
            own.copy_(self.side.pristine[index][m])

    def batch(self, n: int, first: int) -> int:
        """n calls, each result dropped inside the clock; nanoseconds."""
        function, calls, sets = self.overload, self.calls, self.side.sets
        if not self.key.mutates:
            plan = [calls[(first + k) % sets] for k in range(n)]
            start = time.perf_counter_ns()
            for positional, named in plan:
                function(*positional, **named)
            return time.perf_counter_ns() - start
        spent = 0
        for k in range(n):
            index = (first + k) % sets
            self.restore(index)
            positional, named = calls[index]
            start = time.perf_counter_ns()
            function(*positional, **named)
            spent += time.perf_counter_ns() - start
        return spent

    def once(self, index: int, slot: int) -> None:
        self.restore(index)
        positional, named = self.calls[index]
        self.side.keep(self.overload(*positional, **named), slot)


def serve(sock: socket.socket, path: str, request: dict[str, Any]) -> None:
    """Map, warm up eager, lock down, load the cast, then answer until the judge closes."""
    key = from_json(VariantKey, request["key"])
    torch.set_num_threads(request["layout"]["threads"])
    side = Side(key, request["layout"], take_fds(sock, 3))
    calls = Calls(key, side)
    with as_captured(key):
        calls.batch(WARM_CALLS, 0)
        torch.ones(1 << 20).add_(1.0)  # the OpenMP team, before threads are refused
        # torch loads libraries and reads files late: the strict list of calls is for plain kernels.
        layers = stage2.lock_down(strict=False)
        facts = layers | probe.canaries()
        installed = cast.load(path, accept_host_code=True).install(None, quiet=True)
        report = installed.report()
        line = f"{report.tier}; " + "; ".join(e.reason for e in report.entries if not e.hook)
        _reply(sock, request, {"status": "ok", "line": line.strip("; ")[:400], "facts": facts})
        while True:
            try:
                request = read_request(sock, TRUSTED_LIMIT)
            except EOFError:
                return
            on: Callable[[], contextlib.AbstractContextManager[Any]]
            on = installed.active if request["on"] else contextlib.nullcontext
            reply: dict[str, Any] = {"status": "ok"}
            with on():
                if request["do"] == "once":
                    calls.once(request["set"], request["slot"])
                    reply["code"] = installed.report().hits
                else:
                    reply["ns"] = calls.batch(request["n"], request["first"])
            _reply(sock, request, reply)


def _reply(sock: socket.socket, request: dict[str, Any], reply: dict[str, Any]) -> None:
    sock.sendall(encode({"id": request["id"], **reply}))


def main() -> None:
    sock = socket.socket(fileno=int(os.environ["FORGE_FD"]))
    request = read_request(sock, TRUSTED_LIMIT)
    try:
        serve(sock, sys.argv[1], request)
    except (HarnessProblem, MachineProblem, UserInputError, RuntimeError, OSError) as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        _reply(sock, request, {"status": "failed", "line": line})


if __name__ == "__main__":
    main()
