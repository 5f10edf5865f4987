"""A revision tree as the strategies see it: who hangs under whom, what each subtree brought, what may still be expanded.

The virtual root is eager itself: reward 0. A node's reward is ln(base / time), so a tree in microseconds and the same
tree in milliseconds are the same tree. Failures count as `fail` in means; work in flight counts as a failure until it
is done (virtual loss), so that parallel workers spread out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

ROOT = ""
DEAD_END = (
    3  # failed children in a row after which a node is given up (KernelPro's dead-end pruning; the number is ours)
)
STAGNATION = 10  # visits without a better result below (Kernel Forge's rule)


@dataclass(frozen=True)
class Row:
    """One node. parent "" for a root. time_us: None for a failure or while pending. Rows come in order of creation.

    state: "pending", "failed" or "correct". exhausted: its proposers have nothing more to say.
    """

    node: str
    parent: str
    state: str
    time_us: float | None = None
    pruned: bool = False
    pinned: bool = False
    exhausted: bool = False
    prior: float = 1.0


@dataclass
class Stats:
    """A node with its subtree. visits: finished and pending nodes in the subtree, itself included."""

    row: Row
    order: int
    reward: float | None
    children: list[str]
    visits: int = 0
    best: float = -math.inf
    total: float = 0.0
    failed_in_a_row: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.visits if self.visits else 0.0


class Tree:
    """Statistics of one card's tree. base_us: eager's time. extra: parents that have a proposal in the making."""

    def __init__(self, rows: Iterable[Row], base_us: float, fail: float = -0.5, extra: Iterable[str] = ()) -> None:
        if not base_us > 0:
            raise ValueError("the baseline's time must be positive")
        self.base_us = base_us
        self.fail = fail
        self.nodes: dict[str, Stats] = {ROOT: Stats(Row(ROOT, ROOT, "correct", base_us), -1, 0.0, [])}
        for order, row in enumerate(rows):
            reward = math.log(base_us / row.time_us) if row.state == "correct" and row.time_us else None
            self.nodes[row.node] = Stats(row, order, reward, [])
        for name, stats in self.nodes.items():
            if name != ROOT:
                parent = stats.row.parent if stats.row.parent in self.nodes else ROOT
                self.nodes[parent].children.append(name)
        self.making: dict[str, int] = {}
        for name in extra:
            key = name if name in self.nodes else ROOT
            self.making[key] = self.making.get(key, 0) + 1
        self._accumulate()
        self.low, self.high = self._range()

    def _accumulate(self) -> None:
        for name in self._bottom_up():
            stats = self.nodes[name]
            own = self.fail if stats.reward is None else stats.reward
            stats.visits, stats.total = 1, own
            stats.best = -math.inf if stats.reward is None else stats.reward
            for child in stats.children:
                below = self.nodes[child]
                stats.visits += below.visits
                stats.total += below.total
                stats.best = max(stats.best, below.best)
            making = self.making.get(name, 0)
            stats.visits += making
            stats.total += making * self.fail
            for child in sorted(stats.children, key=lambda c: self.nodes[c].order):
                state = self.nodes[child].row.state
                if state == "failed":
                    stats.failed_in_a_row += 1
                elif state == "correct":
                    stats.failed_in_a_row = 0

    def _bottom_up(self) -> list[str]:
        """Children before parents; no recursion, trees may be deep."""
        order, stack = [], [ROOT]
        while stack:
            name = stack.pop()
            order.append(name)
            stack.extend(self.nodes[name].children)
        order.reverse()
        return order

    def _range(self) -> tuple[float, float]:
        rewards = [s.reward for s in self.nodes.values() if s.reward is not None]
        return min([self.fail, *rewards]), max([0.0, *rewards])

    def scaled(self, reward: float) -> float:
        """A reward in [0, 1] over this tree."""
        reward = max(reward, self.low)
        return (reward - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def quality(self, name: str, max_share: float = 0.5) -> float:
        """Mixed back-up in [0, 1]: part of the best below, part of the mean with failures counted."""
        stats = self.nodes[name]
        return max_share * self.scaled(stats.best) + (1 - max_share) * self.scaled(stats.mean)

    def expandable(self, name: str, dead_end: int = DEAD_END) -> bool:
        """Whether a child may be made here: correct, not given up by anyone. A pinned node has no dead end."""
        stats = self.nodes[name]
        if stats.row.state != "correct" or stats.row.pruned or stats.row.exhausted:
            return False
        return stats.row.pinned or stats.failed_in_a_row < dead_end

    def open(self, name: str, stagnation: int = STAGNATION) -> bool:
        """Whether the subtree may be entered: not pruned, not failed, not stagnating."""
        stats = self.nodes[name]
        if stats.row.pruned or stats.row.state != "correct":
            return False
        stagnates = stats.visits >= stagnation and stats.reward is not None and stats.best <= stats.reward
        return stats.row.pinned or not stagnates

    def live(self, name: str, dead_end: int = DEAD_END, stagnation: int = STAGNATION) -> set[str]:
        """Nodes at or below `name` from which something expandable can be reached."""
        found: set[str] = set()
        for node in self._bottom_up():
            if node != ROOT and not self.open(node, stagnation):
                continue
            if (node != ROOT and self.expandable(node, dead_end)) or any(c in found for c in self.nodes[node].children):
                found.add(node)
        return found

    def best_node(self) -> str:
        """The fastest correct node, the older one on a tie; the virtual root when there is none."""
        correct = [
            (s.reward, -s.order, n)
            for n, s in self.nodes.items()
            if n != ROOT and s.reward is not None and not s.row.pruned
        ]
        return max(correct)[2] if correct else ROOT

    def statistics(self, max_share: float = 0.5) -> dict[str, tuple[int, float | None]]:
        """Visits and value of every node, for lists."""
        return {n: (s.visits, self.quality(n, max_share)) for n, s in self.nodes.items() if n != ROOT}
