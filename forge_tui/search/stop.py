"""When a card is done. Each rule says why in one line; a rule whose numbers are unknown does not apply."""

from __future__ import annotations

from dataclasses import dataclass

# Share of the model's time that nobody could notice in a whole-model test.
AMDAHL_REST = 0.005


@dataclass(frozen=True)
class StopRules:
    """sol_eps: stop within (1 + eps) of the speed of light (2.5 in the published rule). no_gain: attempts without a gain.
    amdahl: part of the model's time below which what is left can't matter.
    """

    sol_eps: float = 0.25
    no_gain: int = 12
    amdahl: float = AMDAHL_REST


@dataclass(frozen=True)
class Progress:
    """One card so far. Times in microseconds per call; best_us None while nothing correct is faster than eager.

    attempts / limit: candidates made and allowed. since_gain: finished candidates since the last gain.
    share: part of the model's time, 0..1. Unknown values are None.
    """

    attempts: int
    limit: int
    since_gain: int
    eager_us: float | None = None
    best_us: float | None = None
    floor_us: float | None = None
    share: float | None = None

    @property
    def fastest_us(self) -> float | None:
        """The faster of eager and the best candidate."""
        known = [t for t in (self.eager_us, self.best_us) if t is not None]
        return min(known) if known else None

    @property
    def possible_saving(self) -> float | None:
        """Part of the model's present time that a kernel at the speed of light would still save; None when unknown.

        Without a speed of light the whole remaining time of the card counts.
        """
        if self.share is None or not self.eager_us or self.fastest_us is None:
            return self.share
        left = self.fastest_us - (self.floor_us or 0.0)
        return self.share * max(0.0, left) / self.eager_us


@dataclass(frozen=True)
class Stop:
    """rule: "budget", "speed of light", "no gain" or "amdahl". line: for people."""

    rule: str
    line: str


def stop(progress: Progress, rules: StopRules | None = None) -> Stop | None:
    """The first rule that ends the card, or None."""
    rules = rules or StopRules()
    if progress.attempts >= progress.limit:
        return Stop("budget", f"the card's {progress.limit} candidates are used")
    fastest, floor = progress.fastest_us, progress.floor_us
    if fastest is not None and floor is not None and fastest <= (1 + rules.sol_eps) * floor:
        who = "the best candidate" if progress.best_us is not None and progress.best_us == fastest else "eager itself"
        return Stop("speed of light", f"{who} is within {100 * (fastest / floor - 1):.0f}% of the speed of light")
    saving = progress.possible_saving
    if saving is not None and saving < rules.amdahl:
        return Stop("amdahl", f"at most {100 * saving:.2g}% of the model's time is left to save here")
    if progress.since_gain >= rules.no_gain:
        return Stop("no gain", f"{progress.since_gain} candidates in a row brought no gain")
    return None
