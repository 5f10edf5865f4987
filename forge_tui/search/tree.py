"""Statistics of one card's revision tree, kept in arrays and updated along one path per change.

Index 0 is the baseline: the parent of all roots, reward 0. A node's statistics cover its subtree without pruned parts:
visits (finished candidates), pending ones, sum of rewards (failures count as `fail_reward`), fastest time. A pruned
subtree weighs nothing above it. Failed candidates and duplicates of an earlier source are never expanded, but a repair
below them is reached through them.

Invariants (tested): a tree updated step by step equals the tree built from the final rows; rows may come in any order.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from forge_tui.search.parameters import Parameters

PENDING, CORRECT, FAILED = "pending", "correct", "failed"
ROOT = 0
NEVER = math.inf


@dataclass(frozen=True)
class NodeStat:
    """One row. parent_id "" hangs under the baseline.

    state: "pending" (being written, compiled or judged), "correct" or "failed".
    time_us: measured time of a correct candidate, in the unit of the tree's baseline. exhausted: its proposer has nothing
    more to derive from it. digest: identity of source and plan; a later node with an earlier one's digest is a duplicate.
    """

    node_id: str
    parent_id: str = ""
    state: str = PENDING
    time_us: float | None = None
    pruned: bool = False
    pinned: bool = False
    exhausted: bool = False
    digest: str = ""

    def __post_init__(self) -> None:
        if self.state not in (PENDING, CORRECT, FAILED):
            raise ValueError(f"unknown node state {self.state!r}")
        if self.state == CORRECT and not (self.time_us is not None and 0 < self.time_us < math.inf):
            raise ValueError(f"node {self.node_id} is correct but has no positive time")


def order_of(node_id: str) -> tuple[int, str]:
    """Sort key in order of creation: "n9" before "n37"; ids without a number last."""
    found = re.search(r"\d+", node_id)
    return (int(found.group()) if found else 1 << 62, node_id)


class Tree:
    """One card's tree. base_us: the baseline's time, same unit as the rows'. Raises ValueError for rows that make no tree."""

    def __init__(self, base_us: float, parameters: Parameters | None = None) -> None:
        if not 0 < base_us < math.inf:
            raise ValueError("the baseline needs a positive time")
        self.base_us = base_us
        self.parameters = parameters or Parameters()
        self.stats: list[NodeStat] = [NodeStat("", "", CORRECT, base_us)]
        self.order: list[tuple[int, str]] = [(-1, "")]  # sort key in order of creation
        self.parent: list[int] = [-1]
        self.kids: list[list[int]] = [[]]
        self.own: list[float] = [0.0]  # reward of the node itself; NaN while pending
        self.visits: list[int] = [1]
        self.pending: list[int] = [0]
        self.total: list[float] = [0.0]
        self.fastest: list[float] = [NEVER]  # the baseline is not a candidate
        self.fastest_below: list[float] = [NEVER]
        self.open: list[int] = [1]  # nodes of the subtree that may get a child, widening aside
        self.pins: list[int] = [0]
        self.live: list[int] = [0]  # children that are not pruned
        self.failures: list[int] = [0]  # of those, failed
        self.rewards: list[float] = []  # of correct nodes that count, sorted
        self._index: dict[str, int] = {"": ROOT}
        self._owner: dict[str, str] = {}  # digest -> the oldest node that has it

    @classmethod
    def from_rows(cls, rows: Iterable[NodeStat], base_us: float, parameters: Parameters | None = None) -> Tree:
        """Build the tree from all rows of a card, given in any order."""
        tree = cls(base_us, parameters)
        waiting: dict[str, list[NodeStat]] = {}
        for row in sorted(rows, key=lambda r: order_of(r.node_id)):
            tree._owner.setdefault(row.digest, row.node_id)
            waiting.setdefault(row.parent_id, []).append(row)
        ready = waiting.pop("", [])
        while ready:
            following: list[NodeStat] = []
            for row in ready:
                tree._append(row)
                following += waiting.pop(row.node_id, [])
            ready = following
        if waiting:
            lost = min(waiting)
            raise ValueError(f"node {waiting[lost][0].node_id} names a parent {lost} that is not in the tree")
        for i in reversed(range(len(tree.stats))):  # parents come before their children
            tree._settle(i)
        tree._count_rewards(ROOT, 1)
        return tree

    # Reading.

    def __len__(self) -> int:
        return len(self.stats) - 1

    def index(self, node_id: str) -> int:
        """Index of a node. Raises KeyError."""
        return self._index[node_id]

    def reward(self, time_us: float) -> float:
        """Natural log of the speed-up, to 12 digits: a change of unit must not show in the last bit."""
        return round(math.log(self.base_us / time_us), 12)

    def best(self) -> NodeStat | None:
        """The fastest correct node that is not pruned; the older one of equals."""
        if self.fastest_below[ROOT] == NEVER:
            return None
        i = ROOT
        while self.fastest_below[i] == self.fastest[i] and not (i != ROOT and self._time(i) == self.fastest[i]):
            i = next(k for k in self.kids[i] if not self.stats[k].pruned and self.fastest[k] == self.fastest[i])
        return self.stats[i]

    def value(self, i: int) -> float:
        """Mixed back-up of a subtree, scaled to 0..1 within this tree: share * best + (1 - share) * mean.

        Candidates in flight count as failures in the mean, so that parallel workers spread out.
        """
        p = self.parameters
        low = min(p.fail_reward, self.rewards[0]) if self.rewards else p.fail_reward
        high = max(0.0, self.rewards[-1]) if self.rewards else 0.0
        count = self.visits[i] + self.pending[i]
        mean = (self.total[i] + p.fail_reward * self.pending[i]) / count
        best = self.reward(self.fastest[i]) if self.fastest[i] < NEVER else p.fail_reward
        mixed = p.max_share * best + (1 - p.max_share) * mean
        return (mixed - low) / (high - low) if high > low else 0.5

    def expandable(self, i: int) -> bool:
        """The node may get a child at all: correct, not exhausted, no dead end."""
        stat = self.stats[i]
        if stat.state != CORRECT or stat.exhausted or self.duplicate(i):
            return False
        return i == ROOT or stat.pinned or not self.dead_end(i)

    def dead_end(self, i: int) -> bool:
        """Enough children failed and nothing below is correct."""
        return self.failures[i] >= self.parameters.dead_end and self.fastest_below[i] == NEVER

    def stagnant(self, i: int) -> bool:
        """Many visits and nothing below is better than the node itself."""
        if i == ROOT or self.pins[i] or self.visits[i] < self.parameters.stagnation:
            return False
        if self.stats[i].state != CORRECT:
            return self.fastest_below[i] == NEVER
        return (
            self.fastest_below[i] == NEVER or self.reward(self.fastest_below[i]) <= self.own[i] + self.parameters.gain
        )

    def duplicate(self, i: int) -> bool:
        """An older node has the same digest: the proposer had nothing new to say, so it counts as a failure."""
        stat = self.stats[i]
        return bool(stat.digest) and self._owner[stat.digest] != stat.node_id

    def attached(self, i: int) -> bool:
        """Neither the node nor one above it is pruned."""
        while i > ROOT:
            if self.stats[i].pruned:
                return False
            i = self.parent[i]
        return True

    def top_quartile(self, i: int) -> bool:
        """The node itself is among the best quarter of at least four correct ones."""
        n = len(self.rewards)
        return n >= 4 and self.stats[i].state == CORRECT and i != ROOT and self.own[i] >= self.rewards[(3 * n) // 4]

    def failing_streak(self, i: int) -> int:
        """Children in a row, latest first, that failed."""
        streak = 0
        for k in reversed(self.kids[i]):
            state = self._state(k)
            if self.stats[k].pruned or state == PENDING:
                continue
            if state != FAILED:
                break
            streak += 1
        return streak

    def since_gain(self) -> int:
        """Finished candidates since the last one that beat all before it by `gain` (from the baseline on)."""
        best, streak = 0.0, 0
        for i in sorted(range(1, len(self.stats)), key=self.order.__getitem__):
            state = self._state(i)
            if state == PENDING:
                continue
            streak += 1
            if state == CORRECT and self.own[i] > best + self.parameters.gain:
                best, streak = self.own[i], 0
        return streak

    # Changing.

    def put(self, row: NodeStat) -> None:
        """Add a node, or replace what is known of it (result, pruned, pinned, exhausted). Costs one path to the root.

        Raises ValueError for an unknown or changed parent.
        """
        known = self._index.get(row.node_id)
        if known is None:
            if row.parent_id not in self._index:
                raise ValueError(f"node {row.node_id} names a parent {row.parent_id} that is not in the tree")
            self._owner.setdefault(row.digest, row.node_id)
            i = self._append(row)
            self._settle(i)
            self._move(i, 1)
        else:
            if known == ROOT or self.stats[known].parent_id != row.parent_id:
                raise ValueError(f"node {row.node_id or 'baseline'} can't change its parent")
            self._replace(known, row)

    def remove_leaf(self, node_id: str) -> None:
        """Forget a pending placeholder (a proposal that came to nothing). Raises ValueError when it has children."""
        i = self._index[node_id]
        if i == ROOT or self.kids[i]:
            raise ValueError(f"node {node_id or 'baseline'} is not a leaf")
        self._move(i, -1)
        self.kids[self.parent[i]].remove(i)
        # The slot stays, detached: indices of the others must not move.
        del self._index[node_id]
        self.stats[i] = NodeStat(node_id, self.stats[i].parent_id, pruned=True)

    def _replace(self, i: int, row: NodeStat) -> None:
        self._move(i, -1)
        self.stats[i] = row
        self._owner.setdefault(row.digest, row.node_id)
        self._settle(i)
        self._move(i, 1)

    def _append(self, row: NodeStat) -> int:
        if row.node_id in self._index:
            raise ValueError(f"node {row.node_id!r} appears twice")
        i = len(self.stats)
        self.stats.append(row)
        self.order.append(order_of(row.node_id))
        self.parent.append(self._index[row.parent_id])
        for column in (self.visits, self.pending, self.open, self.pins, self.live, self.failures):
            column.append(0)
        self.total.append(0.0)
        self.own.append(math.nan)
        self.fastest.append(NEVER)
        self.fastest_below.append(NEVER)
        self.kids.append([])
        self._index[row.node_id] = i
        insort(self.kids[self.parent[i]], i, key=self.order.__getitem__)
        return i

    def _settle(self, i: int) -> None:
        """Recompute a node's own columns from its children's. Ancestors are not touched."""
        live = [k for k in self.kids[i] if not self.stats[k].pruned]
        state = self._state(i)
        fail = self.parameters.fail_reward
        self.own[i] = self.reward(self.stats[i].time_us or self.base_us) if state == CORRECT else fail
        self.visits[i] = (state != PENDING) + sum(self.visits[k] for k in live)
        self.pending[i] = (state == PENDING) + sum(self.pending[k] for k in live)
        self.total[i] = (0.0 if state == PENDING else self.own[i]) + math.fsum(self.total[k] for k in live)
        self.pins[i] = self.stats[i].pinned + sum(self.pins[k] for k in live)
        self.live[i] = len(live)
        self.failures[i] = sum(self._state(k) == FAILED for k in live)
        self.fastest_below[i] = min((self.fastest[k] for k in live), default=NEVER)
        self.fastest[i] = min(self._time(i), self.fastest_below[i])
        self.open[i] = self.expandable(i) + sum(self.open[k] for k in live)

    def _move(self, i: int, sign: int) -> None:
        """Add the subtree of i to its ancestors (sign 1) or take it out (-1), up to the first pruned one."""
        if i == ROOT or self.stats[i].pruned:
            return
        if self.attached(i):
            self._count_rewards(i, sign)
        counts = [(c, sign * c[i]) for c in (self.visits, self.pending, self.pins)]
        total, opened = sign * self.total[i], sign * self.open[i]
        before, after = (NEVER, self.fastest[i]) if sign > 0 else (self.fastest[i], NEVER)
        child = i
        while (up := self.parent[child]) >= 0:
            was_open = self.expandable(up)
            if child == i:
                self.live[up] += sign
                self.failures[up] += sign * (self._state(i) == FAILED)
            for column, change in counts:
                column[up] += change
            self.total[up] += total
            if after <= self.fastest_below[up]:
                self.fastest_below[up] = after
            elif before == self.fastest_below[up]:
                gone = i if sign < 0 and child == i else -1
                rest = (self.fastest[k] for k in self.kids[up] if k != gone and not self.stats[k].pruned)
                self.fastest_below[up] = min(rest, default=NEVER)
            before, after = self.fastest[up], min(self._time(up), self.fastest_below[up])
            self.fastest[up] = after
            opened += self.expandable(up) - was_open
            self.open[up] += opened
            if self.stats[up].pruned:
                return
            child = up

    def _count_rewards(self, i: int, sign: int) -> None:
        """Enter (or take out) the rewards of the correct nodes in the subtree of i that count."""
        stack = [i]
        while stack:
            k = stack.pop()
            if k != ROOT and self._state(k) == CORRECT:
                if sign > 0:
                    insort(self.rewards, self.own[k])
                else:
                    del self.rewards[bisect_left(self.rewards, self.own[k])]
            stack += [c for c in self.kids[k] if not self.stats[c].pruned]

    def _state(self, i: int) -> str:
        return FAILED if self.duplicate(i) else self.stats[i].state

    def _time(self, i: int) -> float:
        if i == ROOT or self._state(i) != CORRECT:
            return NEVER
        return self.stats[i].time_us or NEVER
