"""Who owns a session: the process that holds flock on owner.lock, named in it.

Invariants: at most one owner. A live owner is never disturbed; a dead one's lock is replaced, whatever children it
left behind holding the descriptor. The file appears complete: it is written and locked before it gets its name.
Looking at an owner takes no lock, so a viewer can't make an owner's start fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forge_tui.records.problem import MachineProblem, UserInputError


@dataclass(frozen=True)
class Owner:
    """state: "none", "live", "dead" (it ended without letting go) or "elsewhere" (another host or container)."""

    state: str
    pid: int = 0
    host: str = ""
    since: float = 0.0
    mine: bool = False

    @property
    def line(self) -> str:
        """One line for a person."""
        if self.state == "none":
            return "nobody runs this session"
        who = f"process {self.pid} on {self.host}"
        if self.mine:
            return f"this process ({self.pid}) runs this session"
        if self.state == "dead":
            return f"{who} ran this session and died"
        return f"{who} runs this session"


class SessionLocked(UserInputError):
    """A live owner holds the session."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(f"{owner.line}; attach to it, or take over")
        self.owner = owner


class OwnerLock:
    """A held lock. `removed` is the line about the dead owner whose lock was replaced, or ""."""

    def __init__(self, path: Path, fd: int, removed: str) -> None:
        self.path = path
        self.removed = removed
        self._fd = fd

    @property
    def held(self) -> bool:
        return self._fd >= 0

    @classmethod
    def acquire(cls, path: Path) -> OwnerLock:
        """Become the owner. Raises SessionLocked for a live owner, MachineProblem when the folder can't be written."""
        try:
            with guarded(path):
                removed = _clear(path)
                return cls(path, _publish(path), removed)
        except OSError as error:
            raise MachineProblem(f"{path.parent} can't be locked: {error.strerror or error}") from None

    def release(self) -> None:
        """Let go. Safe to call twice."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError), guarded(self.path):
            if _same_file(self.path, fd):
                self.path.unlink()
        os.close(fd)


@contextlib.contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Serialise those who take or release, for the moment that takes."""
    fd = os.open(path.with_name(path.name + ".guard"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _clear(path: Path) -> str:
    """Make sure no live owner is there. Returns the line about a dead one, or ""."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        owner = _judge(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if owner.state != "dead":
                if owner.state == "none":  # locked, yet says nothing readable: somebody is there
                    owner = Owner("live", 0, "an unreadable lock file")
                raise SessionLocked(owner) from None
            return f"{owner.line}; its children still held the lock, which was removed"
        return f"{owner.line}; its lock was removed" if owner.state == "dead" else ""
    finally:
        os.close(fd)


def _publish(path: Path) -> int:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        who = {
            "pid": os.getpid(),
            "started": process_start(os.getpid()),
            "host": socket.gethostname(),
            "boot": boot_id(),
            "since": time.time(),
        }
        os.write(fd, json.dumps(who).encode())
        os.fsync(fd)
        draft.replace(path)
    except BaseException:
        os.close(fd)
        draft.unlink(missing_ok=True)
        raise
    return fd


def read_owner(path: Path) -> Owner:
    """Who owns the session, without touching anything."""
    return _judge(path)


def _judge(path: Path) -> Owner:
    try:
        data = json.loads(path.read_text())
        pid, host = int(data["pid"]), str(data["host"])
        started, boot, since = str(data["started"]), str(data["boot"]), float(data["since"])
    except FileNotFoundError:
        return Owner("none")
    except (OSError, ValueError, KeyError, TypeError):
        return Owner("none")
    if host != socket.gethostname():
        return Owner("elsewhere", pid, host, since)
    if boot != boot_id() or process_start(pid) != started:
        return Owner("dead", pid, host, since)
    return Owner("live", pid, host, since, pid == os.getpid())


def process_start(pid: int) -> str:
    """Start time of a process, so that a reused pid is not mistaken for it; "" when there is none or it is a zombie."""
    if sys.platform == "linux":
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return ""
        fields = text.rpartition(")")[
            2
        ].split()  # proc(5): the name may hold blanks; field 3 is the state, 22 the start
        return "" if fields[0] in ("Z", "X") else fields[19]
    import psutil

    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except psutil.Error:
        return ""


def boot_id() -> str:
    """Changes with every start of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _same_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except OSError:
        return False
