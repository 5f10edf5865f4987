"""kill -9 at any moment: what was announced is there, nothing is half there, and the next owner goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from forge_tui.store.reader import Reader
from forge_tui.store.session import Session
from forge_tui.store.store import Store

CHILD = Path(__file__).with_name("writing_child.py")


def run_and_kill(session: Session, after_lines: int, after_s: float) -> list[str]:
    """Start an owner, kill it `after_s` seconds after so many announcements; returns all that it announced."""
    root = str(Path(__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(session.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert child.stdout is not None and child.stderr is not None
    first = child.stdout.readline()
    assert first == "owned\n", child.stderr.read()
    lines = [child.stdout.readline().rstrip("\n") for _ in range(after_lines)]
    time.sleep(after_s)
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().splitlines()
    child.wait()
    child.stdout.close()
    child.stderr.close()
    return lines


def test_every_announced_row_survives_twenty_kills(session: Session) -> None:
    chance = random.Random(4)
    announced: list[str] = []
    kept: dict[str, tuple[object, ...]] = {}
    for round_number in range(20):
        lines = run_and_kill(session, chance.randint(1, 12), chance.uniform(0.0, 0.02))
        if round_number:
            assert any("died" in line and "lock was removed" in line for line in lines if line.startswith("note"))
        announced += [line for line in lines if not line.startswith("note") and not line.endswith("\x00")]
        with Reader(session.path) as reader:
            names = {row.node_id for row in reader.nodes("c1")}
            replied = {request.call_id for request, _ in reader.replies()}
            for line in announced:
                word, _, rest = line.partition(" ")
                if word == "reply":
                    assert rest in replied
                elif word != "blob":
                    assert word in names
            now = {c.candidate_id: (c, tuple(reader.verdicts(c.candidate_id))) for c in reader.candidates()}
            assert all(now[name] == facts for name, facts in kept.items()), "a stored row changed"
            kept = dict(now)
    assert len(announced) >= 60
    store = Store.open(session)
    found = store.reader.integrity()
    assert found.sound, found.lines
    for line in announced:
        if line.startswith("blob "):
            assert store.blobs.read(line[5:])
    assert not list(session.blobs.glob("**/*.part"))
    before = store.reader.nodes("c1")
    store.rebuild().result()
    states = [(row.node_id, row.state, row.speedup, row.confirmed, row.line) for row in store.reader.nodes("c1")]
    assert states == [(row.node_id, row.state, row.speedup, row.confirmed, row.line) for row in before]
    opened = store.unfinished()
    for attempt in opened.attempts:
        store.add_attempt(attempt.attempt_id, attempt.candidate_id, attempt.step, "lost", card_id=attempt.card_id)
    store.add_note("checked", "").result()
    assert store.unfinished().attempts == ()
    store.close()
