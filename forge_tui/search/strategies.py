"""Strategies: which node to expand next. Pure over a Tree; the registry is the only list of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from forge_tui.search.tree import ROOT, Tree


@dataclass(frozen=True)
class Constants:
    """Settings of the search (settings.schema Search). spent and budget: candidates of this card, for annealing.

    can_root: a new root could be made. The defaults are ours (research: no paper publishes them all).
    """

    c: float = 0.7
    widen_k: float = 1.0
    alpha_start: float = 0.5
    alpha_end: float = 0.3
    max_share: float = 0.5
    dead_end: int = 3
    stagnation: int = 10
    spent: int = 0
    budget: int = 24
    can_root: bool = True

    @property
    def alpha(self) -> float:
        """Widening exponent, annealed over the card's actual budget."""
        done = min(1.0, self.spent / self.budget) if self.budget else 1.0
        return self.alpha_start + (self.alpha_end - self.alpha_start) * done


@dataclass(frozen=True)
class Choice:
    """kind: "new root", "expand" (node says which) or "nothing". why: one line for people; numbers: what it rests on."""

    kind: str
    node: str = ""
    why: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


Strategy = Callable[[Tree, Constants], Choice]
NOTHING = Choice("nothing", why="no node can be expanded")


def cap(tree: Tree, name: str, k: Constants) -> int:
    """How many children a node may have now: progressive widening, more for good nodes, fewer after failures."""
    stats = tree.nodes[name]
    factor = k.widen_k
    if name != ROOT and _top_quartile(tree, name):
        factor *= 2
    if stats.failed_in_a_row >= 3:
        factor /= 2
    limit: int = math.floor(factor * stats.visits**k.alpha)
    return max(1, limit)


def _top_quartile(tree: Tree, name: str) -> bool:
    rewards = sorted(s.reward for n, s in tree.nodes.items() if n != ROOT and s.reward is not None)
    own = tree.nodes[name].reward
    return own is not None and len(rewards) >= 4 and own >= rewards[(3 * len(rewards)) // 4]


def uct(tree: Tree, k: Constants) -> Choice:
    """Upper confidence bound: quality + c sqrt(ln N / n)."""

    def score(parent: str, child: str) -> float:
        n, total = tree.nodes[child].visits, tree.nodes[parent].visits
        return tree.quality(child, k.max_share) + k.c * math.sqrt(math.log(max(total, 1)) / max(n, 1))

    return _descend(tree, k, score, "uct")


def puct(tree: Tree, k: Constants) -> Choice:
    """Quality + c P sqrt(N) / (1 + n), with priors from the proposers' calibrated hit rates."""

    def score(parent: str, child: str) -> float:
        siblings = tree.nodes[parent].children
        total = sum(max(tree.nodes[s].row.prior, 0.0) for s in siblings) or 1.0
        prior = max(tree.nodes[child].row.prior, 0.0) / total
        return tree.quality(child, k.max_share) + k.c * prior * math.sqrt(tree.nodes[parent].visits) / (
            1 + tree.nodes[child].visits
        )

    return _descend(tree, k, score, "puct")


def _descend(tree: Tree, k: Constants, score: Callable[[str, str], float], name: str) -> Choice:
    """Walk from the root; widen where the cap allows it, else go to the child with the highest score."""
    live = tree.live(ROOT, k.dead_end, k.stagnation)
    at = ROOT
    while True:
        stats = tree.nodes[at]
        children = [c for c in stats.children if c in live]
        made = len(stats.children) + tree.making.get(at, 0)
        may = k.can_root if at == ROOT else tree.expandable(at, k.dead_end)
        if may and (made < cap(tree, at, k) or not children):
            return _here(tree, at, name, made, cap(tree, at, k))
        if not children:
            return NOTHING
        at = max(children, key=lambda c: (score(at, c), -tree.nodes[c].order))


def _here(tree: Tree, at: str, name: str, made: int, limit: int) -> Choice:
    if at == ROOT:
        return Choice("new root", "", f"{name}: {made} roots, up to {limit} now", {"roots": made, "cap": limit})
    stats = tree.nodes[at]
    quality = tree.quality(at)
    why = f"{name}: value {quality:.2f}, {stats.visits} visits, {made} children, up to {limit} now"
    return Choice("expand", at, why, {"value": quality, "visits": stats.visits, "children": made, "cap": limit})


def greedy(tree: Tree, k: Constants) -> Choice:
    """Always the fastest node that can still be expanded; a root while there is none."""
    open_nodes = [
        (s.reward, -s.order, n)
        for n, s in tree.nodes.items()
        if n != ROOT and s.reward is not None and tree.expandable(n, k.dead_end)
    ]
    if open_nodes:
        reward, _, name = max(open_nodes)
        return Choice("expand", name, f"greedy: fastest so far, {math.exp(reward):.2f}x", {"speedup": math.exp(reward)})
    return Choice("new root", why="greedy: nothing correct to build on") if k.can_root else NOTHING


def best_of_n(tree: Tree, k: Constants) -> Choice:
    """Independent drafts only: the control that every search has to beat."""
    if not k.can_root:
        return NOTHING
    made = len(tree.nodes[ROOT].children) + tree.making.get(ROOT, 0)
    return Choice("new root", why=f"best of n: draft {made + 1}", numbers={"roots": made})


def kernel_forge(tree: Tree, k: Constants) -> Choice:
    """Kernel Forge's rule as its code has it (April 2026): lowest (best subtree ms - C sqrt(ln N / n)), C = 1.

    A node may have children while their number <= floor(visits^e), e falling from 0.5 to 0.3 over 1000 root visits;
    a child is skipped at 10 visits without a better result below. Kept raw in milliseconds on purpose, for comparison.
    """
    roots = sorted(tree.nodes[ROOT].children, key=lambda c: tree.nodes[c].order)
    exponent = 0.5 - 0.2 * min(1.0, tree.nodes[ROOT].visits / 1000)
    best_leaf: tuple[float, int, str] | None = None
    for root in roots:
        if not tree.expandable(root, dead_end=1 << 30):
            continue
        at, value = _kf_descend(tree, root, exponent)
        if len(tree.nodes[at].children) + tree.making.get(at, 0) <= math.floor(tree.nodes[at].visits ** exponent):
            return Choice(
                "expand",
                at,
                f"kernel forge: best below {value:.4f} ms, {tree.nodes[at].visits} visits",
                {"best_ms": value},
            )
        leaf = (value, tree.nodes[at].order, at)
        best_leaf = min(best_leaf, leaf) if best_leaf else leaf
    if best_leaf is not None:
        return Choice(
            "expand", best_leaf[2], f"kernel forge: forced, best below {best_leaf[0]:.4f} ms", {"best_ms": best_leaf[0]}
        )
    return Choice("new root", why="kernel forge: no root yet") if k.can_root else NOTHING


def _kf_descend(tree: Tree, at: str, exponent: float) -> tuple[str, float]:
    while True:
        stats = tree.nodes[at]
        best_ms = _ms(tree, stats.best)
        if len(stats.children) + tree.making.get(at, 0) <= math.floor(stats.visits**exponent):
            return at, best_ms
        children = []
        for child in stats.children:
            below = tree.nodes[child]
            stagnates = below.visits >= 10 and below.reward is not None and below.best <= below.reward
            if tree.expandable(child, dead_end=1 << 30) and not stagnates:
                children.append(child)
        if not children:
            return at, best_ms
        at = min(children, key=lambda c: (_kf_score(tree, at, c), tree.nodes[c].order))


def _kf_score(tree: Tree, parent: str, child: str) -> float:
    below = tree.nodes[child]
    return _ms(tree, below.best) - math.sqrt(math.log(tree.nodes[parent].visits) / below.visits)


def _ms(tree: Tree, reward: float) -> float:
    return tree.base_us / 1e3 / math.exp(reward) if reward > -math.inf else math.inf


STRATEGIES: dict[str, Strategy] = {
    "uct": uct,
    "puct": puct,
    "greedy": greedy,
    "best_of_n": best_of_n,
    "kernel_forge": kernel_forge,
}
