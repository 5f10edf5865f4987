"""Strategies by hand-computed examples; priors; stop rules; the split of the budget over cards."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.records import opclass
from forge_tui.search.allocation import CardState, hit_rate, next_card, rank
from forge_tui.search.hits import HitRate, calibrated, expected_gain, node_priors
from forge_tui.search.kernel_forge import KernelForge
from forge_tui.search.parameters import Budget
from forge_tui.search.stop import Progress, StopRules, stop
from forge_tui.search.strategies import EXPAND, NEW_ROOT, NOTHING, choose, prior_shares
from forge_tui.search.tree import CORRECT, FAILED, NodeStat, Tree

BUDGET = Budget(10, 50)


def ok(name: str, parent: str, ms: float) -> NodeStat:
    return NodeStat(name, parent, CORRECT, ms * 1000)


def test_kernel_forge_reproduces_its_rule_by_hand():
    # Root n1 has 5 visits: itself and n2..n5. e = 0.5 - 0.2 * 5 / 1000 = 0.499, floor(5^0.499) = 2, so with three children
    # it may not widen. Scores of the children, ln 5 = 1.6094:
    #   n2: best of subtree 3 ms, 2 visits: 3 - sqrt(1.6094 / 2) = 2.1029
    #   n3: 3.5 ms, 1 visit:                3.5 - sqrt(1.6094)   = 2.2314
    #   n5: failed: never entered
    # n2 wins; it has 1 child <= floor(2^0.499) = 1, so it gets the next one.
    tree = Tree.from_rows(
        [ok("n1", "", 5), ok("n2", "n1", 4), ok("n3", "n1", 3.5), ok("n4", "n2", 3), NodeStat("n5", "n1", FAILED)],
        5000.0,
    )
    rule = KernelForge(tree)
    assert rule.exponent(1) == pytest.approx(0.499)
    assert rule.score(tree.index("n2")) == pytest.approx(3 - math.sqrt(math.log(5) / 2))
    assert rule.score(tree.index("n3")) == pytest.approx(3.5 - math.sqrt(math.log(5)))
    assert choose("kernel_forge", tree, BUDGET).node == "n2"
    # In microseconds instead, exploration swamps the values: the preset keeps that known weakness.
    tiny = Tree.from_rows(
        [NodeStat(s.node_id, s.parent_id, s.state, s.time_us and s.time_us / 1e5) for s in tree.stats[1:]], 0.05
    )
    assert choose("kernel_forge", tiny, BUDGET).node == "n3"


def test_kernel_forge_allows_one_child_more_than_the_nominal_cap():
    assert choose("kernel_forge", Tree.from_rows([ok("n1", "", 5)], 5000.0), BUDGET).node == "n1"
    two = Tree.from_rows([ok("n1", "", 5), ok("n2", "n1", 4)], 5000.0)
    assert choose("kernel_forge", two, BUDGET).node == "n1"  # 1 child <= floor(sqrt 2) = 1


def test_kernel_forge_skips_stagnant_children_and_takes_the_first_root_that_may_widen():
    rows = [ok("n1", "", 5), ok("n2", "n1", 1.0)]
    rows += [ok(f"n{n}", "n2", 2.0) for n in range(3, 13)]
    rows += [ok("n20", "n1", 4.0), ok("n21", "n1", 4.0), ok("n22", "n1", 4.0), ok("n23", "n1", 4.0)]
    tree = Tree.from_rows(rows, 5000.0)
    assert choose("kernel_forge", tree, BUDGET).node in ("n20", "n21", "n22", "n23")
    assert choose("kernel_forge", Tree.from_rows([ok("n1", "", 9), ok("n2", "", 1)], 5000.0), BUDGET).node == "n1"


def test_kernel_forge_leaves_nodes_with_a_child_in_flight_alone():
    rows = [ok("n1", "", 5), ok("n2", "", 4), NodeStat("n3", "n1")]
    assert choose("kernel_forge", Tree.from_rows(rows, 5000.0), BUDGET).node == "n2"


def test_kernel_forge_starts_a_root_until_one_is_correct():
    assert choose("kernel_forge", Tree.from_rows([NodeStat("n1", "", FAILED)], 5000.0), BUDGET).kind == NEW_ROOT


def test_greedy_follows_the_fastest_and_best_of_n_never_expands():
    tree = Tree.from_rows([ok("n1", "", 5), ok("n2", "n1", 3), ok("n3", "n2", 4)], 6000.0)
    assert choose("greedy", tree, BUDGET).node == "n2"
    assert choose("best_of_n", tree, BUDGET).kind == NEW_ROOT
    assert choose("best_of_n", tree, Budget(10, 50, can_root=False)).kind == NOTHING


def test_puct_prefers_the_sibling_whose_advice_came_true_before():
    tree = Tree.from_rows([ok("n1", "", 5), ok("n2", "", 5)], 6000.0)
    rates = {"vector loads": HitRate(1, 40), "one pass": HitRate(12, 20)}
    advice = {"n1": ("vector loads", 1.5), "n2": ("one pass", 1.5)}
    budget = Budget(10, 50, can_root=False)
    assert choose("puct", tree, budget, node_priors(advice, rates)).node == "n2"
    assert choose("puct", tree, budget).node == "n1"


@given(st.lists(st.one_of(st.none(), st.floats(-5, 5)), min_size=1, max_size=20))
def test_prior_shares_sum_to_one(gains):
    assert math.fsum(prior_shares(gains, 0.25)) == pytest.approx(1.0)


@given(st.integers(0, 50), st.integers(0, 50))
def test_calibrated_rates_stay_between_prior_and_record(hits, misses):
    rate = calibrated(HitRate(hits, hits + misses))
    record = hits / (hits + misses) if hits + misses else 0.1
    assert min(0.1, record) - 1e-12 <= rate <= max(0.1, record) + 1e-12
    assert expected_gain(100.0, HitRate(hits, hits + misses)) == pytest.approx(math.log(4) * rate)


def test_an_unknown_strategy_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'beam'; known: uct, puct"):
        choose("beam", Tree(1.0), BUDGET)


def test_every_choice_says_why():
    tree = Tree.from_rows([ok("n1", "", 5)], 6000.0)
    for name in ("uct", "puct", "greedy", "best_of_n", "kernel_forge"):
        assert choose(name, tree, BUDGET).why
    assert choose("uct", tree, Budget(1, 50, can_root=False)).kind == EXPAND


# Stop rules.


def progress(**changed: object) -> Progress:
    values: dict[str, object] = dict(
        attempts=5, limit=40, since_gain=2, eager_us=100.0, best_us=60.0, floor_us=20.0, share=0.2
    )
    return Progress(**{**values, **changed})  # type: ignore[arg-type]


def test_each_stop_rule_fires_for_its_reason_and_says_so():
    assert stop(progress()) is None
    assert stop(progress(attempts=40)).rule == "budget"
    assert stop(progress(best_us=24.9)).rule == "speed of light"
    assert "eager itself" in stop(progress(eager_us=22.0, best_us=None)).line
    assert stop(progress(since_gain=12)).rule == "no gain"
    assert stop(progress(share=0.004)).rule == "amdahl"


def test_the_amdahl_rule_counts_what_is_left_not_what_was_there():
    assert stop(progress(share=0.02, best_us=40.0, floor_us=20.0)).rule == "amdahl"  # 0.02 * 20/100 = 0.4%
    assert stop(progress(share=0.05, best_us=40.0, floor_us=20.0)) is None


def test_unknown_numbers_switch_a_rule_off_instead_of_deciding():
    assert stop(progress(floor_us=None, share=None, eager_us=None, best_us=None)) is None
    assert stop(progress(floor_us=None, best_us=24.0)) is None


@given(st.floats(1e-3, 1e3))
def test_stop_rules_do_not_depend_on_the_unit_of_time(factor):
    for p in (progress(), progress(best_us=24.0), progress(share=0.004)):
        scaled = progress(
            best_us=p.best_us * factor, eager_us=p.eager_us * factor, floor_us=p.floor_us * factor, share=p.share
        )
        assert (stop(p, StopRules()) is None) == (stop(scaled, StopRules()) is None)


# Budget over cards.


def card(name: str, **changed: object) -> CardState:
    values: dict[str, object] = dict(share=0.2, eager_us=100.0, floor_us=20.0, attempts=10)
    return CardState(name, **{**values, **changed})  # type: ignore[arg-type]


def test_the_next_attempt_goes_where_the_model_gains_most_per_cost():
    assert next_card([card("a", share=0.1), card("b", share=0.3)]).card_id == "b"
    assert next_card([card("a"), card("b", floor_us=90.0)]).card_id == "a"
    assert next_card([card("a"), card("b", op_class=opclass.MATMUL)]).card_id == "a"
    assert next_card([card("a", cost=1.0), card("b", cost=30.0)]).card_id == "a"
    assert next_card([card("a", hits=0, attempts=30), card("b", hits=6, attempts=30)]).card_id == "b"


def test_a_card_below_its_reserve_goes_first_and_cards_take_turns_there():
    cards = [card("a", share=0.9), card("b", share=0.001, attempts=1), card("c", share=0.001, attempts=0)]
    assert [a.card_id for a in rank(cards)] == ["c", "b", "a"]
    assert "reserve" in next_card(cards).why


def test_attempts_in_flight_count_so_that_workers_spread_over_cards():
    busy = [card("a", share=0.25, in_flight=12), card("b", share=0.2)]
    assert next_card(busy).card_id == "b"
    assert hit_rate(card("a", in_flight=12)) < hit_rate(card("a"))


def test_done_cards_get_nothing_and_no_live_card_gives_none():
    assert next_card([card("a", done="speed of light")]) is None
    assert next_card([card("a", waiting=False), card("b", done="budget")]) is None


def test_a_card_with_an_unknown_share_gets_its_reserve_and_no_more():
    cards = [card("a", share=None, attempts=3), card("b", share=0.01)]
    assert next_card(cards).card_id == "b"


@given(st.permutations([card(f"c{n}", share=s) for n, s in enumerate((0.1, 0.1, 0.3, 0.05))]))
def test_the_order_of_cards_does_not_matter(cards):
    assert [a.card_id for a in rank(cards)] == ["c2", "c0", "c1", "c3"]
