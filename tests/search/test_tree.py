"""The tree of one card: statistics, order independence, scale-freeness, rebuilding from rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.search.parameters import Budget, Parameters
from forge_tui.search.strategies import EXPAND, NOTHING, STRATEGIES, Choice, allowed_children, choose
from forge_tui.search.tree import CORRECT, FAILED, NEVER, PENDING, ROOT, NodeStat, Tree

BASE = 100.0
COLUMNS = ("visits", "pending", "fastest", "fastest_below", "open", "pins", "live", "failures")


@st.composite
def rows(draw: st.DrawFn, most: int = 40) -> list[NodeStat]:
    found: list[NodeStat] = []
    for n in range(draw(st.integers(0, most))):
        parent = draw(st.sampled_from(["", *(r.node_id for r in found)]))
        state = draw(st.sampled_from((CORRECT, CORRECT, FAILED, PENDING)))
        time = draw(st.floats(1.0, 1000.0)) if state == CORRECT else None
        flags = [draw(st.integers(0, 9)) == 0 for _ in range(3)]
        digest = draw(st.sampled_from(("", "", "", "a", "b")))
        found.append(NodeStat(f"n{n + 1}", parent, state, time, *flags, digest=digest))
    return found


def snapshot(tree: Tree) -> dict[str, tuple[object, ...]]:
    """Columns by node id. Sums to 9 digits: their last bits depend on the order of adding."""
    return {
        name: (*(getattr(tree, c)[i] for c in COLUMNS), round(tree.total[i], 9))
        for name, i in ((name, tree.index(name)) for name in ("", *(s.node_id for s in tree.stats[1:])))
    }


def picks(tree: Tree, used: int = 20) -> list[Choice]:
    return [choose(name, tree, Budget(used, 100)) for name in STRATEGIES]


@given(rows(), st.randoms(use_true_random=False))
@settings(max_examples=120, deadline=None)
def test_rows_in_any_order_give_the_same_choice(found, random):
    shuffled = list(found)
    random.shuffle(shuffled)
    assert picks(Tree.from_rows(found, BASE)) == picks(Tree.from_rows(shuffled, BASE))


@given(rows())
@settings(max_examples=120, deadline=None)
def test_a_tree_kept_up_to_date_equals_the_tree_rebuilt_from_its_rows(found):
    live = Tree(BASE)
    for row in found:  # each node arrives in flight, then its result, then the marks people put on it
        live.put(NodeStat(row.node_id, row.parent_id, digest=row.digest))
        live.put(NodeStat(row.node_id, row.parent_id, row.state, row.time_us, digest=row.digest))
    for row in reversed(found):
        live.put(row)
    rebuilt = Tree.from_rows(found, BASE)
    assert snapshot(live) == snapshot(rebuilt)
    assert live.rewards == sorted(rebuilt.rewards)
    assert picks(live) == picks(rebuilt)


@given(rows(), st.lists(st.tuples(st.integers(0, 39), st.booleans()), max_size=15))
@settings(max_examples=80, deadline=None)
def test_pruning_back_and_forth_leaves_no_trace(found, marks):
    live = Tree.from_rows(found, BASE)
    now = {r.node_id: r for r in found}
    for place, pruned in marks:
        if place < len(found):
            old = now[found[place].node_id]
            new = NodeStat(**{**old.__dict__, "pruned": pruned})
            now[old.node_id] = new
            live.put(new)
    assert snapshot(live) == snapshot(Tree.from_rows(now.values(), BASE))


@given(rows(), st.sampled_from((1e-3, 1e3, 0.5, 7.3)))
@settings(max_examples=120, deadline=None)
def test_microseconds_and_milliseconds_choose_the_same_node(found, factor):
    scaled = [NodeStat(**{**r.__dict__, "time_us": None if r.time_us is None else r.time_us * factor}) for r in found]
    names = [n for n in STRATEGIES if n != "kernel_forge"]  # that preset is in raw milliseconds by definition
    one, other = Tree.from_rows(found, BASE), Tree.from_rows(scaled, BASE * factor)
    for name in names:
        a, b = (choose(name, t, Budget(20, 100)) for t in (one, other))
        assert (a.kind, a.node) == (b.kind, b.node)


@given(rows(), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_only_correct_reachable_nodes_are_ever_expanded(found, used):
    tree = Tree.from_rows(found, BASE)
    parents = {r.node_id: r.parent_id for r in found}
    by_id = {r.node_id: r for r in found}
    for name in STRATEGIES:
        picked = choose(name, tree, Budget(used, 100))
        if picked.kind != EXPAND:
            continue
        assert picked.parents[0] == picked.node
        row = by_id[picked.node]
        assert row.state == CORRECT and not row.exhausted and not tree.duplicate(tree.index(picked.node))
        at = picked.node
        while at:
            assert not by_id[at].pruned
            at = parents[at]


@given(rows())
@settings(max_examples=100, deadline=None)
def test_a_node_above_its_widening_limit_is_only_chosen_when_nothing_below_leads_on(found):
    tree = Tree.from_rows(found, BASE)
    picked = choose("uct", tree, Budget(20, 100))
    i = ROOT if picked.kind == "new root" else tree.index(picked.node) if picked.node else -1
    if i >= 0 and tree.live[i] >= allowed_children(tree, i, 0.2):
        kids = [k for k in tree.kids[i] if not tree.stats[k].pruned]
        assert all(tree.open[k] == 0 or tree.stagnant(k) for k in kids)


@given(rows())
@settings(max_examples=60, deadline=None)
def test_best_is_the_fastest_live_correct_node(found):
    tree = Tree.from_rows(found, BASE)
    live = [
        r for i, r in enumerate(tree.stats) if i and r.state == CORRECT and tree.attached(i) and not tree.duplicate(i)
    ]
    best = tree.best()
    assert (best.time_us if best else NEVER) == min((r.time_us for r in live), default=NEVER)


def test_nothing_is_chosen_beyond_the_budget():
    assert choose("uct", Tree(BASE), Budget(10, 10)).kind == NOTHING


def test_rows_that_make_no_tree_are_refused_by_name():
    with pytest.raises(ValueError, match="n2 names a parent n9"):
        Tree.from_rows([NodeStat("n2", "n9")], BASE)
    with pytest.raises(ValueError, match="n2 names a parent n1"):
        Tree.from_rows([NodeStat("n1", "n2"), NodeStat("n2", "n1")], BASE)
    with pytest.raises(ValueError, match="no positive time"):
        NodeStat("n1", "", CORRECT)


def test_a_placeholder_that_came_to_nothing_leaves_no_trace():
    tree = Tree.from_rows([NodeStat("n1", "", CORRECT, 50.0)], BASE)
    before = snapshot(tree)
    tree.put(NodeStat("p1", "n1"))
    tree.remove_leaf("p1")
    after = {name: s for name, s in ((n, snapshot_one(tree, n)) for n in ("", "n1"))}
    assert after == before


def snapshot_one(tree: Tree, name: str) -> tuple[object, ...]:
    i = tree.index(name)
    return (*(getattr(tree, c)[i] for c in COLUMNS), round(tree.total[i], 9))


def test_mixed_backup_is_half_best_half_mean_scaled_to_the_tree():
    tree = Tree.from_rows(
        [NodeStat("n1", "", CORRECT, 50.0), NodeStat("n2", "n1", CORRECT, 25.0), NodeStat("n3", "n1", FAILED)], BASE
    )
    best, mean = math.log(4), (math.log(2) + math.log(4) - 0.5) / 3
    expected = (0.5 * best + 0.5 * mean + 0.5) / (math.log(4) + 0.5)
    assert tree.value(tree.index("n1")) == pytest.approx(expected)


def test_a_pending_candidate_weighs_like_a_failure_until_its_result_is_known():
    rows_ = [NodeStat("n1", "", CORRECT, 50.0), NodeStat("n2", "", CORRECT, 50.0)]
    tree = Tree.from_rows(rows_, BASE)
    assert tree.value(1) == tree.value(2)
    tree.put(NodeStat("n3", "n1"))
    assert tree.value(1) < tree.value(2)


def test_parallel_choices_spread_out():
    tree = Tree.from_rows([NodeStat(f"n{n}", "", CORRECT, 50.0) for n in range(1, 5)], BASE)
    seen = []
    for n in range(4):
        picked = choose("uct", tree, Budget(4 + n, 100, can_root=False))
        seen.append(picked.node)
        tree.put(NodeStat(f"n{10 + n}", picked.node))
    assert len(set(seen)) == 4


def test_three_failed_children_close_a_node_unless_it_is_pinned():
    rows_ = [NodeStat("n1", "", CORRECT, 50.0), *(NodeStat(f"n{n}", "n1", FAILED) for n in (2, 3, 4))]
    tree = Tree.from_rows(rows_, BASE)
    assert choose("uct", tree, Budget(4, 100, can_root=False)).kind == NOTHING
    tree.put(NodeStat("n1", "", CORRECT, 50.0, pinned=True))
    assert choose("uct", tree, Budget(4, 100, can_root=False)).node == "n1"


def test_a_repair_below_a_failed_node_can_be_reached_and_expanded():
    rows_ = [NodeStat("n1", "", FAILED), NodeStat("n2", "n1", CORRECT, 50.0)]
    assert choose("uct", Tree.from_rows(rows_, BASE), Budget(2, 100, can_root=False)).node == "n2"


def test_a_duplicate_counts_as_a_failure_and_is_never_expanded():
    rows_ = [NodeStat("n1", "", CORRECT, 50.0, digest="d"), NodeStat("n2", "", CORRECT, 40.0, digest="d")]
    tree = Tree.from_rows(rows_, BASE)
    assert tree.failures[ROOT] == 1
    assert choose("greedy", tree, Budget(2, 100)).node == "n1"


def test_a_subtree_that_never_beats_its_top_is_left():
    rows_ = [NodeStat("n1", "", CORRECT, 20.0), NodeStat("n2", "", CORRECT, 60.0)]
    rows_ += [NodeStat(f"n{n}", "n1", CORRECT, 30.0) for n in range(3, 13)]
    tree = Tree.from_rows(rows_, BASE)
    assert tree.stagnant(1)
    assert choose("uct", tree, Budget(12, 100, can_root=False)).node == "n2"


def test_widening_narrows_as_the_real_budget_is_used():
    rows_ = [NodeStat("n1", "", CORRECT, 50.0)] + [NodeStat(f"n{n}", "n1", CORRECT, 45.0) for n in range(2, 51)]
    tree = Tree.from_rows(rows_, BASE, Parameters())
    assert allowed_children(tree, 1, 0.0) == math.floor(math.sqrt(50))
    assert allowed_children(tree, 1, 1.0) == math.floor(50**0.3)


def test_good_nodes_may_have_twice_the_children_and_failing_ones_half():
    good = [NodeStat(f"n{n}", "", CORRECT, 100.0 - n) for n in range(1, 9)]
    below = [NodeStat(f"n{n}", "n8", CORRECT, 93.0) for n in range(20, 36)]
    tree = Tree.from_rows(good + below, BASE)
    i = tree.index("n8")
    assert not tree.top_quartile(tree.index("n1"))
    plain = math.floor(math.sqrt(17))
    assert allowed_children(tree, i, 0.0) in (plain, 2 * plain)
    tree.put(NodeStat("n36", "n8", CORRECT, 10.0))
    assert tree.top_quartile(tree.index("n36"))
    for n in (40, 41, 42):
        tree.put(NodeStat(f"n{n}", "n8", FAILED))
    assert tree.failing_streak(i) == 3
    assert allowed_children(tree, i, 0.0) <= math.floor(math.sqrt(21))


def test_since_gain_counts_from_the_last_real_improvement():
    times = (90.0, 60.0, 59.8, 61.0)
    rows_ = [NodeStat(f"n{n}", "", CORRECT, t) for n, t in enumerate(times, 1)] + [NodeStat("n5", "", FAILED)]
    assert Tree.from_rows(rows_, BASE).since_gain() == 3
