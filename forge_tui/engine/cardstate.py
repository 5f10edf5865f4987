"""One card during a search: what was tried, what is in flight, what may still come."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from forge_tui.records.candidate import Binary, Candidate, Draft
from forge_tui.records.card import Card
from forge_tui.records.judging import CardReady
from forge_tui.records.verdict import Verdict


@dataclass
class Node:
    """A candidate with its latest counting verdicts."""

    candidate: Candidate
    verdict: Verdict | None = None
    confirmation: Verdict | None = None
    pruned: bool = False
    pinned: bool = False
    exhausted: bool = False
    binary: Binary | None = None

    @property
    def failed(self) -> bool:
        return self.verdict is not None and self.verdict.outcome == "rejected"

    @property
    def best(self) -> Verdict | None:
        """The verdict whose numbers count: a correct confirmation, else a correct search verdict."""
        for verdict in (self.confirmation, self.verdict):
            if verdict is not None and verdict.outcome == "correct" and verdict.timing is not None:
                return verdict
        return None


@dataclass
class CardSearch:
    """State of one card, rebuilt from the store's rows when a session is resumed.

    bad_replies: replies that held no new candidate; they cost an attempt like any other.
    waiting: recipe drafts not yet tried. in_flight: ids being worked on, with proposals in the making counted apart.
    """

    card: Card
    ready: CardReady | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)
    waiting: list[Draft] = field(default_factory=list)
    in_flight: set[str] = field(default_factory=set)
    proposing: int = 0
    proposing_from: list[str] = field(default_factory=list)
    bad_replies: int = 0
    wasted_in_a_row: int = 0
    nodes_at_confirm: int = 0
    done: str = ""
    budget: int = 0
    tried_to_confirm: set[str] = field(default_factory=set)
    rng: random.Random = field(default_factory=random.Random)

    @property
    def busy(self) -> bool:
        return bool(self.in_flight) or self.proposing > 0

    @property
    def attempts(self) -> int:
        """Candidates made so far, those in the making included; repairs and unusable replies count too."""
        return len(self.nodes) + self.bad_replies + max(0, self.proposing - len(self.in_flight))

    @property
    def champion(self) -> Node | None:
        """The best confirmed node that may go into a cast."""
        worthy = [
            n
            for n in self.nodes.values()
            if not n.pruned and n.confirmation is not None and n.confirmation.champion_worthy
        ]
        return max(worthy, key=_speedup, default=None)

    def to_confirm(self) -> Node | None:
        """The fastest search result that could beat the champion and has not been confirmed yet."""
        champion = self.champion
        # What was confirmed but can't ship (yet) sets the bar too: confirming slower ones would bring nothing.
        kept = [
            n
            for n in self.nodes.values()
            if n.confirmation is not None and n.confirmation.outcome == "correct" and not n.confirmation.ships
        ]
        bar = max([1.0, *(_speedup(n) * 1.01 for n in (*kept, *([champion] if champion else [])))])
        best: Node | None = None
        for node in self.nodes.values():
            verdict = node.verdict
            if node.pruned or node.confirmation is not None or node.candidate.candidate_id in self.tried_to_confirm:
                continue
            if (
                verdict is None
                or verdict.outcome != "correct"
                or verdict.timing is None
                or verdict.timing.verdict != "faster"
            ):
                continue
            if verdict.timing.speedup > bar and (best is None or verdict.timing.speedup > _speedup(best)):
                best = node
        return best

    @property
    def best_us(self) -> float | None:
        """Fastest correct time so far in microseconds, eager's before there is one."""
        times = [
            b.timing.candidate_us for n in self.nodes.values() if (b := n.best) is not None and b.timing is not None
        ]
        eager = self.ready.eager_us if self.ready else None
        return min([*times, eager], key=lambda t: t if t is not None else float("inf"), default=None)

    def gain(self) -> float:
        """Model time still open to this card: share x (1 - floor / best); the whole share while unknown."""
        share = self.card.share or 0.0
        best, floor = self.best_us, self.ready.floor_us if self.ready else None
        if not best or not floor:
            return share
        return share * max(0.0, 1 - floor / best)


def _speedup(node: Node) -> float:
    best = node.best
    return best.timing.speedup if best is not None and best.timing is not None else 0.0
