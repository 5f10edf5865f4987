"""Who else uses the processor while we time. On a CPU target a busy neighbour is a machine problem, not a slow kernel.

A team of threads that waits for a descheduled member takes many times its usual time, while a single thread beside it
does not notice: with two of two cores busy elsewhere, eager's own operators were measured 30 times slower and every
single-threaded candidate looked like a win. So processor time that belongs to none of our processes is watched during
each measurement, and above a limit the measurement does not count.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal of /proc/stat's first line
WINDOW_S = 0.1
SAMPLE_S = 0.2


class Watch:
    """Processor time of others since it was made. Reads None where /proc does not tell.

    A thread looks at our own processes every SAMPLE_S seconds, so that the time of a worker that starts and ends in
    between stays ours; `stop` ends it.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._total = total_seconds()
        self._first = own_processes()
        self._last = dict(self._first)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="forge-neighbours", daemon=True)
        self._thread.start()

    def other_cores(self) -> float | None:
        """Cores that processes outside our own tree used on average since the start."""
        total = total_seconds()
        elapsed = time.monotonic() - self._began
        if total is None or self._total is None or elapsed <= 0:
            return None
        self._last |= own_processes()
        mine = sum(seconds - self._first.get(pid, 0.0) for pid, seconds in self._last.items())
        return max(0.0, (total - self._total - mine) / elapsed)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._last |= own_processes()


def total_seconds() -> float | None:
    """Busy processor seconds of the whole machine since boot, stolen time included."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        return sum(int(fields[i]) for i in BUSY_FIELDS if i < len(fields)) / TICKS
    except (OSError, ValueError, IndexError):
        return None


def own_processes() -> dict[tuple[int, int], float]:
    """Processor seconds of this program: this process, the one that started it, and every live descendant of both.

    Keys are (process id, start time), so that a reused id is a new process.
    """
    found: dict[tuple[int, int], float] = {}
    waiting = [pid for pid in (os.getppid(), os.getpid()) if pid > 1]
    seen: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            found[pid, int(fields[19])] = (int(fields[11]) + int(fields[12])) / TICKS
            waiting += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    """Children of every thread of a process."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children += [int(word) for word in (task / "children").read_text(encoding="ascii").split()]
    return children


def wait_until_quiet(limit_cores: float, patience_s: float) -> float | None:
    """Wait for a moment in which others use less than `limit_cores`; returns what they used in the last window."""
    deadline = time.monotonic() + patience_s
    while True:
        watch = Watch()
        time.sleep(WINDOW_S)
        cores = watch.other_cores()
        watch.stop()
        if cores is None or cores <= limit_cores or time.monotonic() > deadline:
            return cores
        time.sleep(0.4)
