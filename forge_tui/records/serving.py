"""The serving side of a trusted child process: requests in, one reply each, progress on the way.

Frames go over a socket whose descriptor the parent names in FORGE_FD, never over stdout:
the user's model may print what it likes. EOF means the parent is gone, and so are we.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from forge_tui.records.codec import RecordError, to_json
from forge_tui.records.frames import FrameError, read_fd, write_fd
from forge_tui.records.problem import BUSY, HarnessProblem, MachineBusy, MachineProblem, Problem, UserInputError

Progress = Callable[..., None]
Handler = Callable[[Any, Progress], Any]
PR_SET_PDEATHSIG = 1


def serve(handlers: dict[str, Handler]) -> None:
    """Answer requests until the parent closes the socket. A handler takes (body, progress) and returns a record.

    UserInputError, MachineProblem and HarnessProblem become problems in the reply; so does MemoryError (machine).
    Anything else a handler raises is a harness problem with its traceback: the process stays up for the next request.
    """
    fd = int(os.environ["FORGE_FD"])
    die_with_parent()
    while True:
        try:
            request = read_fd(fd)
        except EOFError:
            return
        number, verb, body = request["id"], request["verb"], request.get("body")

        def progress(number: int = number, **fields: Any) -> None:
            write_fd(fd, {"id": number, "progress": to_json(fields)})

        try:
            reply = {"id": number, "body": to_json(handlers[verb](body, progress))}
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the border: whatever a handler raises must reach the parent as a value
            reply = {"id": number, "problem": to_json(problem_of(error))}
        try:
            write_fd(fd, reply)
        except (BrokenPipeError, FrameError) as error:
            print(f"reply lost: {error}", file=sys.stderr)
            return


def problem_of(error: BaseException) -> Problem:
    """The typed problem an exception stands for."""
    line = " ".join(str(error).split()) or type(error).__name__
    detail = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-8000:]
    if isinstance(error, UserInputError):
        return Problem("user", "input", line)
    if isinstance(error, MachineBusy):
        return Problem("machine", BUSY, line)
    if isinstance(error, MachineProblem):
        return Problem("machine", "machine", line, detail)
    if isinstance(error, MemoryError):
        return Problem("machine", "out of memory", "the machine ran out of memory", detail)
    if isinstance(error, (HarnessProblem, RecordError)):
        return Problem("harness", "harness", line, detail)
    return Problem("harness", type(error).__name__, f"{type(error).__name__}: {line}", detail)


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies (Linux; elsewhere EOF on the socket has to do)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
