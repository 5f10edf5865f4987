"""Timing of one candidate on a device with its checks: as `judge.measure`, by whole rotations of the buffer sets.

The candidate has no host code, so nothing of it can run outside the launches; the judge's clock still has to agree with
the claimed slope of batches of N and 2N calls.
"""

from __future__ import annotations

import math
import random
import statistics

import torch

from forge_tui.judge.examine import Examination, Ledger, check_memory
from forge_tui.judge.gpu.buffers import GpuBuffers
from forge_tui.judge.gpu.eager import GpuEager
from forge_tui.judge.gpu.side import GpuRunSide
from forge_tui.judge.measure import (
    BLOCK_PAIRS,
    CLOCK_TRIES,
    INSIDE_SHARE,
    Contents,
    Effort,
    check_floor,
    recheck,
    unseen_cost,
)
from forge_tui.judge.pool import TrialPool
from forge_tui.judge.sides import Rejected
from forge_tui.judge.timing import SAMPLE_NS, Pairs, Side, interleave, single_threaded, slope_ns

MAX_CALLS = 16384
WARM_S = 0.3  # of mixed load before the first pair: the clock's ramp


def whole_batch(sides: tuple[Side, ...], sets: int) -> int:
    """Calls a sample: whole rotations, so many that the faster side's sample lasts SAMPLE_NS. Warms both sides up."""
    size, warmed = sets, 0.0
    while True:
        times = [side.run(size, 0, (0, 0)) for side in sides]
        warmed += sum(outside for _, outside in times) / 1e9
        fastest = min(claimed for claimed, _ in times)
        enough = fastest >= SAMPLE_NS or size + sets > MAX_CALLS
        if enough and warmed >= WARM_S:
            return size
        if not enough:
            grow = min(8.0, 1.1 * SAMPLE_NS / max(1, fastest))
            size = min(max(1, MAX_CALLS // sets) * sets, math.ceil(max(size + 1, size * grow) / sets) * sets)


def measure(
    eager: GpuEager,
    side: GpuRunSide,
    buffers: GpuBuffers,
    pool: TrialPool,
    examined: Examination,
    effort: Effort,
    floor_us: float | None,
    ledger: Ledger,
    source: random.Random,
) -> Pairs:
    """Interleaved pairs with every timing check. Raises Rejected."""
    contents = Contents(buffers, pool, sorted(examined.results), source)
    contents.move()
    batch = whole_batch((eager, side), buffers.sets)
    rechecked = 0

    def between(number: int) -> None:
        if number and number % BLOCK_PAIRS == 0:
            check_memory(buffers)
            contents.move()

    def kept(in_set: int) -> None:
        nonlocal rechecked
        recheck(pool, examined, contents.at[in_set], [t.clone() for t in buffers.slot_tensors(0)])
        rechecked += 1

    measured = interleave(
        eager, side, batch, buffers.sets, source, effort.pairs, effort.most_pairs, effort.limit_s,
        effort.reversed_start, between, kept,
    )  # fmt: skip
    side.check_quiet()
    check_memory(buffers)
    with single_threaded():
        unseen = unseen_cost(eager, side, buffers, pool, contents, source)
    ledger.passed("recheck", f"{rechecked} timed calls compared; {unseen}")
    ledger.passed("wall", _clock(side, batch))
    check_floor(statistics.median(s.us for s in measured.candidate), floor_us, ledger)
    torch.cuda.synchronize(buffers.device.number)
    return measured


def _clock(side: GpuRunSide, batch: int) -> str:
    """The claimed slope against the judge's clock. Raises Rejected when they disagree, again and again."""
    for _ in range(CLOCK_TRIES):
        outside, claimed, resolution = slope_ns(side, batch)
        if claimed >= INSIDE_SHARE * outside - resolution:
            return (
                f"claimed {claimed / 1000:.2f} us a call, outside slope {outside / 1000:.2f} +- {resolution / 1000:.2f}"
            )
    line = f"timing not trusted: it claims {claimed / 1000:.2f} us a call, the judge's clock sees {outside / 1000:.2f}"
    raise Rejected("impossible time", "wall", line, stage="correct")
