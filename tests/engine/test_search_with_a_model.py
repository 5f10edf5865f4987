"""A live search whose kernels come from a model over HTTP: repair, steering from another process, budget caps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killing import KERNEL, MODEL, ROOT, command
from openai_server import reply_text, serve

from forge_tui.store.reader import Reader
from forge_tui.store.session import Session

GOOD = KERNEL.format(number=1)
BROKEN = GOOD.replace("float* y =", "flote* y =")
WRONG = GOOD.replace(": 0.0f", ": 0.5f")


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    environment = dict(
        os.environ, PYTHONPATH=str(ROOT), OPENAI_API_KEY="sk-test-canary-0000", FORGE_HOME=str(folder / "home")
    )
    return subprocess.Popen(
        arguments, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def tool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(ROOT), FORGE_HOME=str(folder / "home"))
    return subprocess.run(
        [sys.executable, "-m", "forge_tui.cli", *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_a_rejected_draft_is_repaired_from_its_error_and_others_can_steer_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    session = tmp_path / "session"
    script = [
        {"text": reply_text(BROKEN, "first")},
        {"text": reply_text(WRONG, "second")},
        {"text": reply_text(GOOD, "third"), "delay": 3},
    ]
    with serve(script) as served:
        lines = command(session, served.base, tmp_path / "model.py", 3, "none", first=True)
        lines += ["--set", "run.width=1"]
        process = start(lines, tmp_path)
        deadline = time.monotonic() + 120
        while len(served.requests) < 3 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        second = tool(tmp_path, "resume", str(session), "--headless")
        asked = tool(tmp_path, "send", str(session), "status", "--json")
        odd = tool(tmp_path, "send", str(session), "prune", "n99")
        out, err = process.communicate(timeout=200)
    assert process.returncode in (0, 1), err[-2000:]
    assert second.returncode == 2 and "runs this session" in second.stderr
    assert asked.returncode == 0 and json.loads(asked.stdout)["outcome"] == "done"
    assert odd.returncode == 1 and "there is no candidate n99" in odd.stderr
    with Reader(Session.open(session).path) as reader:
        nodes = [c for c in reader.candidates()]
        verdicts = {c.candidate_id: reader.verdicts(c.candidate_id) for c in nodes}
        calls = reader.calls()
    assert [c.attempt for c in nodes] == [1, 2, 3]
    assert [c.parent_id for c in nodes] == [None, "n1", "n2"]
    kinds = [v[0].problem.kind if v[0].problem else v[0].outcome for v in verdicts.values()]
    assert kinds == ["compile error", "numeric", "correct"]
    assert [c.request.purpose for c in calls] == ["generate", "repair", "repair"]
    repair = served.requests[1]["messages"][-1]["content"]
    assert "flote" in repair and "compile error" in repair
    assert "sk-test-canary" not in session.joinpath("session.db").read_bytes().decode("latin-1")
    assert json.loads(out)["cards"]


@pytest.mark.slow
def test_a_token_cap_stops_the_calls_and_leaves_a_resumable_session(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    session = tmp_path / "session"
    script = [{"text": reply_text(KERNEL.format(number=n)), "usage": [900, 300]} for n in range(60)]
    with serve(script) as served:
        lines = command(session, served.base, tmp_path / "model.py", 50, "none", first=True)
        process = start([*lines, "--set", "budget.tokens=24000", "--set", "run.width=1"], tmp_path)
        _, err = process.communicate(timeout=200)
    assert process.returncode in (0, 1), err[-2000:]
    assert "budget of 24,000 tokens" in err
    with Reader(Session.open(session).path) as reader:
        assert reader.status().tokens <= 24_000
        assert reader.status().state == "finished"


@pytest.mark.slow
def test_a_model_that_repeats_itself_is_not_paid_for_ever(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    session = tmp_path / "session"
    with serve([{"text": reply_text(GOOD)}]) as served:
        lines = command(session, served.base, tmp_path / "model.py", 50, "none", first=True)
        process = start([*lines, "--set", "run.width=1"], tmp_path)
        _, err = process.communicate(timeout=200)
    assert process.returncode in (0, 1), err[-2000:]
    assert "6 replies in a row held no new candidate" in err
    assert len(served.requests) == 7
