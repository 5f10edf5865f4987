"""The list of sessions: a damaged one is a row that says so, never the end of the list."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from rows_for_tests import candidate, card, passed, timing

from forge_tui.records.llm import LlmReply
from forge_tui.records.problem import UserInputError
from forge_tui.records.workload import Loaded, ModelVerdict, WorkloadSpec
from forge_tui.store.catalog import delete_session, find_session, list_sessions
from forge_tui.store.lock import SessionLocked
from forge_tui.store.session import Session
from forge_tui.store.store import Store


def test_a_session_shows_what_it_is_and_what_came_of_it(tmp_path: Path) -> None:
    session = Session.create(tmp_path / "s", "my run", WorkloadSpec("m.py", device="cpu"))
    store = Store.open(session)
    store.add_run_event("started", {"strategy": "uct"})
    store.add_loaded(Loaded("ResNet", "module", 1, 4, ("a",)))
    store.add_card(card("c1"))
    store.add_card(card("c2"))
    store.add_candidate(candidate("n1"))
    store.add_verdict(passed("n1", 1.5, True))
    store.add_llm_reply(LlmReply("k", "replied", cost_usd=0.25))
    store.add_model_verdict(ModelVerdict(True, "", timing(1.2), None, "", 1, 1, {}, {}, "tier", "")).result()
    (row,) = list_sessions(tmp_path)
    assert (row.name, row.model, row.device, row.state) == ("my run", "ResNet", "cpu", "running")
    assert (row.cards, row.faster, row.model_speedup, row.dollars) == (2, 1, 1.2, 0.25)
    assert row.problem == ""
    store.add_run_event("ended").result()
    store.close()
    assert list_sessions(tmp_path)[0].state == "finished"


def test_damaged_foreign_newer_and_empty_sessions_are_rows(tmp_path: Path) -> None:
    good = Session.create(tmp_path / "good", "good")
    for name, spoil in (
        ("cut", lambda path: path.write_bytes(path.read_bytes()[:6000])),
        ("foreign", lambda path: path.write_bytes(b"x" * 4096)),
        ("gone", lambda path: path.unlink()),
    ):
        spoil(Session.create(tmp_path / name, name).database)
    newer = sqlite3.connect(Session.create(tmp_path / "newer", "newer").database)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    (tmp_path / "a file").write_text("")
    (tmp_path / ".draft").mkdir()
    rows = {Path(row.path).name: row for row in list_sessions(tmp_path)}
    assert set(rows) == {"good", "cut", "foreign", "gone", "newer"}
    assert rows["good"].problem == "" and rows["good"].path == str(good.path)
    assert "damaged" in rows["cut"].problem
    assert "no SQLite database" in rows["foreign"].problem
    assert "holds no session" in rows["gone"].problem
    assert "needs a newer version" in rows["newer"].problem
    assert all(row.state == "problem" and "\n" not in row.problem for name, row in rows.items() if name != "good")


def test_a_row_that_cannot_be_understood_is_a_problem_not_an_exception(session: Session) -> None:
    broken = sqlite3.connect(session.database)
    broken.execute("DROP TRIGGER body_no_update")
    broken.execute('UPDATE body SET json = \'{"not": "a spec"}\'')
    broken.commit()
    broken.close()
    (row,) = list_sessions(session.path.parent)
    assert "can't be understood" in row.problem


def test_without_a_folder_there_are_no_sessions(tmp_path: Path) -> None:
    assert list_sessions(tmp_path / "none") == []


def test_a_session_is_found_by_path_or_by_name(session: Session) -> None:
    root = session.path.parent
    assert find_session(str(session.path)) == session == find_session("demo", root)
    with pytest.raises(UserInputError, match="there is no session 'dmo'; there are demo"):
        find_session("dmo", root)


def test_a_session_with_an_owner_is_not_removed(session: Session, store: Store) -> None:
    with pytest.raises(SessionLocked):
        delete_session(session.path)
    assert session.database.exists()


def test_a_session_is_removed_whole_and_nothing_else(session: Session) -> None:
    beside = session.path.parent / "beside"
    beside.mkdir()
    (session.path / "blobs" / "link").symlink_to(beside)
    (beside / "kept").write_text("")
    delete_session(session.path)
    assert list(session.path.parent.iterdir()) == [beside]
    assert (beside / "kept").exists()
    with pytest.raises(UserInputError, match="is no session; nothing was removed"):
        delete_session(beside)
