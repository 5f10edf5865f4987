"""Which card, which node: the search's pure rules applied to the run's state. Every choice is stored."""

from __future__ import annotations

from forge_tui.engine.cardstate import CardSearch, Node
from forge_tui.engine.proposing import Proposing
from forge_tui.engine.services import Services
from forge_tui.search.allocation import CardState, rank
from forge_tui.search.parameters import Budget, Parameters
from forge_tui.search.stop import Progress, StopRules, stop
from forge_tui.search.strategies import EXPAND, NOTHING, choose
from forge_tui.search.tree import CORRECT, FAILED, PENDING, NodeStat, Tree

CONFIRM_EVERY = 6  # finished candidates between confirmations while a card is still being searched
LLM_COST, RECIPE_COST = 1.0, 0.05  # relative cost of an attempt: model tokens against machine time alone


class Chooser:
    """Turns card states into trees and views, and asks the strategy."""

    def __init__(self, services: Services, parameters: Parameters) -> None:
        self._s = services
        self._parameters = parameters

    async def select_cards(self) -> None:
        """Leave alone what can't move the model: cards beyond `max_cards` or below `min_share`."""
        o = self._s.options
        ranked = sorted(self._s.cards.values(), key=lambda cs: -(cs.card.share or 0.0))
        for position, cs in enumerate(ranked):
            small = cs.card.share is not None and cs.card.share < o.min_share
            if (position >= o.max_cards or small) and not cs.nodes:
                cs.done = "left alone"
                share = f"{100 * (cs.card.share or 0):.2f}% of the model's time"
                reason = share if small else f"not among the {o.max_cards} largest cards"
                await self._s.store.add_card_state(cs.card.card_id, "done", reason)

    def next(self, proposing: Proposing) -> tuple[CardSearch, Node | None] | None:
        """The next card and node (None: a new root, or the card is still to be opened); None when nothing can start now."""
        trees = {name: self.tree(cs) for name, cs in self._s.cards.items() if not cs.done}
        views = [
            self._view(cs, trees[name], proposing)
            for name, cs in self._s.cards.items()
            if name in trees and not self._stopped(cs, trees[name], proposing)
        ]
        for pick in rank(views):
            cs = self._s.cards[pick.card_id]
            if cs.ready is None:
                return cs, None
            budget = Budget(cs.attempts, max(1, cs.budget), proposing.can_start(cs))
            choice = choose(self._s.options.strategy, trees[pick.card_id], budget)
            if choice.kind != NOTHING:
                numbers = {"card": pick.why, **choice.numbers}
                self._s.store.add_decision(cs.card.card_id, choice.node, self._s.options.strategy, numbers, choice.why)
                return cs, cs.nodes[choice.node] if choice.kind == EXPAND else None
        return None

    def time_to_confirm(self, cs: CardSearch) -> bool:
        """Confirm when the card is done, when its first gain came, or now and then on the way."""
        if cs.ready is None or not cs.ready.usable or cs.busy:
            return False
        since = len(cs.nodes) - cs.nodes_at_confirm
        return bool(cs.done) or bool(self._s.stopping) or cs.champion is None or since >= CONFIRM_EVERY

    def tree(self, cs: CardSearch) -> Tree:
        """The card's tree as the strategies see it; proposals in the making hang under their parents as pending nodes."""
        rows = []
        for name, node in cs.nodes.items():
            timing = node.best.timing if node.best is not None else None
            state = PENDING if node.verdict is None else CORRECT if timing is not None else FAILED
            time_us = timing.candidate_us if timing is not None else None
            rows.append(
                NodeStat(name, node.candidate.parent_id or "", state, time_us, node.pruned, node.pinned, node.exhausted)
            )
        roots = max(0, cs.proposing - len(cs.in_flight) - len(cs.proposing_from))
        making = [*cs.proposing_from, *([""] * roots)]
        rows += [NodeStat(f"making{number}", parent, PENDING) for number, parent in enumerate(making)]
        base = cs.ready.eager_us if cs.ready is not None and cs.ready.eager_us else 1.0
        return Tree.from_rows(rows, base, self._parameters)

    def snapshot(self, cs: CardSearch) -> dict[str, tuple[int, float | None]]:
        """Visits and value of every node, for the lists."""
        tree = self.tree(cs)
        return {name: (tree.visits[tree.index(name)], tree.value(tree.index(name))) for name in cs.nodes}

    def _view(self, cs: CardSearch, tree: Tree, proposing: Proposing) -> CardState:
        ready = cs.ready
        hits = sum(
            1
            for n in cs.nodes.values()
            if (b := n.best) is not None and b.timing is not None and b.timing.verdict == "faster"
        )
        finished = sum(1 for n in cs.nodes.values() if n.verdict is not None)
        cost = LLM_COST if proposing.llm_usable and not cs.waiting else RECIPE_COST
        return CardState(
            cs.card.card_id, cs.card.share, ready.eager_us if ready else None, cs.best_us, ready.floor_us if ready else None, cs.card.op_class,
            finished, max(len(cs.in_flight), cs.proposing), hits, cost, waiting=self._can_take(cs, proposing),
        )  # fmt: skip

    def _can_take(self, cs: CardSearch, proposing: Proposing) -> bool:
        return proposing.can_start(cs) or any(
            n.best is not None and not n.pruned and not n.exhausted for n in cs.nodes.values()
        )

    def _stopped(self, cs: CardSearch, tree: Tree, proposing: Proposing) -> bool:
        """Apply the stop rules; a card that has work in flight is only ever held back, never declared done."""
        o, ready = self._s.options, cs.ready
        best = tree.best()
        progress = Progress(
            cs.attempts, cs.budget, tree.since_gain(), ready.eager_us if ready else None, best.time_us if best else None,
            ready.floor_us if ready else None, cs.card.share,
        )  # fmt: skip
        ended = stop(progress, StopRules(o.sol_eps, o.no_gain, o.amdahl))
        line = ended.line if ended else "" if self._can_take(cs, proposing) else proposing.silence(cs)
        if not line:
            return False
        if not cs.busy:
            cs.done = line
            self._s.store.add_card_state(cs.card.card_id, "done", line)
            self._s.store.log("info", f"{cs.card.title}: done, {line}", cs.card.card_id)
        return True
