"""A search that is killed again and again: what must hold after each kill, and the script that checks it."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FACTS = (
    "workload", "card", "candidate", "candidate_parent", "attempt", "verdict", "measurement", "note", "llm_call", "command",
    "acknowledgement", "decision", "run", "body",
)  # fmt: skip
MODEL = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    torch.manual_seed(0)
    return [torch.randn(64, 512)]
def get_init_inputs():
    return []
"""
KERNEL = """// variant {number}
#include "card.h"
extern "C" int forge_launch(const forge_args* a) {{
  if (a->abi == {number} + 1000) return -1;  // makes every variant's binary a file of its own
  const float* x = (const float*)a->inputs[0].data;
  float* y = (float*)a->outputs[0].data;
  for (int64_t i = 0; i < 64 * 512; ++i) y[i] = x[i] > 0 || x[i] != x[i] ? x[i] : 0.0f;
  return 0;
}}
"""


@dataclass
class Killed:
    """Counts over a whole series of kills."""

    kills: dict[str, int] = field(default_factory=dict)
    rows_checked: int = 0
    orphans: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def script(count: int) -> list[dict[str, Any]]:
    """Replies of the scripted model: correct kernels, all different, each after a pause long enough to be killed in."""
    form = '```cpp\n{source}\n```\n```json\n{{"plan": {{"version": 1, "steps": [{{"kind": "host"}}]}}, "technique": "variant {number}"}}\n```'
    return [{"text": form.format(source=KERNEL.format(number=n), number=n), "delay": 0.4} for n in range(count)]


def start_server(folder: Path, replies: int) -> tuple[subprocess.Popen[bytes], str, Path]:
    """The counting model server as a process of its own."""
    port, count, replies_file = folder / "port", folder / "requests", folder / "script.json"
    replies_file.write_text(json.dumps(script(replies)))
    count.touch()
    server = subprocess.Popen(
        [sys.executable, str(HERE.parent / "llm" / "openai_server.py"), str(port), str(count), str(replies_file)]
    )
    for _ in range(100):
        if port.exists() and port.read_text():
            return server, port.read_text(), count
        time.sleep(0.05)
    server.kill()
    raise RuntimeError("the scripted server did not start")


def command(session: Path, base: str, model: Path, attempts: int, bomb: str, first: bool) -> list[str]:
    """The command line of one life of the run."""
    settings = [
        f"budget.attempts={attempts}", "budget.dollars=none", "proposers.recipes=false", "llm.model=openai/scripted", f"llm.api_base={base}",
        "run.compile_baseline=false", "judge.search_pairs=5", "judge.confirm_pairs=20", "judge.confirm_seconds=0.5", "judge.model_pairs=5",
        "judge.model_seconds=1", "run.max_cards=1", "search.no_gain=1000", "search.strategy=best_of_n", "search.amdahl=0", "run.min_share=0", "run.threads=1",
        "search.sol_eps=0", "judge.other_cores=none",
    ]  # fmt: skip
    flags = [part for text in settings for part in ("--set", text)]
    verb = ["new", str(model), "--session", str(session)] if first else ["resume", str(session)]
    return [sys.executable, str(HERE / "kill_driver.py"), bomb, *verb, "--headless", "--json", *flags]


def facts_of(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every stored fact, for comparison before and after."""
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
    try:
        return {table: connection.execute(f"SELECT * FROM {table} ORDER BY seq").fetchall() for table in FACTS}
    finally:
        connection.close()


def open_work(database: Path) -> set[str]:
    """What is going on now: "llm", "compile", "timing"."""
    try:
        connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1)
    except sqlite3.Error:
        return set()
    try:
        steps = connection.execute(
            "SELECT step FROM attempt a WHERE state = 'started' AND NOT EXISTS (SELECT 1 FROM attempt b WHERE b.attempt_id = a.attempt_id AND b.state IN ('done', 'lost'))"
        ).fetchall()
        asked = connection.execute(
            "SELECT count(*) FROM llm_call q WHERE phase = 'request' AND NOT EXISTS (SELECT 1 FROM llm_call r WHERE r.call_id = q.call_id AND r.phase = 'reply')"
        ).fetchone()[0]
    except sqlite3.Error:
        return set()
    finally:
        connection.close()
    names = {"compile": "compile", "judge": "timing", "confirm": "timing"}
    return {names[s] for (s,) in steps if s in names} | ({"llm"} if asked else set())


def one_life(
    session: Path, base: str, model: Path, attempts: int, where: str, rng: random.Random, result: Killed, first: bool
) -> int | None:
    """Run until the kill (None) or the natural end (its exit code)."""
    bomb = (
        f"{where}-{rng.choice(['before', 'after'])}:{rng.randint(1, 2 if where == 'rename' else 12)}"
        if where in ("commit", "rename")
        else "none"
    )
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OPENAI_API_KEY="sk-test-canary-0000")
    log = (session.parent / "lives.log").open("ab")
    process = subprocess.Popen(
        command(session, base, model, attempts, bomb, first),
        env=environment,
        stdout=log,
        stderr=log,
        cwd=session.parent,
    )
    family: dict[int, float] = {}
    limit = 900 if where == "end" else 240
    deadline = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < deadline:
        for child in _children(process.pid):
            family.setdefault(child.pid, child.create_time())
        if where in open_work(session / "session.db"):
            time.sleep(rng.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.02)
    if process.poll() is None and time.monotonic() >= deadline:
        process.kill()
    code = process.wait(timeout=30)
    log.close()
    if time.monotonic() >= deadline:
        result.faults.append(f"no {where} within {limit} s")
    _no_orphans(family, result)
    if code == -signal.SIGKILL:
        result.kills[where] = result.kills.get(where, 0) + 1
        return None
    return code


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _no_orphans(family: dict[int, float], result: Killed) -> None:
    """Every process of the dead run is gone within a few seconds."""
    for _ in range(100):
        alive = []
        for pid, born in family.items():
            try:
                process = psutil.Process(pid)
                if process.create_time() == born and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(f"{pid} {' '.join(process.cmdline())[:120]}")
            except psutil.NoSuchProcess:
                continue
        if not alive:
            return
        time.sleep(0.1)
    result.orphans += alive


def check_kept(
    before: dict[str, list[tuple[Any, ...]]], after: dict[str, list[tuple[Any, ...]]], result: Killed
) -> None:
    """Every fact that was there is there, unchanged."""
    for table, rows in before.items():
        result.rows_checked += len(rows)
        if after[table][: len(rows)] != rows:
            result.faults.append(f"rows of {table} changed")


def check_calls(database: Path, requests: Path, result: Killed) -> dict[str, int]:
    """Requests the server saw against the stored calls: nothing that was answered was asked again."""
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    try:
        asked = connection.execute("SELECT count(*) FROM llm_call WHERE phase = 'request'").fetchone()[0]
        states = dict(
            connection.execute("SELECT state, count(*) FROM llm_call WHERE phase = 'reply' GROUP BY state").fetchall()
        )
        fault = connection.execute("PRAGMA integrity_check").fetchone()[0]
        used = connection.execute(
            "SELECT count(*), count(DISTINCT json_extract(b.json, '$.detail.call')) FROM candidate c JOIN body b ON b.seq = c.seq"
        ).fetchone()
        resent = connection.execute(
            "SELECT json_extract(b.json, '$.attempt'), count(*) FROM llm_call q JOIN body b ON b.seq = q.seq WHERE phase = 'request' GROUP BY 1 HAVING count(*) > 2"
        ).fetchall()
    finally:
        connection.close()
    seen = len(requests.read_text().splitlines())
    if fault != "ok":
        result.faults.append(f"integrity: {fault}")
    if seen > asked:
        result.faults.append(f"the server saw {seen} requests, {asked} are stored")
    if used[0] != used[1]:
        result.faults.append("two candidates came from one reply")
    if resent:
        result.faults.append(f"asked more than twice: {resent}")
    if sum(states.values()) != asked:
        result.faults.append(f"{asked} requests, {sum(states.values())} ends")
    return {"asked": asked, "seen": seen, **states}


def series(folder: Path, kills: list[str], attempts: int, seed: int = 1) -> tuple[Killed, dict[str, int], int | None]:
    """Kill a run at each named place in turn, then let it finish. Returns counts, calls and the final exit code."""
    rng = random.Random(seed)
    result = Killed()
    model, session = folder / "model.py", folder / "session"
    model.write_text(MODEL)
    server, base, requests = start_server(folder, attempts * 3 + 50)
    code: int | None = None
    try:
        before: dict[str, list[tuple[Any, ...]]] = {}
        for number, where in enumerate([*kills, "end"]):
            code = one_life(session, base, model, attempts, where, rng, result, first=number == 0)
            if not (session / "session.db").exists():
                result.faults.append(f"no session after the {where} life")
                break
            after = facts_of(session / "session.db")
            check_kept(before, after, result)
            before = after
            if code is not None:
                break
        calls = check_calls(session / "session.db", requests, result)
    finally:
        server.kill()
        server.wait()
    return result, calls, code
