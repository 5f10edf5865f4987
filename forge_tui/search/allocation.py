"""Which card the next attempt goes to: where the model gains most per unit of cost.

    gain of one more attempt = share left x headroom x hit rate,   divided by what an attempt costs

share left is the card's part of the model's time at its best kernel so far; headroom is 1 - speed of light / best; the
hit rate starts at the class's prior and learns from the card's own attempts, those in flight counted as misses. Every card
first gets a small reserve, so that no card is written off unseen.
Priors: kernels won on 54% of native and 11% of vendor-backed variants in Kernel Forge's published runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forge_tui.records import opclass
from forge_tui.search.hits import HitRate, calibrated
from forge_tui.search.tree import order_of

NATIVE_HITS, VENDOR_HITS = 0.54, 0.11
VENDOR_CLASSES = frozenset({opclass.MATMUL, opclass.CONV, opclass.ATTENTION})
PRIOR_TRIES = 4.0
UNKNOWN_HEADROOM = 1 - 1 / 1.5  # a middling published operator win, where the speed of light is not known


@dataclass(frozen=True)
class CardState:
    """One card to choose among. Times in microseconds per call, None when unknown.

    hits: attempts that beat what was best before. attempts: all finished ones. cost: expected tokens of one attempt; any
    positive unit that all cards share (a recipe's attempt costs machine time only: give it a small number).
    waiting: False while the card can't take an attempt now (opening, nothing to propose). done: why it gets none, or "".
    """

    card_id: str
    share: float | None
    eager_us: float | None = None
    best_us: float | None = None
    floor_us: float | None = None
    op_class: str = ""
    attempts: int = 0
    in_flight: int = 0
    hits: int = 0
    cost: float = 1.0
    waiting: bool = True
    done: str = ""

    @property
    def tried(self) -> int:
        return self.attempts + self.in_flight


@dataclass(frozen=True)
class Allocation:
    """The card to spend on and why, with the numbers compared."""

    card_id: str
    why: str
    numbers: dict[str, float] = field(default_factory=dict)


def expected_gain(card: CardState) -> float:
    """Expected part of the model's time that one more attempt saves."""
    share = card.share or 0.0
    fastest = min((t for t in (card.eager_us, card.best_us) if t), default=None)
    left = share * (fastest / card.eager_us) if fastest and card.eager_us else share
    headroom = UNKNOWN_HEADROOM
    if fastest and card.floor_us:
        headroom = max(0.0, 1 - card.floor_us / fastest)
    return left * headroom * hit_rate(card)


def hit_rate(card: CardState) -> float:
    """Posterior rate of attempts that gain, those in flight counted as misses."""
    prior = VENDOR_HITS if card.op_class in VENDOR_CLASSES else NATIVE_HITS
    return calibrated(HitRate(card.hits, card.tried), prior, PRIOR_TRIES)


def rank(cards: Iterable[CardState], reserve: int = 3) -> list[Allocation]:
    """Live cards, the best to spend on first: those below their reserve, then by gain per cost. Deterministic."""
    live = [c for c in cards if not c.done and c.waiting]
    keyed = []
    for card in live:
        if card.cost <= 0:
            raise ValueError(f"card {card.card_id}: the cost of an attempt is positive")
        gain = expected_gain(card)
        starved = card.tried < reserve
        # Within the reserve cards go in turn, so that each is seen once before any is seen twice.
        order = (0, card.tried) if starved else (1, 0)
        keyed.append(((*order, -round(gain / card.cost, 15), order_of(card.card_id)), card, gain, starved))
    found = []
    for _, card, gain, starved in sorted(keyed, key=lambda k: k[0]):
        why = f"attempt {card.tried + 1} of its reserve of {reserve}" if starved else ""
        why = why or f"an attempt is expected to save {100 * gain:.2g}% of the model's time"
        numbers = {"gain": gain, "cost": card.cost, "hit_rate": hit_rate(card), "share": card.share or 0.0}
        found.append(Allocation(card.card_id, why, numbers))
    return found


def next_card(cards: Iterable[CardState], reserve: int = 3) -> Allocation | None:
    """The card the next attempt goes to, or None when none is live."""
    ranked = rank(cards, reserve)
    return ranked[0] if ranked else None
