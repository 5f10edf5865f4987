"""The trusted side of every pair: eager (or torch.compile's version) over the judge's buffers, in a process of its own.

Runs in the user's interpreter. Speaks the same requests as the run worker, so both sides of a pair pay the same
frames, the same allocation per call and the same rotation. The loop is native; where that can't be built it is a
Python loop, and the reply to "map" says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from forge_tui.cast.torch_build import cached_library
from forge_tui.judge.arguments import Value, native_value, python_call
from forge_tui.judge.plumbing import int64s
from forge_tui.judge.reference import numerics, operator_of, written
from forge_tui.judge.samples import torch_dtype
from forge_tui.judge.wire import read_request, take_fds
from forge_tui.records.card import VariantKey
from forge_tui.records.codec import from_json
from forge_tui.records.frames import TRUSTED_LIMIT, encode
from forge_tui.records.problem import HarnessProblem
from forge_tui.records.serving import die_with_parent

Loop = Callable[[int, int, int, int], tuple[int, str]]
SOURCE = Path(__file__).resolve().parent / "native_loop.cpp"


class Side:
    """One mapped card."""

    def __init__(self, key: VariantKey, layout: dict[str, Any], fds: list[int]) -> None:
        self.key = key
        self.layout = layout
        self.sets = len(layout["input_at"])
        self._maps: list[mmap.mmap] = []
        memory = {}
        for name, fd in zip(("in", "out", "work"), fds, strict=True):
            protection = mmap.PROT_READ if name == "in" else mmap.PROT_READ | mmap.PROT_WRITE
            view = mmap.mmap(fd, layout["sizes"][name], mmap.MAP_SHARED, protection)
            os.close(fd)
            self._maps.append(view)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that the inputs are read-only: they are meant to be
                memory[name] = torch.frombuffer(view, dtype=torch.uint8)
        self.pristine = [
            [
                window(memory["in"], at, n, t)
                for at, n, t in zip(places, layout["input_bytes"], layout["inputs"], strict=True)
            ]
            for places in layout["input_at"]
        ]
        count = len(layout["slots"]) - len(key.mutates)
        sizes, specs = layout["slot_bytes"], layout["slots"]
        self.slots = [
            [window(memory["out"], at, n, t) for at, n, t in zip(places, sizes, specs, strict=True)]
            for places in layout["slot_at"]
        ]
        base = memory["out"].data_ptr()
        self.slot_addresses = [base + at for places in layout["slot_at"] for at in places]
        self.fresh = count
        self.written = [
            window(torch.empty(n, dtype=torch.uint8), 0, n, t)
            for n, t in zip(sizes[count:], specs[count:], strict=True)
        ]
        self.inputs = []
        for own in self.pristine:
            values = list(own)
            for tensor, index in zip(self.written, key.mutates, strict=True):
                values[index] = tensor
            self.inputs.append(values)

    def native(self, library: ctypes.CDLL) -> Loop:
        """The C++ loop. Raises HarnessProblem when the operator or an argument does not fit."""
        keep: list[Any] = []
        values = [native_value(arg, own, keep) for own in self.inputs for arg in self.key.args]
        count = len(self.key.args)
        array = (Value * max(1, len(values)))(*values)
        own_copies = int64s([t._cdata for t in self.written])
        pristine = int64s([own[m]._cdata for own in self.pristine for m in self.key.mutates])
        name, _, overload = self.key.op.partition(".")
        error = ctypes.create_string_buffer(512)
        library.eager_new.restype = ctypes.c_void_p
        handle = library.eager_new(
            name.encode(), overload.encode(), self.sets, count, array, self.fresh, int64s(written(self.key)),
            len(self.written), own_copies, pristine, int64s(self.layout["slot_bytes"]), error, len(error),
        )  # fmt: skip
        if not handle:
            raise HarnessProblem(f"the native loop can't call {self.key.op}: {error.value.decode(errors='replace')}")
        destinations = (ctypes.c_void_p * max(1, len(self.slot_addresses)))(*self.slot_addresses)

        def run(n: int, first: int, keep_from: int, keep_to: int) -> tuple[int, str]:
            ns = ctypes.c_int64()
            code = library.eager_batch(
                ctypes.c_void_p(handle), n, first, keep_from, keep_to, destinations, ctypes.byref(ns), error, len(error)
            )
            return ns.value, error.value.decode(errors="replace") if code else ""

        run.keep = keep  # type: ignore[attr-defined]
        return run

    def python(self, compiled: bool) -> Loop:
        """A Python loop over eager, or over torch.compile's version of the operator."""
        function = operator_of(self.key)
        calls = [python_call(self.key, own) for own in self.inputs]
        if compiled:
            overload = function
            function = torch.compile(lambda *a, **k: overload(*a, **k), fullgraph=True, dynamic=False)

        def run(n: int, first: int, keep_from: int, keep_to: int) -> tuple[int, str]:
            spent = 0
            for call in range(n):
                index = (first + call) % self.sets
                for own, m in zip(self.written, self.key.mutates, strict=True):
                    own.copy_(self.pristine[index][m])
                positional, named = calls[index]
                start = time.perf_counter_ns()
                result = function(*positional, **named)
                spent += time.perf_counter_ns() - start
                if keep_from <= call < keep_to:
                    self.keep(result, call - keep_from)
                start = time.perf_counter_ns()
                del result
                spent += time.perf_counter_ns() - start
            return spent, ""

        return run

    def keep(self, result: Any, slot: int) -> None:
        """Copy a call's results (and written inputs) into a slot."""
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        fresh = [results[i] for i in written(self.key)]
        for target, value in zip(self.slots[slot], [*fresh, *self.written], strict=True):
            target.copy_(value)


def window(memory: torch.Tensor, offset: int, nbytes: int, spec: dict[str, Any]) -> torch.Tensor:
    """The tensor of `spec` whose window starts `offset` bytes into `memory`."""
    dtype = getattr(torch, spec["dtype"])
    if nbytes == 0:
        return torch.empty(spec["sizes"], dtype=dtype)
    return memory[offset : offset + nbytes].view(dtype).as_strided(spec["sizes"], spec["strides"])


@contextlib.contextmanager
def as_captured(key: VariantKey) -> Iterator[None]:
    """Numerics flags and autocast mode of the capture, for the time of the block."""
    with numerics(key), contextlib.ExitStack() as stack:
        if key.autocast:
            stack.enter_context(torch.autocast("cpu", dtype=torch_dtype(key.autocast)))
        yield


def load_native(cache: Path) -> ctypes.CDLL | str:
    """The native loop's library, or why there is none."""
    built = cached_library((SOURCE,), "eager-loop", cache)
    if isinstance(built, str):
        return built
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        return f"the native loop does not load: {error}"


def open_side(request: dict[str, Any], sock: socket.socket, library: ctypes.CDLL | str) -> tuple[Side, Loop, str]:
    """Map a card and choose its loop; the last value is the method's name for the record."""
    key = from_json(VariantKey, request["key"])
    torch.set_num_threads(request["layout"]["threads"])
    side = Side(key, request["layout"], take_fds(sock, 3))
    if request["mode"] == "compile":
        return side, side.python(True), "torch.compile, Python loop"
    if request["mode"] == "python":
        return side, side.python(False), "Python loop"
    if isinstance(library, str):
        return side, side.python(False), f"Python loop ({library})"
    return side, side.native(library), "C++ loop of boxed calls"


def main() -> None:
    die_with_parent()
    sock = socket.socket(fileno=int(os.environ["FORGE_FD"]))
    library = load_native(Path(sys.argv[1]))
    side: Side | None = None
    loop: Loop | None = None
    while True:
        try:
            request = read_request(sock, TRUSTED_LIMIT)
        except EOFError:
            return
        try:
            if request["do"] == "map":
                side, loop, method = open_side(request, sock, library)
                reply: dict[str, Any] = {"status": "ok", "line": method}
            elif request["do"] == "hello":
                reply = {"status": "ok", "line": library if isinstance(library, str) else "C++ loop of boxed calls"}
            elif side is None or loop is None:
                reply = {"status": "failed", "line": "nothing is mapped yet"}
            else:
                with as_captured(side.key):
                    ns, line = loop(request["n"], request["first"], request["keep_from"], request["keep_to"])
                reply = {"status": "failed" if line else "ok", "ns": ns, "line": line[:400]}
        except (RuntimeError, HarnessProblem, OSError, TypeError, ValueError) as error:
            reply = {"status": "failed", "line": " ".join(f"{type(error).__name__}: {error}".split())[:400]}
        sock.sendall(encode({"id": request["id"], **reply}))


if __name__ == "__main__":
    main()
