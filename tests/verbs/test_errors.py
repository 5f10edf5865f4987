"""Bad input gets one clear line that says what is wrong and what to do, a documented exit code, and loses nothing."""

from __future__ import annotations

import sqlite3
import zipfile
from pathlib import Path

import pytest

from forge_tui.cli import main
from forge_tui.records.workload import WorkloadSpec
from forge_tui.store.session import Session


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FORGE_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("forge-tui:")]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run", "missing.py", "--headless"], "missing.py does not exist"),
        (["run", "example:nope", "--headless"], "there is no example 'nope'; there are minilm"),
        (["new", "model.py", "--headless", "--weights", "nothing.pt"], "does not exist"),
        (["run", "model.py", "--set", "foo=1", "--headless"], "unknown setting 'foo'"),
        (["run", "model.py", "--minutes", "soon", "--headless"], "'soon' is not allowed for budget.minutes"),
        (["show", "nosuchsession"], "there is no session nosuchsession"),
        (["resume", "nosuchsession", "--headless"], "there is no session nosuchsession"),
        (["inspect", "nothing.cast"], "no such file"),
    ],
)
def test_one_line_and_exit_code_two(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text("x = 1\n") if "missing" not in arguments[1] else None
    assert main(arguments) == 2
    found = lines_of(capsys)
    assert len(found) == 1 and part in found[0]


def test_a_misspelt_name_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "encoder.py").write_text("x = 1\n")
    Session.create(None, "encoder", WorkloadSpec("encoder.py"))
    assert main(["run", "encodr.py", "--headless"]) == 2
    assert "did you mean encoder.py" in lines_of(capsys)[0]
    assert main(["show", "encodr"]) == 2
    assert "did you mean encoder" in lines_of(capsys)[0]


def test_a_model_that_can_not_be_used_leaves_no_session_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("import nosuchmodule_at_all\n")
    assert main(["run", "broken.py", "--headless"]) == 2
    found = lines_of(capsys)
    assert len(found) == 1 and "broken.py:1" in found[0] and "nosuchmodule_at_all" in found[0]
    assert list((tmp_path / "home" / "sessions").iterdir()) == []


def test_damaged_sessions_are_named_and_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    session = Session.create(None, "whole", WorkloadSpec("example:recommender"))
    cut, foreign = tmp_path / "cut", tmp_path / "foreign"
    cut.mkdir()
    (cut / "session.db").write_bytes(session.database.read_bytes()[:60])
    foreign.mkdir()
    sqlite3.connect(foreign / "session.db").execute("CREATE TABLE t (x)").connection.commit()
    for folder, part in ((cut, "damaged"), (foreign, "another program")):
        before = (folder / "session.db").read_bytes()
        assert main(["show", str(folder)]) in (2, 71)
        assert part in lines_of(capsys)[0]
        assert (folder / "session.db").read_bytes() == before


def test_a_cast_that_is_cut_or_changed_is_refused_by_inspect(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    whole = tmp_path / "a.cast"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("manifest.json", '{"format": 99}')
    assert main(["inspect", str(whole)]) == 2
    assert len(lines_of(capsys)) == 1
    (tmp_path / "cut.cast").write_bytes(whole.read_bytes()[:-30])
    assert main(["inspect", str(tmp_path / "cut.cast")]) == 2
    assert "not a complete cast" in lines_of(capsys)[0]


def test_export_without_a_champion_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session.create(None, "empty", WorkloadSpec("example:recommender"))
    assert main(["export", str(session.path)]) == 2
    assert "no confirmed champion" in lines_of(capsys)[0]


def test_a_command_to_a_session_that_nobody_runs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Session.create(None, "idle", WorkloadSpec("example:recommender"))
    assert main(["send", "idle", "pause"]) == 2
    assert "nobody runs this session" in lines_of(capsys)[0]
    assert main(["send", "idle", "dance"]) == 2
    assert "unknown command dance" in lines_of(capsys)[0]


def test_lists_are_data_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    Session.create(None, "one", WorkloadSpec("example:recommender"))
    assert main(["ls", "--json"]) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)[0]["name"] == "one" and out.err == ""
    assert main(["examples", "--json"]) == 0
    assert {e["name"] for e in json.loads(capsys.readouterr().out)} >= {"minilm", "smollm2", "resnet50"}
