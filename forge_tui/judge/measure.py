"""Timing of one candidate with its checks: kept calls are compared, unseen contents cost what seen ones do, clocks agree.

Threats and answers: skipping work only when timed (every pair keeps a randomly chosen call's outputs, both sides pay
for it); caching by pointer or by content (contents move between buffers all the time, and a batch on contents that no
call has seen must take the usual time); work outside the claimed interval (the judge's own clock explains every
sample, and batches of N and 2N calls have the claimed slope).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forge_tui.judge.buffers import Buffers
from forge_tui.judge.examine import Examination, Ledger, check_memory, raise_outcome, same_bits
from forge_tui.judge.floor import IMPOSSIBLE
from forge_tui.judge.pool import TrialPool
from forge_tui.judge.samples import compact, like
from forge_tui.judge.sides import EagerSide, Rejected, RunSide
from forge_tui.judge.timing import (
    SETTLE_S,
    Pairs,
    Side,
    batch_size,
    interleave,
    single_threaded,
    slope_ns,
    unexplained_ns,
)
from forge_tui.judge.trials import Role, roles

# Trials whose values are like the captured ones: special values and extreme magnitudes would time slow paths.
TIMED = ("captured", "permuted", "redrawn", "parameters changed", "signs flipped")
BLOCK_PAIRS = 5  # contents move to other buffers after so many pairs
SLOPE_SHARE = 0.5  # each further call must cost at least this part of the usual time
INSIDE_SHARE = 0.8  # claimed >= 0.8 x outside slope - resolution
UNEXPLAINED_SHARE = 0.03
UNSEEN_FACTOR = 1.5
UNSEEN_ROUNDS = 3  # so many rounds must be fine, of at most
UNSEEN_MOST_ROUNDS = 12  # since load from elsewhere spoils some
CLOCK_TRIES = 3
CLOCK_PAIRS = 10


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    pairs: int
    most_pairs: int
    limit_s: float
    reversed_start: bool


class Contents:
    """Which trial lies in which input set, moved around between blocks of pairs."""

    def __init__(self, buffers: Buffers, pool: TrialPool, usable: Sequence[int], source: random.Random) -> None:
        named = [i for i in usable if pool.trials[i].name.split(" 2")[0] in TIMED]
        self.trials = named or list(usable)
        self.buffers, self.pool, self.source = buffers, pool, source
        self.at: list[int] = []
        self.roles = roles(pool.card, pool.samples[0])

    def move(self) -> None:
        """Put trials into all sets in a new order."""
        shift = self.source.randrange(len(self.trials))
        self.at = [self.trials[(k + shift) % len(self.trials)] for k in range(self.buffers.sets)]
        for index, trial in enumerate(self.at):
            self.buffers.write_set(index, self.pool.trials[trial].tensors)


def measure(
    eager: EagerSide,
    side: RunSide,
    buffers: Buffers,
    pool: TrialPool,
    examined: Examination,
    effort: Effort,
    floor_us: float | None,
    ledger: Ledger,
    source: random.Random,
) -> Pairs:
    """Interleaved pairs with every timing check. Raises Rejected."""
    with single_threaded():
        return _measure(eager, side, buffers, pool, examined, effort, floor_us, ledger, source)


def _measure(
    eager: EagerSide,
    side: RunSide,
    buffers: Buffers,
    pool: TrialPool,
    examined: Examination,
    effort: Effort,
    floor_us: float | None,
    ledger: Ledger,
    source: random.Random,
) -> Pairs:
    contents = Contents(buffers, pool, sorted(examined.results), source)
    contents.move()
    batch = batch_size((eager, side), buffers.sets)
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
    usual = tuple(statistics.median(s.us for s in samples) for samples in (measured.baseline, measured.candidate))
    unseen = unseen_cost(eager, side, buffers, pool, contents, source, (usual[0], usual[1]))
    ledger.passed("recheck", f"{rechecked} timed calls compared; {unseen}")
    ledger.passed("wall", _clocks(eager, side, measured, buffers.sets, source))
    median = statistics.median(s.us for s in measured.candidate)
    check_floor(median, floor_us, ledger)
    return measured


def recheck(pool: TrialPool, examined: Examination, trial: int, results: list[torch.Tensor]) -> None:
    """A timed call's results against the verified ones; where bits differ, against the error rule."""
    known = examined.results[trial]
    if all(same_bits(a, b) for a, b in zip(results, known, strict=True)):
        return
    outcome = pool.check(trial, results)
    if outcome.problem is None:
        return
    if outcome.problem.blame != "candidate":
        raise_outcome(outcome.problem)
    line = f"a timed call gave a wrong result, a checked one did not: {outcome.problem.line}"
    raise Rejected(outcome.problem.kind, "recheck", line, stage="correct")


def unseen_cost(
    eager: Side,
    side: Side,
    buffers: Buffers,
    pool: TrialPool,
    contents: Contents,
    source: random.Random,
    usual_us: tuple[float, float] | None = None,
) -> str:
    """Batches on contents no call has seen, every call's outputs kept by both sides. Raises Rejected.

    The candidate's time on unseen contents over that on the same ones again may exceed eager's factor by UNSEEN_FACTOR.
    What both wrote is compared coarsely (there is no reference for these contents).
    usual_us: medians of the timed pairs (eager, candidate). A cache that was filled early and is only looked up later
    makes "new" and "again" equally slow, so what unseen contents cost is held against the timed calls too.
    """
    fine: list[tuple[float, float]] = []
    worst = (0.0, 0.0)
    for _ in range(UNSEEN_MOST_ROUNDS):
        theirs, ours, ours_us, new_us = _unseen_round(eager, side, buffers, pool, contents, source)
        # A few microseconds of cold code and caches weigh much on a tiny kernel.
        as_again = ours <= max(1.0, theirs) * UNSEEN_FACTOR + 5.0 / ours_us
        as_timed = True
        if usual_us is not None:
            colder = max(1.0, new_us[0] / usual_us[0])
            as_timed = new_us[1] <= usual_us[1] * colder * UNSEEN_FACTOR + 10.0
            if not as_timed:
                worst = max(worst, (new_us[1] / usual_us[1], new_us[0] / usual_us[0]))
        if as_again and as_timed:
            fine.append((theirs, ours))
        elif as_again:
            continue
        else:
            worst = max(worst, (ours, theirs))
        if len(fine) == UNSEEN_ROUNDS:
            factors = [statistics.median(f[k] for f in fine) for k in (0, 1)]
            return f"unseen contents cost {factors[1]:.2f}x the time of seen ones, eager {factors[0]:.2f}x"
    line = (
        f"calls on contents it has not seen take {worst[0]:.1f}x the time of seen ones (eager {worst[1]:.1f}x): "
        "results are kept from earlier calls"
    )
    raise Rejected("impossible time", "recheck", line, stage="correct")


def _unseen_round(
    eager: Side,
    side: Side,
    buffers: Buffers,
    pool: TrialPool,
    contents: Contents,
    source: random.Random,
) -> tuple[float, float, float, tuple[float, float]]:
    """One call per set on new contents, then the same again.

    Time ratio new / again (eager, candidate), the candidate's us per call again, and us per call on new contents of both.
    """
    sets = buffers.sets
    for index in range(sets):
        buffers.write_set(index, unseen_inputs(contents.roles, pool.trials[contents.at[index]].tensors, source))
        buffers.poison_slot(index, 0, index)
    times = []
    for worker in (eager, side):
        time.sleep(SETTLE_S)
        new, _ = worker.run(sets, 0, (0, sets))
        again, _ = worker.run(sets, 0, (0, sets))
        times.append((max(1, new), max(1, again)))
    for k in range(sets):
        _coarse(buffers.slot_tensors(k), buffers.slot_tensors(k, control=True))
    (theirs_new, theirs_again), (ours_new, ours_again) = times
    new_us = (theirs_new / sets / 1000, ours_new / sets / 1000)
    return theirs_new / theirs_again, ours_new / ours_again, ours_again / sets / 1000, new_us


def unseen_inputs(kinds: Sequence[Role], tensors: Sequence[torch.Tensor], source: random.Random) -> list[torch.Tensor]:
    """Legal inputs like these with values no call has seen: data scaled a little and rolled, plain indices rolled."""
    changed = []
    for tensor, role in zip(tensors, kinds, strict=True):
        values = compact(tensor)
        if role.kind == "data" and not role.sorted:
            shift = source.randrange(1, max(2, values.numel()))
            changed.append(
                like(
                    tensor,
                    (values * source.uniform(0.95, 1.05)).to(tensor.dtype).flatten().roll(shift).view(values.shape),
                )
            )
        elif role.kind == "integer" and not role.sorted:
            shift = source.randrange(1, max(2, values.numel()))
            changed.append(like(tensor, values.flatten().roll(shift).view(values.shape)))
        else:
            changed.append(tensor)
    return changed


def _coarse(results: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Refuse results that are not even near eager's; the error rule proper needs a reference."""
    for number, (got, want) in enumerate(zip(results, expected, strict=True)):
        if not got.numel():
            continue
        if got.is_complex():
            got, want = torch.view_as_real(got.resolve_conj()), torch.view_as_real(want.resolve_conj())
        a, b = got.float().nan_to_num(0.0, 0.0, 0.0), want.float().nan_to_num(0.0, 0.0, 0.0)
        distance, size = float((a - b).square().mean().sqrt()), float(b.square().mean().sqrt())
        if distance > 0.05 * size + 1e-30:
            line = f"output {number} of a timed call on unseen contents is wrong (rms distance {distance:.3g} of {size:.3g})"
            raise Rejected("numeric", "recheck", line, stage="correct")


def _clocks(eager: EagerSide, side: RunSide, measured: Pairs, sets: int, source: random.Random) -> str:
    """Compare the claims with the judge's clock. Raises Rejected when they disagree, again and again."""
    for _ in range(CLOCK_TRIES):
        batch_ns = statistics.median(s.claimed_ns for s in measured.candidate)
        extra, jitter = unexplained_ns(measured)
        if extra <= UNEXPLAINED_SHARE * batch_ns + jitter:
            break
        measured = interleave(eager, side, measured.batch, sets, source, CLOCK_PAIRS)
    else:
        line = f"timing not trusted: {extra / 1000:.0f} us of a {batch_ns / 1000:.0f} us batch pass outside its claim"
        raise Rejected("impossible time", "wall", line, stage="correct")
    median_ns = 1000 * statistics.median(s.us for s in measured.candidate)
    skips = False
    for _ in range(CLOCK_TRIES):
        # What eager's loop spends outside its claim (restoring inputs of an in-place operator) ours may spend too.
        theirs_outside, theirs_claimed, _ = slope_ns(eager, measured.batch)
        shared = max(0.0, theirs_outside - theirs_claimed)
        outside, claimed, resolution = slope_ns(side, measured.batch)
        skips = outside + resolution < SLOPE_SHARE * median_ns
        if not skips and claimed >= INSIDE_SHARE * (outside - shared) - resolution:
            return (
                f"claimed {claimed / 1000:.2f} us a call, outside slope {outside / 1000:.2f} +- {resolution / 1000:.2f}"
            )
    if skips:
        line = f"timing not trusted: {median_ns / 1000:.2f} us a call, but more calls take only {outside / 1000:.2f} us each: it skips calls"
        raise Rejected("impossible time", "wall", line, stage="correct")
    line = f"timing not trusted: it claims {claimed / 1000:.2f} us a call, the judge's clock sees {outside / 1000:.2f}"
    raise Rejected("impossible time", "wall", line, stage="correct")


def check_floor(median_us: float, floor_us: float | None, ledger: Ledger) -> None:
    if floor_us is None:
        ledger.unknown("floor", "no speed-of-light bound was measured")
        return
    if median_us < IMPOSSIBLE * floor_us:
        line = f"{median_us:.2f} us a call is below the speed-of-light bound of {floor_us:.2f} us: impossible"
        raise Rejected("impossible time", "floor", line, stage="correct")
    ledger.passed("floor", f"{median_us:.2f} us against a bound of {floor_us:.2f} us")
