"""When a card is done: its budget, near the speed of light, no gain for long, or nothing left for the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A card's state. times_us: per finished candidate in order, None for failures. share: of the model's time, or None."""

    attempts: int
    budget: int
    times_us: tuple[float | None, ...]
    base_us: float | None
    floor_us: float | None
    share: float | None
    can_propose: bool


@dataclass(frozen=True)
class Rules:
    """sol_eps: stop within this factor above the floor, once eager is beaten. no_gain: candidates without a better time.

    amdahl: stop when the card can save less than this part of the model's time.
    """

    sol_eps: float = 0.25
    no_gain: int = 12
    amdahl: float = 0.005


def stop_reason(progress: Progress, rules: Rules) -> str:
    """Why the card is done, or "" to go on."""
    if progress.attempts >= progress.budget:
        return f"budget of {progress.budget} candidates used"
    times = [t for t in progress.times_us if t is not None]
    best = min(times, default=None)
    base, floor = progress.base_us, progress.floor_us
    if (
        best is not None
        and base is not None
        and floor is not None
        and best < base
        and best <= (1 + rules.sol_eps) * floor
    ):
        return f"within {100 * (best / floor - 1):.0f}% of the speed of light"
    if progress.share is not None and floor is not None and base is not None:
        left = progress.share * max(0.0, 1 - floor / min(base, best or base))
        if left < rules.amdahl:
            return f"can save at most {100 * left:.2f}% of the model's time"
    since = _since_gain(progress.times_us, base)
    if since >= rules.no_gain:
        return f"{since} candidates without a gain"
    if not progress.can_propose:
        return "the proposers have nothing more to try"
    return ""


def _since_gain(times: tuple[float | None, ...], base: float | None) -> int:
    """Candidates since the best time got better by more than 1%."""
    best, since = base, 0
    for time in times:
        if time is not None and (best is None or time < 0.99 * best):
            best, since = time, 0
        else:
            since += 1
    return since
