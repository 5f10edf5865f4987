"""The rules that choose the next node. Each is a pure function of the tree, the budget and the priors.

Left out for now: beam and evolution. `Choice.parents` already carries more than one parent for a crossover.
A new strategy is a function with the signature of `Strategy` and an entry in STRATEGIES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from forge_tui.search.kernel_forge import KernelForge
from forge_tui.search.parameters import Budget
from forge_tui.search.tree import NEVER, ROOT, Tree

EXPAND, NEW_ROOT, NOTHING = "expand", "new root", "nothing"
DIGITS = 9  # scores are compared to 9 digits, so that the last bits of a sum can't decide


@dataclass(frozen=True)
class Choice:
    """What to do next on a card. node: the node to expand ("" otherwise). parents: all parents of the child with the
    first one repeated; several for a crossover. why: one line for the log. numbers: what the rule compared.
    """

    kind: str
    node: str = ""
    why: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    parents: tuple[str, ...] = ()


Priors = Mapping[str, float]
Strategy = Callable[[Tree, Budget, Priors], Choice]


def choose(name: str, tree: Tree, budget: Budget, priors: Priors | None = None) -> Choice:
    """Choose by the strategy's name. priors: node id -> expected log gain of expanding it (see `hits`), for puct.

    Raises ValueError for an unknown name.
    """
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}")
    if budget.used >= budget.limit:
        return Choice(NOTHING, why=f"the budget of {budget.limit} candidates is used")
    return STRATEGIES[name](tree, budget, priors or {})


def uct(tree: Tree, budget: Budget, priors: Priors) -> Choice:
    """Upper confidence bounds on the mixed back-up: Q + c sqrt(ln N_parent / n), with progressive widening."""

    def score(parent: int, kids: list[int]) -> list[float]:
        ln = math.log(max(1, tree.visits[parent] + tree.pending[parent]))
        c = tree.parameters.c
        return [tree.value(k) + c * math.sqrt(ln / max(1, tree.visits[k] + tree.pending[k])) for k in kids]

    return _descend(tree, budget, score)


def puct(tree: Tree, budget: Budget, priors: Priors) -> Choice:
    """UCT whose exploration term follows priors: Q + c P sqrt(N_parent) / (1 + n), P a softmax over the siblings."""

    def score(parent: int, kids: list[int]) -> list[float]:
        root = math.sqrt(tree.visits[parent] + tree.pending[parent])
        shares = prior_shares([priors.get(tree.stats[k].node_id) for k in kids], tree.parameters.prior_temperature)
        c = tree.parameters.c_puct
        return [
            tree.value(k) + c * p * root / (1 + tree.visits[k] + tree.pending[k])
            for k, p in zip(kids, shares, strict=True)
        ]

    return _descend(tree, budget, score)


def prior_shares(gains: list[float | None], temperature: float) -> list[float]:
    """Softmax of expected log gains; a node without a prior gets the mean of those that have one."""
    known = [g for g in gains if g is not None]
    usual = sum(known) / len(known) if known else 0.0
    filled = [usual if g is None else g for g in gains]
    top = max(filled, default=0.0)
    weights = [math.exp((g - top) / temperature) for g in filled]
    total = math.fsum(weights)
    return [w / total for w in weights]


def allowed_children(tree: Tree, i: int, progress: float) -> int:
    """Progressive widening: max(1, floor(k N^alpha)), alpha falling with the budget.

    Asymmetry: k is doubled for a node in the best quarter (or pinned) and halved while its last children keep failing.
    """
    p = tree.parameters
    k = p.widen_k
    if tree.top_quartile(i) or tree.stats[i].pinned:
        k *= 2
    if tree.failing_streak(i) >= p.dead_end:
        k /= 2
    alpha = p.alpha_start + (p.alpha_end - p.alpha_start) * progress
    return max(1, math.floor(k * math.pow(tree.visits[i] + tree.pending[i], alpha) + 1e-9))


def _descend(tree: Tree, budget: Budget, score: Callable[[int, list[int]], list[float]]) -> Choice:
    """Walk down from the baseline: stop where a node may widen, else follow the best-scored child that leads anywhere."""
    i = ROOT
    numbers: dict[str, float] = {}
    while True:
        may = tree.expandable(i) and (i != ROOT or budget.can_root)
        limit = allowed_children(tree, i, budget.progress)
        if may and tree.live[i] < limit:
            return _expand(tree, i, f"{tree.live[i]} of {limit} children", numbers)
        leading = [k for k in tree.kids[i] if tree.open[k] > 0 and not tree.stats[k].pruned]
        lively = [k for k in leading if not tree.stagnant(k)]
        if not lively and may:
            return _expand(tree, i, f"nothing below leads further, so it widens beyond {limit} children", numbers)
        kids = lively or leading
        if not kids:
            return Choice(NOTHING, why="no node can be expanded")
        scores = [round(s, DIGITS) for s in score(i, kids)]
        place = min(range(len(kids)), key=lambda n: (-scores[n], tree.order[kids[n]]))
        i = kids[place]
        numbers = {
            "score": scores[place], "value": round(tree.value(i), DIGITS),
            "visits": float(tree.visits[i]), "pending": float(tree.pending[i]),
        }  # fmt: skip


def _expand(tree: Tree, i: int, reason: str, numbers: dict[str, float]) -> Choice:
    if i == ROOT:
        return Choice(NEW_ROOT, why=f"a new design from scratch: {reason}", numbers=numbers)
    node = tree.stats[i].node_id
    return Choice(EXPAND, node, f"{_name(tree, i)}: {reason}", numbers, (node,))


def _name(tree: Tree, i: int) -> str:
    return f"{tree.stats[i].node_id} ({math.exp(tree.own[i]):.3g}x)"


def greedy(tree: Tree, budget: Budget, priors: Priors) -> Choice:
    """Always the fastest node that can still be expanded; a new root while nothing is correct."""
    # Best first over subtrees: a subtree can hold nothing faster than its fastest node.
    heap = [(tree.fastest[ROOT], False, tree.order[ROOT], ROOT)]
    while heap and heap[0][0] < NEVER:
        time, itself, _, i = heappop(heap)
        if itself:
            return _expand(tree, i, "the fastest that can be expanded", {"speedup": tree.base_us / time})
        if i != ROOT and tree.expandable(i):
            heappush(heap, (tree.stats[i].time_us or NEVER, True, tree.order[i], i))
        for k in tree.kids[i]:
            if not tree.stats[k].pruned:
                heappush(heap, (tree.fastest[k], False, tree.order[k], k))
    return _root_or_nothing(budget, "nothing is correct yet, or nothing correct can be expanded")


def best_of_n(tree: Tree, budget: Budget, priors: Priors) -> Choice:
    """Independent kernels from scratch: the control every search has to beat."""
    return _root_or_nothing(budget, f"independent sample {len(tree) + 1}")


def kernel_forge(tree: Tree, budget: Budget, priors: Priors) -> Choice:
    """Kernel Forge's rule with its constants, in raw milliseconds (see `kernel_forge`)."""
    found = KernelForge(tree).choose()
    if found is None:
        return _root_or_nothing(budget, "no correct kernel to start from")
    return _expand(tree, found.index, found.why, found.numbers)


def _root_or_nothing(budget: Budget, why: str) -> Choice:
    return (
        Choice(NEW_ROOT, why=why) if budget.can_root else Choice(NOTHING, why=f"{why}, and no proposer can start one")
    )


STRATEGIES: dict[str, Strategy] = {
    "uct": uct,
    "puct": puct,
    "greedy": greedy,
    "best_of_n": best_of_n,
    "kernel_forge": kernel_forge,
}
