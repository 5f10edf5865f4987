"""Derived rows: each state follows from facts, step by step as from nothing."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows_for_tests import candidate, card, passed, rejected, timing, void

from forge_tui.records.judging import CardReady
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.problem import Problem
from forge_tui.records.verdict import Measurement, Verdict
from forge_tui.records.views import CARD_STATES, NODE_STATES, CardRow, NodeRow
from forge_tui.records.workload import Captured, Loaded, ModelVerdict, WorkloadSpec
from forge_tui.store.facts import NODE_NOTES
from forge_tui.store.reader import Reader
from forge_tui.store.session import Session
from forge_tui.store.store import Store


def node(store: Store, name: str) -> NodeRow:
    store.add_note("settled", "").result()
    return next(row for row in store.reader.nodes("c1") if row.node_id == name)


def row_of(store: Store, card_id: str = "c1") -> CardRow:
    store.add_note("settled", "").result()
    return next(row for row in store.reader.cards() if row.card_id == card_id)


def test_a_node_goes_from_queued_to_champion(store: Store) -> None:
    store.add_candidate(candidate("n1"))
    assert node(store, "n1").state == "queued"
    store.add_attempt("a", "n1", "judge", "started")
    assert (node(store, "n1").state, node(store, "n1").line) == ("running", "judge")
    store.add_attempt("a", "n1", "judge", "done", 1.0)
    assert node(store, "n1").state == "queued"
    store.add_verdict(passed("n1", 1.5))
    found = node(store, "n1")
    assert (found.state, found.speedup, found.confirmed) == ("correct", 1.5, False)
    store.add_verdict(passed("n1", 1.4, confirm=True))
    found = node(store, "n1")
    assert (found.state, found.speedup, found.confirmed, found.time_us) == ("champion", 1.4, True, 100 / 1.4)


def test_the_title_passes_to_a_better_confirmed_node_only(store: Store) -> None:
    for name in ("n1", "n2", "n3"):
        store.add_candidate(candidate(name))
    store.add_verdict(passed("n1", 1.3, confirm=True))
    store.add_verdict(passed("n2", 9.0))
    assert [node(store, name).state for name in ("n1", "n2", "n3")] == ["champion", "correct", "queued"]
    store.add_verdict(passed("n3", 1.6, confirm=True))
    assert [node(store, name).state for name in ("n1", "n2", "n3")] == ["correct", "correct", "champion"]
    store.add_verdict(rejected("n3"))
    assert [node(store, name).state for name in ("n1", "n2", "n3")] == ["champion", "correct", "rejected"]


def test_a_confirmed_tie_or_a_slow_installed_call_is_no_champion(store: Store) -> None:
    store.add_candidate(candidate("n1"))
    store.add_candidate(candidate("n2"))
    store.add_verdict(passed("n1", 1.001, confirm=True))
    slow = dataclasses.replace(passed("n2", 1.5, confirm=True), installed=timing(0.9, "installed"))
    store.add_verdict(slow)
    assert [node(store, name).state for name in ("n1", "n2")] == ["correct", "correct"]
    assert node(store, "n1").confirmed


def test_void_judgements_never_count_against_a_candidate(store: Store) -> None:
    store.add_candidate(candidate("n1"))
    store.add_candidate(candidate("n2"))
    store.add_verdict(void("n1"))
    assert (node(store, "n1").state, node(store, "n1").line) == ("problem", "the judge was replaced")
    store.add_verdict(passed("n1", 1.2))
    store.add_verdict(void("n1"))
    assert node(store, "n1").state == "correct"
    no_device = Verdict("n2", "c1", "compiled", "void", Problem("machine", "no device", "not run: no device"))
    store.add_verdict(no_device)
    assert node(store, "n2").state == "unknown"


def test_right_but_untimed_is_unknown_and_never_one(store: Store) -> None:
    store.add_candidate(candidate("n1"))
    store.add_verdict(Verdict("n1", "c1", "correct", "correct"))
    found = node(store, "n1")
    assert (found.state, found.speedup, found.time_us) == ("unknown", None, None)


def test_a_rejected_node_is_in_repair_until_the_repair_ends(store: Store) -> None:
    store.add_candidate(candidate("n1"))
    store.add_verdict(rejected("n1"))
    assert node(store, "n1").state == "rejected"
    store.add_attempt("p", "n1", "propose", "started")
    assert node(store, "n1").state == "repair"
    store.add_attempt("p", "n1", "propose", "done")
    store.add_candidate(candidate("n2", "n1", attempt=2))
    assert node(store, "n1").state == "repair"
    store.add_verdict(passed("n2", 1.2))
    assert node(store, "n1").state == "rejected"
    store.add_note("repair", "n1")
    assert node(store, "n1").state == "repair"
    store.add_note("repair over", "n1")
    assert node(store, "n1").state == "rejected"


def test_pruned_and_pinned_are_marks_that_can_be_taken_back(store: Store) -> None:
    store.add_candidate(candidate("n1"))
    store.add_verdict(passed("n1", 1.5, confirm=True))
    store.add_candidate(candidate("n2"))
    store.add_note("prune", "n2")
    store.add_note("pin", "n2")
    assert (node(store, "n2").state, node(store, "n2").pinned) == ("pruned", True)
    store.add_note("unprune", "n2")
    store.add_note("unpin", "n2")
    assert (node(store, "n2").state, node(store, "n2").pinned) == ("queued", False)
    store.add_note("prune", "n1")
    assert node(store, "n1").state == "champion"
    store.add_candidate(candidate("n3"))
    store.add_verdict(passed("n3", 2.0, confirm=True))
    assert node(store, "n1").state == "pruned"


@pytest.mark.parametrize("subject", ["n1", "c1", ""])
def test_stale_numbers_lose_the_title_until_confirmed_again(store: Store, subject: str) -> None:
    store.add_candidate(candidate("n1"))
    store.add_verdict(passed("n1", 1.5, confirm=True))
    store.add_note("stale", subject, {"torch": "2.14"})
    found = node(store, "n1")
    assert (found.state, found.confirmed, found.speedup) == ("correct", False, 1.5)
    assert "to be confirmed again" in found.line
    store.add_verdict(passed("n1", 1.4, confirm=True))
    assert node(store, "n1").state == "champion"


names = st.sampled_from(["n1", "n2", "n3", "n4", "n5"])
events = st.one_of(
    st.tuples(st.just("candidate"), names, st.sampled_from(["", "n1", "n2", "n3"]), st.integers(1, 2)),
    st.tuples(st.just("attempt"), names, st.sampled_from(["compile", "judge", "propose"]), st.sampled_from(["started", "done", "lost"])),
    st.tuples(st.just("passed"), names, st.sampled_from([0.8, 1.0, 1.3, 1.3, 2.0]), st.booleans()),
    st.tuples(st.just("rejected"), names),
    st.tuples(st.just("void"), names),
    st.tuples(st.just("note"), st.sampled_from(["n1", "n2", "n3", "c1", ""]), st.sampled_from(NODE_NOTES)),
)  # fmt: skip


def put(store: Store, event: tuple[Any, ...], made: set[str], prefix: str) -> None:
    kind, name, *rest = event
    name = f"n{prefix}{name[1:]}" if name.startswith("n") else name
    if kind == "candidate" and name not in made:
        parent = f"n{prefix}{rest[0][1:]}" if rest[0] else ""
        made.add(name)
        store.add_candidate(candidate(name, parent if parent in made and parent != name else "", attempt=rest[1]))
    elif kind == "attempt":
        store.add_attempt(f"{name}-{rest[0]}", name, rest[0], rest[1])
    elif kind == "passed":
        store.add_verdict(passed(name, rest[0], rest[1]))
    elif kind == "rejected":
        store.add_verdict(rejected(name))
    elif kind == "void":
        store.add_verdict(void(name))
    elif kind == "note":
        store.add_note(rest[0], name)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(events, max_size=30), st.integers(10, 10**6))
def test_what_is_kept_step_by_step_is_what_is_rebuilt_from_facts(
    store: Store, sequence: list[tuple[Any, ...]], prefix: int
) -> None:
    made = {row.node_id for row in store.reader.nodes("c1")}
    for event in sequence:
        put(store, event, made, str(prefix))
    store.add_note("settled", "").result()
    kept = [dataclasses.replace(row, visits=0, value=None) for row in store.reader.nodes("c1")]
    store.rebuild().result()
    rebuilt = [dataclasses.replace(row, visits=0, value=None) for row in store.reader.nodes("c1")]
    assert rebuilt == kept
    assert all(row.state in NODE_STATES for row in kept)
    assert sum(row.state == "champion" for row in kept) <= 1


def test_snapshots_of_the_search_are_kept_and_rebuilding_counts_visits_again(store: Store) -> None:
    store.add_candidate(candidate("n1"))
    store.add_candidate(candidate("n2", "n1"))
    store.add_verdict(rejected("n2"))
    store.write_snapshot("c1", {"n1": (7, 0.4), "n2": (3, None), "n404": (1, 1.0)}).result()
    assert [(row.visits, row.value) for row in store.reader.nodes("c1")] == [(0, None), (7, 0.4), (3, None)]
    assert store.rebuild().result() == 2
    assert [(row.visits, row.value) for row in store.reader.nodes("c1")] == [(0, None), (1, None), (1, None)]
    store.rebuild(lambda nodes: {name: (5, 0.5) for name, *_ in nodes}).result()
    assert [(row.visits, row.value) for row in store.reader.nodes("c1")][1:] == [(5, 0.5), (5, 0.5)]


def test_a_card_goes_through_its_states(store: Store) -> None:
    store.add_card(card("c1"))
    store.add_card(card("c2", state="refused", reason="random operator", share=0.5))
    store.add_card(card("c3", share=None))
    assert row_of(store).state == "waiting"
    assert (row_of(store, "c2").state, row_of(store, "c2").reason) == ("refused", "random operator")
    assert [row.card_id for row in store.reader.cards()] == ["c2", "c1", "c3"]
    store.add_card_ready(CardReady("c1", True, True, "no class", 90.0, 0.01, 20.0, ()))
    store.add_card_ready(CardReady("c3", False, False, "zeros pass", None, None, None, ()))
    assert (row_of(store, "c3").state, row_of(store, "c3").reason) == ("undiscriminating", "zeros pass")
    store.add_candidate(candidate("n1"))
    running = row_of(store)
    assert (running.state, running.weak, running.eager_us, running.floor_us) == ("running", True, 90.0, 20.0)
    assert running.headroom == 4.5
    store.add_verdict(passed("n1", 1.01, confirm=True))
    store.add_card_state("c1", "done", "near the speed of light")
    tie = row_of(store)
    assert (tie.state, tie.reason, tie.best_id, tie.provisional) == ("tie", "near the speed of light", "n1", False)
    store.add_candidate(candidate("n2"))
    store.add_verdict(passed("n2", 1.5))
    assert (row_of(store).best_id, row_of(store).provisional) == ("n2", True)
    store.add_verdict(passed("n2", 1.5, confirm=True))
    champion = row_of(store)
    assert (champion.state, champion.best_id, champion.speedup, champion.provisional) == ("champion", "n2", 1.5, False)
    assert (champion.attempts, champion.failures, champion.audit_class) == (2, 0, "custom kernel")
    store.add_card_state("c1", "problem", "the judge fails on it")
    assert row_of(store).state == "problem"
    assert all(row.state in CARD_STATES for row in store.reader.cards())


def test_an_unmeasured_card_has_no_numbers(store: Store) -> None:
    store.add_card(card(share=None))
    row = row_of(store)
    assert (row.share, row.eager_us, row.compile_us, row.floor_us, row.best_us, row.speedup) == (None,) * 6
    assert row.headroom is None


def test_baselines_stand_at_the_top_of_the_tree(store: Store) -> None:
    store.add_card(card())
    store.add_candidate(candidate("n1"))
    store.add_measurement(Measurement("eager", "c1", 0.2, "ms"))
    store.add_measurement(Measurement("compile", "c1", 100.0, "us")).result()
    eager, compiled, first = store.reader.nodes("c1")
    assert (eager.state, eager.time_us, eager.speedup, eager.parent_id) == ("baseline", 200.0, 1.0, "")
    assert (compiled.label, compiled.time_us, compiled.speedup) == ("torch.compile", 100.0, 2.0)
    assert first.parent_id == eager.node_id
    assert (row_of(store).eager_us, row_of(store).compile_us) == (200.0, 100.0)


def test_changes_bring_exactly_the_rows_that_read_differently(session: Session, store: Store) -> None:
    store.add_card(card())
    for name in ("n1", "n2", "n3"):
        store.add_candidate(candidate(name)).result()
    with Reader(session.path) as reader:
        at = reader.seq()
        assert not reader.changes(at).nodes and reader.changes(at).seq == at
        store.add_verdict(passed("n2", 1.2)).result()
        changes = reader.changes(at)
        assert [row.node_id for row in changes.nodes] == ["n2"]
        assert (changes.cards, changes.status, changes.model, changes.log) == (True, True, True, False)
        store.log("info", "hello")
        store.write_snapshot("c1", {"n3": (4, 0.1)}).result()
        deadline = time.monotonic() + 10
        while not (last := reader.changes(changes.seq)).log and time.monotonic() < deadline:
            time.sleep(0.01)
        assert last.log
        assert [row.node_id for row in last.nodes] == ["n3"]
        store.add_verdict(passed("n2", 1.3, confirm=True)).result()
        store.add_verdict(passed("n1", 1.6, confirm=True)).result()
        assert {row.node_id: row.state for row in reader.changes(last.seq).nodes} == {"n1": "champion", "n2": "correct"}
        assert [row.node_id for row in reader.changes(0).nodes] == ["n1", "n2", "n3"]


def test_the_log_is_filtered_paged_and_counted(store: Store) -> None:
    for number in range(100):
        store.log("bad" if number % 10 == 0 else "info", f"Line {number} [red]\x1b[2J", "c1", f"n{number % 2}")
    deadline = time.monotonic() + 10
    while store.reader.log_count() < 100 and time.monotonic() < deadline:
        time.sleep(0.02)
    lines = store.reader.log(limit=10)
    assert [line.text.split()[1] for line in lines] == [str(n) for n in range(90, 100)]
    older = store.reader.log(before=lines[0].seq, limit=10)
    assert [line.text.split()[1] for line in older] == [str(n) for n in range(80, 90)]
    assert [line.seq for line in store.reader.log(after=lines[4].seq)] == [line.seq for line in lines[5:]]
    assert store.reader.log_count(levels=("bad",)) == 10
    assert store.reader.log_count(candidate_id="n1") == 50
    assert [line.text for line in store.reader.log(text="lInE 42 ")] == ["Line 42 [red] [2J"]
    assert store.reader.log(card_id="c9") == []


def test_a_timeline_tells_prompt_reply_compile_run_and_verdict_in_order(store: Store) -> None:
    asked = LlmRequest("k1", "c1", "generate", "m", ({"role": "user", "content": "write"},), "3", attempt="p1")
    store.add_llm_request(asked)
    store.add_llm_reply(LlmReply("k1", "lost", line="killed in flight"))
    store.add_llm_request(dataclasses.replace(asked, call_id="k2", resent=1))
    store.add_llm_reply(LlmReply("k2", "replied", "code", "stop", 10, 20, 0.01, 2.0))
    store.add_candidate(candidate("n1", detail={"call": "k2"}, proposer="llm"))
    store.add_attempt("c", "n1", "compile", "started")
    store.add_attempt("c", "n1", "compile", "done", 0.7, {"report": {"vector": 8}})
    store.add_attempt("j", "n1", "judge", "started")
    store.add_attempt("j", "n1", "judge", "lost")
    store.add_verdict(rejected("n1"))
    store.add_note("prune", "n1").result()
    rows = store.reader.attempts("n1")
    assert [(row.step, row.outcome) for row in rows] == [
        ("prompt", "done"), ("reply", "failed"), ("prompt", "done"), ("reply", "done"), ("compile", "done"),
        ("run", "failed"), ("verdict", "failed"), ("note", "done"),
    ]  # fmt: skip
    assert (rows[3].text, rows[3].tokens, rows[3].cost_usd) == ("code", 20, 0.01)
    assert "write" in rows[0].text
    assert rows[6].line == "numeric: row 3 is wrong"
    assert store.reader.report("n1") == {"vector": 8}
    assert store.reader.report("n2") is None
    assert [call.state for call in store.reader.llm_calls("n1")] == ["lost", "replied"]


def test_status_counts_work_money_and_what_is_in_flight(store: Store) -> None:
    assert store.reader.status().state == "running"
    store.add_run_event("started", {"strategy": "uct", "total_attempts": 50, "dollars": 2.0})
    store.add_candidate(candidate("n1"))
    store.add_candidate(candidate("n2"))
    store.add_candidate(candidate("n3"))
    store.add_verdict(rejected("n1"))
    store.add_attempt("a", "n2", "judge", "started")
    store.add_attempt("b", "n3", "compile", "started")
    store.add_llm_reply(LlmReply("k1", "replied", prompt_tokens=10, completion_tokens=5, cost_usd=0.5))
    store.add_llm_reply(LlmReply("k2", "replied", completion_tokens=5))
    store.add_llm_reply(LlmReply("k3", "failed"))
    store.add_note("budget", "c1", {"attempts": 9})
    store.add_note("budget", "", {"dollars": 3.0})
    store.add_note("profile", "", {"name": "full"}).result()
    status = store.reader.status()
    assert (status.strategy, status.budget, status.dollar_budget) == ("uct", 50, 3.0)
    assert (status.candidates, status.compiling, status.judging) == (3, 1, "n2")
    assert (status.dollars, status.unpriced_calls, status.tokens) == (0.5, 1, 20)
    assert status.profile == "full"
    for event, state in (
        ("paused", "paused"),
        ("unpaused", "running"),
        ("stopping", "stopping"),
        ("ended", "finished"),
    ):
        store.add_run_event(event).result()
        assert store.reader.status().state == state


def test_a_session_without_an_owner_is_interrupted(session: Session) -> None:
    store = Store.open(session)
    store.add_run_event("started").result()
    store.close()
    with Reader(session.path) as reader:
        assert reader.status().state == "interrupted"
        assert reader.status().per_minute is None


def test_the_model_row_has_an_estimate_before_a_cast_and_numbers_after(store: Store, tmp_path: Path) -> None:
    assert store.reader.model() is None
    store.add_spec(WorkloadSpec("m.py", device="cpu"))
    store.add_loaded(Loaded("m", "module", 1, 4, ("a",), "random weights"))
    store.add_captured(Captured((card(share=0.5),), (), 10_000.0, 9, 0, True))
    store.add_candidate(candidate("n1"))
    store.add_verdict(passed("n1", 2.0, confirm=True)).result()
    model = store.reader.model()
    assert model is not None
    assert (model.name, model.eager_ms, model.estimate_ms, model.cast_ms) == ("m", 10.0, 7.5, None)
    assert (model.compile_ms, model.outputs_ok, model.hits, model.synthetic) == (None, None, None, "random weights")
    verdict = ModelVerdict(True, "", timing(1.3), 0.05, "", 9, 9, {}, {}, "tier", "")
    store.add_model_verdict(verdict).result()
    model = store.reader.model()
    assert model is not None
    assert (model.eager_ms, model.cast_speedup, model.compile_ms, model.hits) == (0.1, 1.3, 0.05, 9)


def test_a_node_row_has_every_field_of_its_record(store: Store) -> None:
    store.add_candidate(candidate("n1"))
    found = node(store, "n1")
    assert dataclasses.replace(found) == found
    assert {field.name for field in dataclasses.fields(NodeRow)} == set(vars(found))
