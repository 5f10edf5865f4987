"""Interleaved pairs of one method, their statistics, and the judge's own clock beside the workers' claims.

Invariants: both sides run the same number of calls a sample over the same rotating inputs, in random order inside
a pair, with a pause between turns so that no side's spinning threads disturb the other; no sample is dropped. A
claimed time counts only where the outside clock agrees.
Constants follow the recipe of interleaved batches: samples of at least 200 us, 20 pairs to search, 100 to 400 (or
10 s) to confirm, 95% bootstrap interval of the paired log-ratios from 2000 draws.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from forge_tui.records.verdict import Timing

SAMPLE_NS = 1_000_000  # five times the recipe's minimum: the frame's own jitter is tens of microseconds
MAX_BATCH = 4096
SETTLE_S = 0.002  # longer than the workers' OpenMP threads spin (their GOMP_SPINCOUNT, see sides.py)
DRAWS = 2000
CONFIRM_PAIRS_MAX = 400
NARROW = 0.005
CHECK_EVERY = 10


class Side(Protocol):
    """One worker that runs batches. run returns (claimed ns, ns by the judge's clock)."""

    def run(self, n: int, first: int, keep: tuple[int, int]) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Sample:
    """One turn of one side: claimed and outside nanoseconds of `n` calls."""

    n: int
    claimed_ns: int
    outside_ns: int

    @property
    def us(self) -> float:
        return self.claimed_ns / self.n / 1000.0


@dataclass(frozen=True)
class Pairs:
    """What one interleaved run measured, in order."""

    batch: int
    baseline: tuple[Sample, ...]
    candidate: tuple[Sample, ...]
    interval: tuple[float, float, float]


def batch_size(sides: tuple[Side, ...], sets: int) -> int:
    """Calls a sample: enough that the faster side's sample lasts SAMPLE_NS. Each side warms up on the way."""
    size = 1
    while True:
        fastest = min(side.run(size, 0, (0, 0))[0] for side in sides)
        if fastest >= SAMPLE_NS or size >= MAX_BATCH:
            return size
        grow = SAMPLE_NS / max(1, fastest)
        size = min(MAX_BATCH, max(size + 1, math.ceil(size * min(grow * 1.1, 8.0))))
        size = size if size < sets else math.ceil(size / sets) * sets  # whole rotations weigh every set equally


def interleave(
    baseline: Side,
    candidate: Side,
    batch: int,
    sets: int,
    source: random.Random,
    pairs: int,
    most_pairs: int | None = None,
    limit_s: float = 10.0,
    reversed_start: bool = False,
    between: Callable[[int], None] | None = None,
    kept: Callable[[int], None] | None = None,
) -> Pairs:
    """Measure pairs: `pairs` at least, up to `most_pairs` or `limit_s`, stopping once the interval is narrow.

    between: called before pair k, outside every clock (new contents). kept: called after the candidate's turn of
    pair k, whose randomly chosen call left its outputs in slot 0. Both sides keep the same call.
    """
    with single_threaded():
        return _interleave(
            baseline, candidate, batch, sets, source, pairs, most_pairs, limit_s, reversed_start, between, kept
        )


def _interleave(
    baseline: Side,
    candidate: Side,
    batch: int,
    sets: int,
    source: random.Random,
    pairs: int,
    most_pairs: int | None,
    limit_s: float,
    reversed_start: bool,
    between: Callable[[int], None] | None,
    kept: Callable[[int], None] | None,
) -> Pairs:
    first_samples: list[Sample] = []
    second_samples: list[Sample] = []
    started = time.monotonic()
    for number in range(most_pairs or pairs):
        if between is not None:
            between(number)
        start_set, chosen = source.randrange(sets), source.randrange(batch)
        order = [(baseline, first_samples, False), (candidate, second_samples, True)]
        if (number == 0 and reversed_start) or (number > 0 and source.random() < 0.5):
            order.reverse()
        for side, samples, is_candidate in order:
            time.sleep(SETTLE_S)
            claimed, outside = side.run(batch, start_set, (chosen, chosen + 1))
            samples.append(Sample(batch, claimed, outside))
            if is_candidate and kept is not None:
                kept((start_set + chosen) % sets)
        done = number + 1
        if done >= pairs and done % CHECK_EVERY == 0:
            low, _, high = bootstrap(first_samples, second_samples, source.randrange(1 << 31), 400)
            if high / low - 1 < NARROW:
                break
        if done >= min(pairs, 20) and time.monotonic() - started > limit_s:
            break
    interval = bootstrap(first_samples, second_samples, source.randrange(1 << 31), DRAWS)
    return Pairs(batch, tuple(first_samples), tuple(second_samples), interval)


def bootstrap(
    baseline: list[Sample] | tuple[Sample, ...],
    candidate: list[Sample] | tuple[Sample, ...],
    seed: int,
    draws: int,
) -> tuple[float, float, float]:
    """(2.5%, ratio of medians, 97.5%) of baseline / candidate: percentile bootstrap of the median paired log-ratio."""
    ratio = statistics.median(s.us for s in baseline) / max(1e-9, statistics.median(s.us for s in candidate))
    logs = torch.tensor(
        [math.log(max(1e-9, b.us) / max(1e-9, c.us)) for b, c in zip(baseline, candidate, strict=True)],
        dtype=torch.float64,
    )
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(logs), (draws, len(logs)), generator=generator)
    medians = logs[picks].median(dim=1).values.sort().values
    low = math.exp(float(medians[int(0.025 * (draws - 1))]))
    high = math.exp(float(medians[int(0.975 * (draws - 1))]))
    return min(low, ratio), ratio, max(high, ratio)


def timing_record(
    measured: Pairs, method: str, noise: float | None, threads: int, against: str = "eager", call: str = "operator"
) -> Timing:
    """The verdict's Timing from measured pairs."""
    low, ratio, high = measured.interval
    return Timing(
        baseline_us=statistics.median(s.us for s in measured.baseline),
        candidate_us=statistics.median(s.us for s in measured.candidate),
        speedup=ratio,
        low=low,
        high=high,
        pairs=len(measured.baseline),
        batch=measured.batch,
        method=method,
        against=against,
        call=call,
        noise=noise,
        threads=threads,
        samples=tuple((b.us, c.us) for b, c in zip(measured.baseline, measured.candidate, strict=True)),
    )


def half_width(measured: Pairs) -> float:
    """A/A half-width as a ratio: how far from 1 the interval of eager against eager reaches."""
    low, _, high = measured.interval
    return max(high - 1.0, 1.0 - low, (high - low) / 2)


def unexplained_ns(measured: Pairs) -> tuple[float, float]:
    """Time a sample that the judge's clock saw and the candidate's claim does not explain, beyond the baseline's, and
    what jitter allows.

    Frames and copies cost both sides the same. The candidate's lower fifth is taken: another program's load can only
    add time, while work outside the claim is there in every sample.
    """
    ours = sorted(s.outside_ns - s.claimed_ns for s in measured.baseline)
    theirs = sorted(s.outside_ns - s.claimed_ns for s in measured.candidate)
    spread = ours[(3 * len(ours)) // 4] - ours[len(ours) // 4]
    return theirs[len(theirs) // 5] - statistics.median(ours), 30_000.0 + float(spread)


def slope_ns(side: Side, batch: int, repeats: int = 5) -> tuple[float, float, float]:
    """(outside slope, claimed slope, resolution) in ns per call from batches of N and 2N calls.

    The frame's constant cost cancels. Best times are compared, since load only adds; the resolution is the scatter of
    the two best outside times of each kind.
    """
    singles: list[tuple[int, int]] = []
    doubles: list[tuple[int, int]] = []
    for _ in range(repeats):
        time.sleep(SETTLE_S)
        singles.append(side.run(batch, 0, (0, 1)))
        time.sleep(SETTLE_S)
        doubles.append(side.run(2 * batch, 0, (0, 1)))
    one, two = sorted(s[1] for s in singles), sorted(d[1] for d in doubles)
    claimed = min(d[0] for d in doubles) - min(s[0] for s in singles)
    return (two[0] - one[0]) / batch, claimed / batch, (one[1] - one[0] + two[1] - two[0] + 20_000.0) / batch


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """The judge's own arithmetic on one thread: a team of its own would go on spinning into the workers' turns."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
