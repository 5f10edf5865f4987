"""Kernel Forge's selection rule (arXiv 2607.24762, constants as in its published code), kept for comparison.

    score(child) = best_subtree_ms - C sqrt(ln N_parent / n_child)     the lowest wins, C = 1
    a node may get a child while  children <= floor(visits^e),  e = 0.5 - 0.2 min(1, R / 1000),  R = visits of its root
    a child is skipped when visits >= 10 and best_subtree_ms >= its own ms
    several roots: each is descended; the first node that may get a child wins, else the leaf with the lowest best_subtree_ms

visits start at 1 and grow by 1 with every finished descendant; failed candidates are leaves that are never entered; nodes
with a child in flight are left out (there is no virtual loss). Its known weakness is part of it: values are raw
milliseconds, so for microsecond kernels exploration swamps everything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from forge_tui.search.tree import CORRECT, NEVER, PENDING, ROOT, Tree

SKIP_VISITS = 10
EXPONENT_START, EXPONENT_FALL = 0.5, 0.2


@dataclass(frozen=True)
class Found:
    """Where the rule ends. widens: the node may get a child under the rule; False: it was forced."""

    index: int
    widens: bool
    why: str
    numbers: dict[str, float]


class KernelForge:
    """The rule over one tree, whose times are in microseconds."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def choose(self) -> Found | None:
        """The node to expand; None while no root has anything correct."""
        forced: list[Found] = []
        for root in self._tree.kids[ROOT]:
            if not self._enterable(root):
                continue
            found = self._descend(root)
            if found is not None and found.widens:
                return found
            if found is not None:
                forced.append(found)
        return min(forced, key=lambda f: (self._best_ms(f.index), self._tree.order[f.index]), default=None)

    def _descend(self, root: int) -> Found | None:
        """First node on the way down that may widen, else the deepest one, forced. Where everything below a child is in
        flight the next child is tried, so that parallel workers find different nodes.
        """
        tree, exponent = self._tree, self.exponent(root)
        stack = [root]
        while stack:
            i = stack.pop()
            if i < 0:  # all children of ~i came to nothing
                if self._free(~i):
                    return self._found(~i, False, "no valid child, so it widens")
                continue
            children = sum(tree.stats[k].state != PENDING for k in tree.kids[i] if not tree.stats[k].pruned)
            limit = math.floor(tree.visits[i] ** exponent + 1e-9)
            if children <= limit and self._free(i):
                return self._found(i, True, f"{children} children <= floor({tree.visits[i]}^{exponent:.3f})")
            kids = [k for k in tree.kids[i] if self._enterable(k) and not self._skipped(k)]
            kids.sort(key=lambda k: (self.score(k), tree.order[k]), reverse=True)
            stack += [~i, *kids]
        return None

    def _found(self, i: int, widens: bool, why: str) -> Found:
        numbers = {"best_ms": self._best_ms(i), "visits": float(self._tree.visits[i])}
        if self._tree.parent[i] != ROOT:
            numbers["score_ms"] = self.score(i)
        return Found(i, widens, why, numbers)

    def exponent(self, root: int) -> float:
        """Widening exponent, by the visits of the root."""
        share = min(1.0, self._tree.visits[root] / self._tree.parameters.forge_annealing)
        return EXPONENT_START - EXPONENT_FALL * share

    def score(self, i: int) -> float:
        """Lower is better. Milliseconds."""
        tree = self._tree
        bonus = math.sqrt(math.log(tree.visits[tree.parent[i]]) / tree.visits[i])
        return self._best_ms(i) - tree.parameters.forge_c * bonus

    def _best_ms(self, i: int) -> float:
        return self._tree.fastest[i] / 1000

    def _enterable(self, i: int) -> bool:
        """Something correct lies here, nothing here is pruned, and the node itself is not waiting for its own result."""
        stat = self._tree.stats[i]
        return not stat.pruned and stat.state != PENDING and self._tree.fastest[i] < NEVER

    def _free(self, i: int) -> bool:
        tree = self._tree
        in_flight = any(tree.stats[k].state == PENDING and not tree.stats[k].pruned for k in tree.kids[i])
        return (
            tree.stats[i].state == CORRECT and not tree.stats[i].exhausted and not tree.duplicate(i) and not in_flight
        )

    def _skipped(self, i: int) -> bool:
        tree = self._tree
        own = tree.stats[i].time_us
        below = tree.fastest_below[i]
        return tree.visits[i] >= SKIP_VISITS and own is not None and min(own, below) >= own
