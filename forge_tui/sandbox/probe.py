"""Canaries: harmless attempts at what the sandbox forbids, made inside every worker before it is trusted.

Each answers "refused", "allowed" or "unknown" (the attempt itself could not be made here). They observe; they do not
protect: a worker with an "allowed" is not trusted with host code. The C modules below `socket` and `threading` are
used because their Python halves cost a worker more time to import than all canaries together.
"""

from __future__ import annotations

import _socket
import _thread
import contextlib
import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable

from forge_tui.sandbox import stage2
from forge_tui.sandbox.syscalls import LIBC

REFUSED, ALLOWED, UNKNOWN = "refused", "allowed", "unknown"
_NO = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})


def canaries(parent: int | None = None, forbidden: str = "/etc/passwd", outside: str = "/tmp") -> dict[str, str]:
    """Try everything once. parent: process id of the caller of `spawn` (FORGE_PARENT when None).

    forbidden: a file that exists and must not be readable. outside: a folder in which nothing may be created.
    """
    if parent is None:
        parent = int(os.environ.get("FORGE_PARENT", "0"))
    return {
        "read a forbidden file": _read(forbidden),
        "read the parent's environment": _read(f"/proc/{parent}/environ") if parent else UNKNOWN,
        "write outside": _write(outside),
        "open a socket": _connect(),
        "signal the parent": _signal(parent),
        "trace a process": _trace(),
        "start a program": _execute(),
        "fork past the limit": _fork(),
        "start a thread": _start_thread(),
    }


def allowed(results: dict[str, str]) -> list[str]:
    """What got through."""
    return [name for name, outcome in results.items() if outcome == ALLOWED]


def _outcome(attempt: Callable[[], object], absent: str = UNKNOWN) -> str:
    """refused on EPERM, EACCES or ENOSYS; `absent` when the thing does not exist here; allowed when it worked."""
    try:
        attempt()
    except OSError as error:
        if error.errno in _NO:
            return REFUSED
        return absent if error.errno in (errno.ENOENT, errno.ESRCH) else UNKNOWN
    return ALLOWED


def _read(path: str) -> str:
    def attempt() -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.read(fd, 1)
        finally:
            os.close(fd)

    # A pid namespace hides the parent altogether: that is a refusal of its environment, too.
    return _outcome(attempt, absent=REFUSED if path.startswith("/proc/") else UNKNOWN)


def _write(folder: str) -> str:
    """An unnamed file leaves nothing behind, even where the worker may create files but not remove them."""
    outcome = _outcome(lambda: os.close(os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)))
    if outcome != UNKNOWN:
        return outcome
    path = f"{folder}/forge-canary-{os.urandom(8).hex()}"  # a file system without unnamed files
    outcome = _outcome(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)))
    if outcome == ALLOWED:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return outcome


def _connect() -> str:
    """A UDP socket is connected to a documentation address (RFC 5737): no packet leaves, but a route is needed."""
    try:
        probe = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
        try:
            probe.connect(("192.0.2.1", 9))
        finally:
            probe.close()
    except OSError as error:
        return REFUSED if error.errno in (*_NO, errno.ENETUNREACH, errno.EHOSTUNREACH) else UNKNOWN
    return ALLOWED


def _signal(parent: int) -> str:
    if parent <= 0:
        return UNKNOWN
    return _outcome(lambda: os.kill(parent, 0), absent=REFUSED)


def _trace() -> str:
    """PTRACE_CONT of a process that can't exist: ESRCH where ptrace itself is allowed."""
    ctypes.set_errno(0)
    LIBC.ptrace(ctypes.c_long(7), ctypes.c_long(0x7FFFFFF0), None, None)
    code = ctypes.get_errno()
    return REFUSED if code in _NO else ALLOWED if code == errno.ESRCH else UNKNOWN


def _execute() -> str:
    """execve of a path that does not exist: ENOENT where execve itself is allowed, so nothing is ever started."""
    ctypes.set_errno(0)
    LIBC.execve(b"/nonexistent/forge-canary", None, None)
    code = ctypes.get_errno()
    return REFUSED if code in _NO else ALLOWED if code in (errno.ENOENT, errno.EFAULT) else UNKNOWN


def _fork() -> str:
    try:
        child = os.fork()
    except OSError as error:
        return REFUSED if error.errno in (*_NO, errno.EAGAIN) else UNKNOWN
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return ALLOWED


def _start_thread() -> str:
    done = _thread.allocate_lock()
    done.acquire()
    try:
        _thread.start_new_thread(done.release, ())
    except RuntimeError:
        return REFUSED
    done.acquire()
    return ALLOWED


def main() -> None:
    """As a program: lock down (unless told "unlocked"), try everything, print one JSON object."""
    before = {} if "unlocked" in sys.argv[1:] else stage2.lock_down()
    print(json.dumps({"layers": before, "canaries": canaries()}))
