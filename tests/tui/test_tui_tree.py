"""The tree model against a naive one, under any order of insertions, folds and filters."""

from __future__ import annotations

from dataclasses import replace

from fake_source import FakeSource
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.records.views import NodeRow
from forge_tui.tui.tree_model import NO_NODE, TreeModel


def node(number: int, parent: int, state: str = "correct") -> NodeRow:
    parent_id = f"n{parent}" if parent >= 0 else ""
    return NodeRow(f"n{number}", parent_id, "c1", number, state, "", None, None, None, False, None, 0, None, 1, "")


def naive(model: TreeModel, kept: set[int] | None) -> list[int]:
    """What should show, straight from the definition."""
    out: list[int] = []

    def walk(n: int) -> None:
        if kept is not None and n not in kept:
            return
        out.append(n)
        if model.open[n]:
            for child in model.children[n]:
                walk(child)

    for root in model.roots:
        walk(root)
    return out


def kept_by(model: TreeModel, wanted: str) -> set[int]:
    kept: set[int] = set()
    for n, row in enumerate(model.rows):
        if row.state == wanted:
            while n != NO_NODE and n not in kept:
                kept.add(n)
                n = model.parent[n]
    return kept


def check(model: TreeModel, kept: set[int] | None) -> None:
    shown = naive(model, kept)
    assert model.shown == shown
    for row, n in enumerate(shown):
        assert model.row_of(n) == row
        below = 1
        while row + below < len(shown) and model.depth[shown[row + below]] > model.depth[n]:
            below += 1
        assert model.visible[n] == below


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 10_000), st.sampled_from(["correct", "rejected", "baseline"])),
        st.tuples(st.just("batch"), st.integers(1, 60), st.just("correct")),
        st.tuples(st.just("toggle"), st.integers(0, 10_000), st.just("")),
        st.tuples(st.just("filter"), st.integers(0, 2), st.just("")),
        st.tuples(st.just("change"), st.integers(0, 10_000), st.sampled_from(["correct", "rejected"])),
        st.tuples(st.just("reveal"), st.integers(0, 10_000), st.just("")),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_shown_rows_and_visible_counts_agree_with_the_definition(plan: list[tuple[str, int, str]]) -> None:
    model = TreeModel([node(0, -1)])
    wanted: str | None = None
    for what, number, state in plan:
        size = len(model)
        if what == "add":
            model.upsert([node(size, number % size if number % 7 else -1, state)])
        elif what == "batch":
            model.upsert([node(size + k, (number * k) % (size + k)) for k in range(number)])
        elif what == "toggle":
            model.toggle(number % size)
        elif what == "filter":
            wanted = (None, "rejected", "correct")[number]
            model.set_filter(None if wanted is None else lambda row, w=wanted: row.state == w)
        elif what == "change":
            model.upsert([replace(model.rows[number % size], state=state)])
            if wanted is not None:
                model.rebuild()
        else:
            model.reveal(number % size)
        check(model, None if wanted is None else kept_by(model, wanted))


def test_a_parent_with_thousands_of_children_takes_more_without_losing_place() -> None:
    model = TreeModel([node(0, -1), *(node(k, 0) for k in range(1, 5001))])
    assert len(model.shown) == 5001
    _, first = model.upsert([node(5001, 0), node(5002, 1)])
    assert first == 0
    assert model.shown[2] == 5002 and model.shown[-1] == 5001


def test_one_long_chain_needs_no_recursion() -> None:
    model = TreeModel([node(k, k - 1) for k in range(20_000)])
    assert len(model.shown) == 20_000
    flags, depth = model.guide_flags(19_999, 12)
    assert len(flags) == 12 and depth == 19_999
    model.toggle(0)
    assert model.shown == [0]
    assert model.reveal(19_999) == 19_999


def test_roots_hang_under_the_baseline() -> None:
    model = TreeModel([node(0, -1, "baseline"), node(1, -1), node(2, 1)])
    assert model.parent == [NO_NODE, 0, 1]


def test_best_prefers_a_confirmed_champion_over_a_faster_provisional_node() -> None:
    rows = list(FakeSource(cards=1, nodes=60).nodes("c1"))
    champion = next(r for r in rows if r.state == "champion")
    faster = replace(champion, node_id="n99", state="correct", speedup=99.0, confirmed=False)
    model = TreeModel([*rows, faster])
    assert model.rows[model.best()] is champion
    assert TreeModel([r for r in rows if r is not champion] + [faster]).best() == len(rows) - 1
