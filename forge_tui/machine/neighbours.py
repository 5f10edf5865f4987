"""Who else uses the processor while we time. On a CPU target a busy neighbour is a machine problem, not a slow kernel.

A team of threads that waits for a descheduled member takes many times its usual time, while a single thread beside it
does not notice: with two of two cores busy elsewhere, eager's own operators were measured 30 times slower and every
single-threaded candidate looked like a win. So processor time that belongs to none of our processes is watched during
each measurement, and above a limit the measurement does not count.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal of /proc/stat's first line
WINDOW_S = 0.1


@dataclass
class Watch:
    """Processor time of others since it was made. None where /proc does not tell."""

    began: float
    total: float | None
    mine: float

    @classmethod
    def start(cls) -> Watch:
        return cls(time.monotonic(), total_seconds(), own_seconds())

    def other_cores(self) -> float | None:
        """Cores that processes outside our own tree used on average since the start."""
        total = total_seconds()
        elapsed = time.monotonic() - self.began
        if total is None or self.total is None or elapsed <= 0:
            return None
        # A worker that has ended meanwhile takes its time out of `own`: never read that as a neighbour's.
        mine = max(0.0, own_seconds() - self.mine)
        return max(0.0, (total - self.total - mine) / elapsed)


def total_seconds() -> float | None:
    """Busy processor seconds of the whole machine since boot, stolen time included."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        return sum(int(fields[i]) for i in BUSY_FIELDS if i < len(fields)) / TICKS
    except (OSError, ValueError, IndexError):
        return None


def own_seconds() -> float:
    """Processor seconds of this program: this process, the one that started it, and every live descendant of both."""
    times: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(encoding="ascii", errors="replace")
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            times[int(entry.name)] = (int(fields[1]), sum(int(f) for f in fields[11:15]) / TICKS)
    mine = {os.getpid(), os.getppid()} - {1}
    grew = True
    while grew:
        more = {pid for pid, (parent, _) in times.items() if parent in mine and pid not in mine}
        mine |= more
        grew = bool(more)
    return sum(times[pid][1] for pid in mine if pid in times)


def wait_until_quiet(limit_cores: float, patience_s: float) -> float | None:
    """Wait for a moment in which others use less than `limit_cores`; returns what they used in the last window."""
    deadline = time.monotonic() + patience_s
    while True:
        watch = Watch.start()
        time.sleep(WINDOW_S)
        cores = watch.other_cores()
        if cores is None or cores <= limit_cores or time.monotonic() > deadline:
            return cores
        time.sleep(0.4)
