"""Which card, which node: the search's pure rules applied to the run's state. Every choice is stored."""

from __future__ import annotations

from forge_tui.engine.cardstate import CardSearch, Node
from forge_tui.engine.proposing import Proposing
from forge_tui.engine.services import Services
from forge_tui.search.allocation import CardView, pick_card
from forge_tui.search.stop import Progress, Rules, stop_reason
from forge_tui.search.strategies import STRATEGIES, Constants
from forge_tui.search.tree import Row, Tree

CONFIRM_EVERY = 6  # finished candidates between confirmations while a card is still being searched


class Chooser:
    """Turns card states into trees and views, and asks the strategy."""

    def __init__(self, services: Services) -> None:
        self._s = services

    async def select_cards(self) -> None:
        """Leave alone what can't move the model: cards beyond `max_cards` or below `min_share`."""
        o = self._s.options
        ranked = sorted(self._s.cards.values(), key=lambda cs: -(cs.card.share or 0.0))
        for rank, cs in enumerate(ranked):
            small = cs.card.share is not None and cs.card.share < o.min_share
            if (rank >= o.max_cards or small) and not cs.nodes:
                cs.done = "left alone"
                reason = (
                    f"{100 * (cs.card.share or 0):.2f}% of the model's time"
                    if small
                    else f"not among the {o.max_cards} largest cards"
                )
                await self._s.store.add_card_state(cs.card.card_id, "done", reason)

    def next(self, proposing: Proposing) -> tuple[CardSearch, Node | None] | None:
        """The next card and node (None: a new root, or the card is still to be opened); None when nothing can start now."""
        open_cards = [cs for cs in self._s.cards.values() if not cs.done and not self._stopped(cs, proposing)]
        while open_cards:
            pick = pick_card([self._view(cs) for cs in open_cards])
            if pick is None:
                return None
            cs = self._s.cards[pick.card_id]
            if cs.ready is None:
                return cs, None
            choice = STRATEGIES[self._s.options.strategy](self.tree(cs), self._constants(cs, proposing))
            if choice.kind != "nothing":
                self._s.store.add_decision(
                    cs.card.card_id,
                    choice.node,
                    self._s.options.strategy,
                    {"card": pick.why, **choice.numbers},
                    choice.why,
                )
                return cs, cs.nodes[choice.node] if choice.kind == "expand" else None
            open_cards.remove(cs)
        return None

    def time_to_confirm(self, cs: CardSearch) -> bool:
        """Confirm when the card is done, when its first gain came, or now and then on the way."""
        if cs.ready is None or not cs.ready.usable or cs.busy:
            return False
        since = len(cs.nodes) - cs.nodes_at_confirm
        return bool(cs.done) or bool(self._s.stopping) or cs.champion is None or since >= CONFIRM_EVERY

    def tree(self, cs: CardSearch) -> Tree:
        """The card's tree as the strategies see it."""
        rows = []
        for name, node in cs.nodes.items():
            best = node.best
            state = "pending" if node.verdict is None else "failed" if best is None else "correct"
            time_us = best.timing.candidate_us if best is not None and best.timing is not None else None
            rows.append(
                Row(name, node.candidate.parent_id or "", state, time_us, node.pruned, node.pinned, node.exhausted)
            )
        making = cs.proposing_from + [""] * max(0, cs.proposing - len(cs.in_flight) - len(cs.proposing_from))
        base = cs.ready.eager_us if cs.ready is not None and cs.ready.eager_us else 1.0
        return Tree(rows, base, extra=making)

    def _constants(self, cs: CardSearch, proposing: Proposing) -> Constants:
        return Constants(spent=cs.attempts, budget=max(1, cs.budget), can_root=proposing.can_start(cs))

    def _view(self, cs: CardSearch) -> CardView:
        hits = sum(
            1
            for n in cs.nodes.values()
            if (b := n.best) is not None and b.timing is not None and b.timing.verdict == "faster"
        )
        return CardView(
            cs.card.card_id, cs.gain(), cs.attempts, hits, len(cs.in_flight) + cs.proposing, cs.card.op_class
        )

    def _stopped(self, cs: CardSearch, proposing: Proposing) -> bool:
        """Apply the stop rules; a card that has work in flight is only ever held back, never declared done."""
        o = self._s.options
        ready = cs.ready
        times = []
        for node in cs.nodes.values():
            best = node.best
            if node.verdict is not None:
                times.append(best.timing.candidate_us if best is not None and best.timing is not None else None)
        may = proposing.can_start(cs) or any(
            n.best is not None and not n.pruned and not n.exhausted for n in cs.nodes.values()
        )
        progress = Progress(
            cs.attempts, cs.budget, tuple(times), ready.eager_us if ready else None, ready.floor_us if ready else None, cs.card.share, may or cs.busy,
        )  # fmt: skip
        reason = stop_reason(progress, Rules(o.sol_eps, o.no_gain, o.amdahl))
        if not reason:
            return False
        if not cs.busy:
            cs.done = reason
            self._s.store.add_card_state(cs.card.card_id, "done", reason)
            self._s.store.log("info", f"{cs.card.title}: done, {reason}", cs.card.card_id)
        return True
