"""Descendants of a process, read from /proc, and their end when no pid namespace ends them for us."""

from __future__ import annotations

import contextlib
import os
import signal
import time


def descendants(root: int) -> list[int]:
    """Process ids below `root`, direct children included, zombies left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _parent_of(int(name))
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = list(children.get(root, []))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def end_descendants(root: int, deadline: float) -> bool:
    """SIGKILL everything below `root` until nothing is left or time.monotonic() passes `deadline`; reaps our own.

    A process that forks while we look is met in the next round: orphans come to `root` when it is their subreaper.
    """
    while True:
        alive = descendants(root)
        if not alive:
            return True
        if time.monotonic() > deadline:
            return False
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if root == os.getpid():
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        time.sleep(0.002)


def _parent_of(pid: int) -> int | None:
    """Parent of a living process; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return None
    state, parent = text[text.rindex(b")") + 2 :].split()[:2]
    return None if state in (b"Z", b"X") else int(parent)
