"""A measurement's hold on the machine: one lock for everything that is timed, and an eye on the neighbours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forge_tui.machine.neighbours import Watch, wait_until_quiet
from forge_tui.records.problem import MachineBusy, MachineProblem

QUIET_PATIENCE_S = 20.0


@dataclass
class Hold:
    """waited_s: for the lock. limit: cores that others may use, or None when nobody asked."""

    waited_s: float
    watch: Watch
    limit: float | None

    def quiet(self) -> bool:
        """Whether others left the machine alone so far (or nobody asked)."""
        cores = self.watch.other_cores()
        return self.limit is None or cores is None or cores <= self.limit

    def insist(self) -> float | None:
        """Cores that others used. Raises MachineBusy when that is more than the limit: the measurement does not count."""
        cores = self.watch.other_cores()
        if self.limit is not None and cores is not None and cores > self.limit:
            raise MachineBusy(
                f"other processes used {cores:.1f} of {os.cpu_count()} cores while this was timed, so the time does not "
                "count; stop them, or set judge.other_cores"
            )
        return cores


@contextlib.contextmanager
def hold(lock: Path, limit: float | None) -> Iterator[Hold]:
    """Take the lock, wait for a quiet moment (a while), and watch from then on. Raises MachineProblem when the lock stays taken."""
    with machine_lock(lock) as waited:
        if limit is not None:
            wait_until_quiet(limit, QUIET_PATIENCE_S)
        watch = Watch()
        try:
            yield Hold(waited, watch, limit)
        finally:
            watch.stop()


@contextlib.contextmanager
def machine_lock(path: Path, limit_s: float = 300.0) -> Iterator[float]:
    """Hold the machine for target timing; yields the seconds waited. Raises MachineProblem when it stays taken."""
    started = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() - started > limit_s:
                    raise MachineProblem(
                        f"another process has held the timing lock {path} for {limit_s:.0f} s; end it or wait"
                    ) from None
                time.sleep(0.02)
        yield time.monotonic() - started
    finally:
        os.close(fd)
