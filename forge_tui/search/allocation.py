"""Which card the next candidate goes to: share x remaining headroom x hit rate, with a floor for cards hardly tried.

Greedy on expected model gain per candidate. Hit rates: how often a candidate of this card brought a gain, starting from
the published class rates (native operators 54%, vendor-backed 11%; seeds 1.10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RESERVE = 2  # candidates that every open card gets before any card gets more
VENDOR = frozenset({"matmul", "conv", "attention"})
PRIOR_HITS = {True: 0.11, False: 0.54}
PRIOR_WEIGHT = 4.0


@dataclass(frozen=True)
class CardView:
    """gain: model time still open to the card (share x (1 - floor / best)), 0..1. in_flight: candidates now being worked on."""

    card_id: str
    gain: float
    attempts: int
    hits: int
    in_flight: int
    op_class: str
    cost: float = 1.0


@dataclass(frozen=True)
class Pick:
    card_id: str
    why: str
    score: float


def pick_card(cards: Sequence[CardView]) -> Pick | None:
    """The card to work on next, or None when there is none. Cards must be open; the order given breaks ties."""
    if not cards:
        return None
    untried = [c for c in cards if c.attempts + c.in_flight < RESERVE]
    if untried:
        best = max(untried, key=lambda c: (c.gain, -c.attempts - c.in_flight))
        return Pick(best.card_id, f"hardly tried yet; {100 * best.gain:.1f}% of the model still open", best.gain)
    best = max(cards, key=_score)
    return Pick(
        best.card_id, f"{100 * best.gain:.1f}% of the model open, hit rate {100 * _rate(best):.0f}%", _score(best)
    )


def _rate(card: CardView) -> float:
    prior = PRIOR_HITS[card.op_class in VENDOR]
    return (card.hits + PRIOR_WEIGHT * prior) / (card.attempts + PRIOR_WEIGHT)


def _score(card: CardView) -> float:
    """Expected gain per cost; work in flight on the card makes the next candidate less urgent."""
    return card.gain * _rate(card) / (max(card.cost, 1e-9) * (1 + card.in_flight))
