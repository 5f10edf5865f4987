"""The writer thread: order, announcements, refusals, full disks, and what was put is what is read."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows_for_tests import candidate, card, passed, rejected, timing, void

from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.judging import CardReady
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.problem import HarnessProblem, Problem
from forge_tui.records.verdict import Measurement, Verdict
from forge_tui.records.workload import Captured, Loaded, ModelVerdict, NotSeen, WorkloadSpec
from forge_tui.store.lock import SessionLocked
from forge_tui.store.reader import Reader
from forge_tui.store.session import Session
from forge_tui.store.store import Store
from forge_tui.store.writer import Committed


def test_every_kind_of_record_reads_back_as_it_was_put(store: Store) -> None:
    spec, loaded = (
        WorkloadSpec("m.py:f", threads=4),
        Loaded("m", "model", 10, 40, ("a",), "random weights", {"torch": "2"}),
    )
    refused = card("c2", state="refused", reason="random operator", share=None)
    captured = Captured((card(), refused), (NotSeen("aten::view", 3, "view"),), 1234.5, 9, 0, True, ("note",))
    verdict = ModelVerdict(True, "", timing(1.2), None, "no compiler", 9, 9, {}, {"c1": 9}, "prebuilt", "")
    ready = CardReady("c1", True, False, "", 99.0, 0.01, 5.0, (), (Measurement("aa", "c1", 0.01, "ratio"),))
    request = LlmRequest("k1", "c1", "generate", "m", ({"role": "user", "content": "π"},), "3", node="n1", attempt="p1")
    store.add_spec(spec)
    store.add_loaded(loaded)
    store.add_captured(captured)
    store.add_model_verdict(verdict)
    store.add_card_ready(ready)
    store.add_candidate(candidate("n1"))
    made = candidate("n2", "n1", detail={"call": "k1"}, proposer="llm", expected_gain=1.3)
    store.add_candidate(made)
    for judged in (passed("n2", 1.4), void("n2"), rejected("n2")):
        store.add_verdict(judged)
    store.add_llm_request(request)
    store.add_llm_reply(LlmReply("k1", "replied", "text", cost_usd=None, completion_tokens=7))
    store.add_decision("c1", "n1", "uct", {"value": 0.9}, "highest")
    command = store.add_command(Command("pin", "n2"), "key").result()
    store.add_acknowledgement(Acknowledgement(command, "done", "ok")).result()
    reader = store.reader
    assert reader.workload() == (spec, loaded)
    assert reader.captured() == captured
    assert reader.model_verdicts() == [verdict]
    assert reader.measurements("c1") == [Measurement("aa", "c1", 0.01, "ratio")]
    assert reader.card("c2") == refused
    assert reader.candidate("n2") == made
    assert reader.source("n2") == made.source
    assert reader.verdicts("n2") == [passed("n2", 1.4), void("n2"), rejected("n2")]
    assert [(call.call_id, call.reply, call.completion_tokens, call.cost_usd) for call in reader.llm_calls("n2")] == [
        ("k1", "text", 7, None)
    ]
    assert reader.replies() == [(request, LlmReply("k1", "replied", "text", completion_tokens=7))]
    assert reader.decisions("c1")[0].why == {"value": 0.9}
    assert [(row.verb, row.outcome, row.line) for row in reader.commands()] == [("pin", "done", "ok")]
    assert reader.card("none") is None
    assert reader.candidate("n9") is None
    assert reader.source("n9") == ""
    assert reader.integrity().sound


floats = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts, texts, floats, st.integers(-(2**62), 2**62), st.dictionaries(texts, st.one_of(texts, floats, st.booleans()))
)
def test_any_text_and_number_reads_back(
    store: Store, line: str, subject: str, value: float | None, whole: int, detail: dict[str, object]
) -> None:
    measurement = Measurement("eager", subject, value, "us", line, detail={"d": detail, "n": whole})
    store.add_measurement(measurement)
    name = store.next_candidate_id()
    made = candidate(name, technique=line, expected_gain=value, detail={"d": detail})
    problem = Problem("candidate", "numeric", line, subject)
    verdict = Verdict(name, "c1", "sane", "rejected", problem, environment={"d": detail})
    store.add_candidate(made)
    store.add_verdict(verdict).result()
    assert store.reader.measurements(subject)[-1] == measurement
    assert store.reader.candidate(name) == made
    assert store.reader.verdicts(name) == [verdict]
    assert all(c.isprintable() for row in store.reader.nodes("c1") for c in row.label + row.line)


def test_a_row_is_readable_elsewhere_once_it_is_announced(session: Session, store: Store) -> None:
    with Reader(session.path) as other:
        for number in range(1, 50):
            store.add_candidate(candidate(f"n{number}")).result()
            assert other.candidate(f"n{number}") is not None


async def test_listeners_hear_of_a_commit_after_it_and_in_order(store: Store) -> None:
    heard: list[Committed] = []
    store.listen(heard.append)
    await asyncio.gather(*(store.add_candidate(candidate(f"n{n}")) for n in range(1, 200)))
    await asyncio.sleep(0)
    assert [c.first for c in heard] == [
        h.last + 1 for h in [Committed(0, heard[0].first - 1, frozenset()), *heard[:-1]]
    ]
    assert store.reader.seq() >= heard[-1].last
    assert "candidate" in heard[0].tables
    assert len(heard) < 150, "facts put together are committed together"


async def test_a_cancelled_wait_does_not_undo_the_write(store: Store) -> None:
    waiting = asyncio.ensure_future(store.add_candidate(candidate("n1")))
    await asyncio.sleep(0)
    waiting.cancel()
    await store.add_note("after", "")
    assert store.reader.candidate("n1") is not None


def test_a_refused_row_fails_alone(store: Store) -> None:
    results = [store.add_candidate(candidate(name)) for name in ("n1", "n2", "n1", "n3")]
    with pytest.raises(HarnessProblem, match="refused a row"):
        results[2].result()
    assert [r.result() for i, r in enumerate(results) if i != 2]
    assert [row.node_id for row in store.reader.nodes("c1")] == ["eager", "n1", "n2", "n3"]


def test_a_call_is_answered_once(store: Store) -> None:
    store.add_llm_reply(LlmReply("k", "replied", "a")).result()
    with pytest.raises(HarnessProblem, match="refused a row"):
        store.add_llm_reply(LlmReply("k", "replied", "b")).result()


def test_writing_after_close_is_refused(session: Session) -> None:
    store = Store.open(session)
    store.add_note("x", "").result()
    store.close()
    store.close()
    with pytest.raises(HarnessProblem, match="closed"):
        store.add_note("x", "")
    with pytest.raises(HarnessProblem, match="closed"):
        store.reader.cards()


def test_close_writes_what_is_queued(session: Session) -> None:
    store = Store.open(session)
    for number in range(1, 300):
        store.add_candidate(candidate(f"n{number}"))
    for number in range(1000):
        store.log("info", f"line {number}")
    store.close()
    with Reader(session.path) as reader:
        assert len(reader.nodes("c1")) == 300
        assert reader.log_count() == 1000


def test_the_next_id_is_never_one_that_a_row_mentions(session: Session) -> None:
    store = Store.open(session)
    assert [store.next_candidate_id() for _ in range(2)] == ["n1", "n2"]
    store.add_candidate(candidate("n1"))
    store.add_verdict(rejected("n7"))
    store.add_attempt("a", "n9", "compile", "started")
    store.close()
    again = Store.open(session)
    assert again.next_candidate_id() == "n10"
    again.close()


def test_what_was_in_flight_is_listed_once_and_can_be_marked_lost(store: Store) -> None:
    store.add_attempt("a1", "n1", "compile", "started", card_id="c1")
    store.add_attempt("a1", "n1", "compile", "done", 1.0)
    store.add_attempt("a2", "n1", "judge", "started", card_id="c1")
    store.add_llm_request(LlmRequest("k1", "c1", "generate", "m", (), "1"))
    store.add_llm_request(LlmRequest("k2", "c1", "generate", "m", (), "1"))
    store.add_llm_reply(LlmReply("k2", "failed", line="no")).result()
    opened = store.unfinished()
    assert [(a.attempt_id, a.step, a.state) for a in opened.attempts] == [("a2", "judge", "started")]
    assert [call.call_id for call in opened.calls] == ["k1"]
    store.add_attempt("a2", "n1", "judge", "lost")
    store.add_llm_reply(LlmReply("k1", "lost")).result()
    assert store.unfinished().attempts == () and store.unfinished().calls == ()
    assert [(s.step, s.state) for s in store.reader.steps("n1")] == [("compile", "done"), ("judge", "lost")]


def test_readers_under_heavy_writes_never_block_the_writer(session: Session, store: Store) -> None:
    stop, errors, reads = threading.Event(), list[str](), [0, 0]

    def watch(which: int) -> None:
        with Reader(session.path) as reader:
            seen = 0
            while not stop.is_set():
                changes = reader.changes(seen)
                if changes.seq < seen:
                    errors.append("the sequence went back")
                seen = changes.seq
                names = [row.node_id for row in reader.nodes("c1")]
                if len(set(names)) != len(names):
                    errors.append("a node twice")
                reader.cards()
                reads[which] += 1

    watchers = [threading.Thread(target=watch, args=(which,)) for which in range(2)]
    for thread in watchers:
        thread.start()
    last = None
    for number in range(1, 801):
        last = store.add_candidate(candidate(f"n{number}"))
        store.add_verdict(passed(f"n{number}", 1 + number / 1000, number % 3 == 0))
        store.log("info", "line", "c1", f"n{number}")
    assert last is not None
    last.result(timeout=60)
    stop.set()
    for thread in watchers:
        thread.join()
    assert not errors
    assert all(reads)
    assert store.problem is None


def test_a_reader_that_holds_a_snapshot_does_not_stop_writes(session: Session, store: Store) -> None:
    viewer = sqlite3.connect(f"{session.database.as_uri()}?mode=ro", uri=True, isolation_level=None)
    viewer.execute("BEGIN")
    viewer.execute("SELECT count(*) FROM candidate").fetchone()
    store.add_candidate(candidate("n1")).result(timeout=5)
    assert viewer.execute("SELECT count(*) FROM candidate").fetchone()[0] == 0
    viewer.close()


def test_another_program_that_holds_the_database_only_delays_writes(session: Session, store: Store) -> None:
    store._writer._connection.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(session.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    written = store.add_candidate(candidate("n1"))
    deadline = time.monotonic() + 10
    while store.problem is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.problem is not None and "another program holds" in store.problem.line
    assert store.problem.blame == "machine"
    other.execute("ROLLBACK")
    other.close()
    written.result(timeout=20)
    assert store.problem is None


FULL = """
import resource, sys, time
from pathlib import Path
from rows_for_tests import candidate
from forge_tui.records.problem import MachineProblem
from forge_tui.store.session import Session
from forge_tui.store.store import Store
store = Store.open(Session.open(Path(sys.argv[1])))
store.add_candidate(candidate("n1")).result()
size = max(path.stat().st_size for path in store.session.path.iterdir() if path.is_file())
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
waiting = [store.add_note("big", "", "x" * 100_000) for _ in range(3)]
deadline = time.monotonic() + 20
while store.problem is None and time.monotonic() < deadline:
    time.sleep(0.01)
for number in range(30_000):
    store.log("info", "dropped or kept")
while store._writer._dropped == 0 and time.monotonic() < deadline + 20:
    time.sleep(0.01)
print(store.problem.blame, "|", store.problem.line)
print("announced while full:", sum(w.done() for w in waiting), store.reader.candidate("n1") is not None)
try:
    store.blobs.put(b"x" * (size + 1))
except MachineProblem as problem:
    print(problem)
if sys.argv[2] == "freed":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("announced when freed:", sum(w.result(timeout=20) > 0 for w in waiting), store.problem)
    store.add_note("after", "").result()
    while store.reader.log(text="were dropped") == [] and time.monotonic() < deadline + 40:
        time.sleep(0.05)
    print("kept lines:", store.reader.log_count() >= 20_000, store.reader.log(text="were dropped") != [])
    store.close()
else:
    try:
        store.close(0.5)
    except MachineProblem as problem:
        print(problem)
    print("failed:", sum(w.exception(timeout=5) is not None for w in waiting))
print(list(store.session.blobs.glob("**/*.part")))
"""


def run_full(session: Session, mode: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(session.path), mode],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": f"{here}:{here.parents[1]}"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_disk_pauses_the_writer_and_loses_no_fact(session: Session) -> None:
    said = run_full(session, "freed")
    assert "machine | the disk of" in said
    assert "announced while full: 0 True" in said
    assert "could not be stored" in said
    assert "announced when freed: 3 None" in said
    assert "kept lines: True True" in said
    assert said.rstrip().endswith("[]")
    with Reader(session.path) as reader:
        assert reader.integrity().sound


def test_closing_on_a_full_disk_says_what_was_not_written(session: Session) -> None:
    said = run_full(session, "full")
    assert "facts were not written: the disk of" in said
    assert "failed: 3" in said
    Store.open(session).close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_read_only_folder_can_be_viewed_and_not_owned(tmp_path: Path) -> None:
    session = Session.create(tmp_path / "s", "s")
    store = Store.open(session)
    store.add_candidate(candidate("n1")).result()
    store.close()
    code = (
        "import os, sys; from pathlib import Path; from forge_tui.store.session import Session;"
        "from forge_tui.store.reader import Reader; from forge_tui.store.store import Store;"
        "from forge_tui.records.problem import MachineProblem; os.setuid(65534); p = Path(sys.argv[1]);"
        "print(len(Reader(p).nodes('c1')))\n"
        "try: Store.open(Session.open(p))\n"
        "except MachineProblem as problem: print(problem)"
    )
    for path in (tmp_path, *tmp_path.parents):
        if path == Path("/tmp"):
            break
        path.chmod(0o755)
    for folder, _, names in os.walk(session.path):
        Path(folder).chmod(0o555)
        for name in names:
            (Path(folder) / name).chmod(0o444)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(session.path)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stdout.startswith("2\n"), done.stderr
    assert "can't be locked" in done.stdout


def test_a_second_owner_is_refused_and_names_the_first(session: Session, store: Store) -> None:
    with pytest.raises(SessionLocked, match="runs this session"):
        Store.open(session)
