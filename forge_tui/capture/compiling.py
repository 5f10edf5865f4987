"""torch.compile's time for the whole workload, measured in a child process that is killed when its limit is over."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

from forge_tui.records.boot import boot_command
from forge_tui.records.codec import to_json
from forge_tui.records.frames import TRUSTED_LIMIT, decode, read_length, write_fd
from forge_tui.records.verdict import Measurement
from forge_tui.records.workload import WorkloadSpec

RESAMPLES = 1000


def compile_baseline(spec: WorkloadSpec, subject: str, limit_s: float) -> Measurement:
    """Median milliseconds of one compiled run; value None with a one-line reason when there is no number.

    low, high: 95% bootstrap interval of the median. detail: eager_ms, speedup with its interval, pairs, compile_s, and
    the largest relative difference of the outputs.
    """
    try:
        answer = ask_child(spec, limit_s)
    except (OSError, ValueError) as error:
        answer = {"line": f"the process that compiles could not be used: {error}"}
    if "line" in answer:
        return Measurement("model compile", subject, None, "ms", str(answer["line"]))
    eager, compiled = answer["eager_ms"], answer["compiled_ms"]
    ratios = [a / b for a, b in zip(eager, compiled, strict=True)]
    low, high = interval(compiled)
    ratio_low, ratio_high = interval(ratios)
    detail = {
        "eager_ms": statistics.median(eager), "speedup": statistics.median(ratios), "speedup_low": ratio_low,
        "speedup_high": ratio_high, "pairs": len(ratios), "compile_s": answer["compile_s"],
        "worst_difference": answer["worst"], "graphs": answer["graphs"], "graph_breaks": answer["graph_breaks"],
    }  # fmt: skip
    return Measurement("model compile", subject, statistics.median(compiled), "ms", "", low, high, detail)


def interval(values: list[float]) -> tuple[float, float]:
    """95% bootstrap interval of the median, from a fixed seed."""
    draw = random.Random(20)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def ask_child(spec: WorkloadSpec, limit_s: float) -> dict[str, Any]:
    """Run the child once. {"line": reason} when it fails, ends or takes longer than `limit_s`."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "FORGE_FD": str(theirs.fileno()), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with subprocess.Popen(
        boot_command(sys.executable, "forge_tui.capture.compile_child"),
        stdin=subprocess.DEVNULL,
        env=environment,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    ) as child:
        theirs.close()
        try:
            write_fd(ours.fileno(), {"id": 1, "verb": "measure", "body": {"spec": to_json(spec)}})
            reply = _reply(ours, time.monotonic() + limit_s)
        except (EOFError, ConnectionError):
            reply = {"body": {"line": "the process that compiles ended without an answer (out of memory?)"}}
        finally:
            ours.close()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
    if reply is None:
        return {"line": f"torch.compile took longer than {limit_s:.0f} s"}
    if "problem" in reply:
        return {"line": reply["problem"].get("line", "unknown problem")}
    return dict(reply["body"])


def _reply(connection: socket.socket, deadline: float) -> dict[str, Any] | None:
    """The child's answer, progress skipped; None when the deadline passes first."""
    while True:
        header = _exactly(connection, 4, deadline)
        body = _exactly(connection, read_length(header, TRUSTED_LIMIT), deadline) if header is not None else None
        if body is None:
            return None
        message = decode(body)
        if "progress" not in message:
            return dict(message)


def _exactly(connection: socket.socket, count: int, deadline: float) -> bytes | None:
    received = bytearray()
    while len(received) < count:
        ready, _, _ = select.select([connection], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = connection.recv(count - len(received))
        if not piece:
            raise EOFError
        received += piece
    return bytes(received)
