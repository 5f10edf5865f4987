"""Constants of the search, in one record. The defaults are ours (none of the published systems names all of them)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """Parameters of the tree rules. Rewards are natural logarithms of speed-ups over the baseline.

    c: exploration constant of UCT. c_puct: of PUCT. prior_temperature: softmax temperature of the priors (log gains).
    widen_k, alpha_start, alpha_end: a node may have max(1, floor(k * visits^alpha)) children; alpha falls linearly from
        start to end over the real budget.
    max_share: weight of the best result below a node against the mean of all results below it.
    fail_reward: what a failed candidate counts as, and one in flight until its result is known (virtual loss).
    dead_end: failed children, with nothing correct below, after which a node gets no more children.
    stagnation: visits of a subtree after which it is left when nothing below its top is better than the top.
    gain: smallest improvement that counts as one (0.01 is 1%, about the noise of a search measurement).
    forge_c, forge_annealing: Kernel Forge's constant and the root visits over which its exponent falls.
    """

    c: float = 0.7
    c_puct: float = 1.0
    prior_temperature: float = 0.25
    widen_k: float = 1.0
    alpha_start: float = 0.5
    alpha_end: float = 0.3
    max_share: float = 0.5
    fail_reward: float = -0.5
    dead_end: int = 3
    stagnation: int = 10
    gain: float = 0.01
    forge_c: float = 1.0
    forge_annealing: int = 1000

    def __post_init__(self) -> None:
        if self.widen_k <= 0 or self.dead_end < 1 or self.stagnation < 1 or self.prior_temperature <= 0:
            raise ValueError("widen_k, dead_end, stagnation and prior_temperature are positive")
        if not 0 <= self.max_share <= 1:
            raise ValueError("max_share lies between 0 and 1")


@dataclass(frozen=True)
class Budget:
    """How far the card's budget is used. can_root: somebody can still write a kernel from scratch."""

    used: int
    limit: int
    can_root: bool = True

    @property
    def progress(self) -> float:
        """0 at the start, 1 when the budget is spent."""
        return min(1.0, max(0.0, self.used / self.limit)) if self.limit > 0 else 1.0
