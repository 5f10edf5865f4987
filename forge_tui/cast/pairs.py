"""Interleaved pairs of two ways to run the same thing in one process, and the interval of their ratio."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence

from forge_tui.records.verdict import Timing

SAMPLE_SECONDS = 0.005  # shorter runs are batched to this, far above the clock's own cost
MAX_BATCH = 1000
MIN_PAIRS = 5
RESAMPLES = 2000


def measure_pairs(
    eager: Callable[[int], None],
    cast: Callable[[int], None],
    pairs: int,
    seconds: float,
    threads: int,
    rng: random.Random,
    progress: Callable[[int, int], None] | None = None,
) -> Timing:
    """Time `eager(n)` and `cast(n)` (n runs each) in random order, pair by pair.

    Stops after `pairs` pairs or `seconds` seconds, but not before MIN_PAIRS. Times are microseconds per run.
    """
    eager(1)
    cast(1)
    start = time.perf_counter()
    eager(1)
    once = max(time.perf_counter() - start, 1e-6)
    batch = max(1, min(MAX_BATCH, math.ceil(SAMPLE_SECONDS / once)))
    samples: list[tuple[float, float]] = []
    deadline = time.perf_counter() + seconds
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        while len(samples) < pairs and (len(samples) < MIN_PAIRS or time.perf_counter() < deadline):
            first_eager = rng.random() < 0.5
            one = _timed(eager if first_eager else cast, batch)
            two = _timed(cast if first_eager else eager, batch)
            samples.append((one, two) if first_eager else (two, one))
            if progress is not None:
                progress(len(samples), pairs)
    finally:
        if collecting:
            gc.enable()
    logs = [math.log(a / b) for a, b in samples]
    low, high = interval(logs, rng)
    ratio = math.exp(statistics.median(logs))  # the statistic that the interval is of
    base, candidate = (statistics.median(side) for side in zip(*samples, strict=True))
    return Timing(
        base, candidate, ratio, low, high, len(samples), batch, "interleaved runs of the whole model in one process",
        "eager", "installed", None, threads, tuple(samples),
    )  # fmt: skip


def _timed(run: Callable[[int], None], batch: int) -> float:
    start = time.perf_counter_ns()
    run(batch)
    return max(1, time.perf_counter_ns() - start) / batch / 1000


def interval(logs: Sequence[float], rng: random.Random) -> tuple[float, float]:
    """95% percentile bootstrap interval of the median log-ratio, as ratios."""
    medians = sorted(statistics.median(rng.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    return math.exp(medians[int(0.025 * RESAMPLES)]), math.exp(medians[int(0.975 * RESAMPLES) - 1])
