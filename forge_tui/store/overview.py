"""The run and the model in one row each, derived from facts. Each function takes an open snapshot."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any, TypeVar

from forge_tui.records.card import Card
from forge_tui.records.codec import loads
from forge_tui.records.views import CardRow, ModelRow, RunStatus, SessionSummary
from forge_tui.records.workload import Captured, Loaded, ModelVerdict, WorkloadSpec
from forge_tui.store.lists import measured
from forge_tui.store.lock import read_owner
from forge_tui.store.schema import FACTS

T = TypeVar("T")
RATE_WINDOW_S = 300.0  # candidates per minute are counted over the last five minutes of work


def latest(db: sqlite3.Connection, kind: str, cls: type[T]) -> T | None:
    """The newest workload row of a kind."""
    row = db.execute(
        "SELECT b.json FROM workload w JOIN body b ON b.seq = w.seq WHERE w.kind = ? ORDER BY w.seq DESC LIMIT 1",
        (kind,),
    ).fetchone()
    return None if row is None else loads(cls, row[0])


def captured(db: sqlite3.Connection) -> Captured | None:
    """The newest capture with the newest row of each card."""
    found = latest(db, "captured", Captured)
    if found is None:
        return None
    rows = db.execute(
        "SELECT b.json FROM body b JOIN (SELECT max(seq) AS seq FROM card GROUP BY card_id) c ON c.seq = b.seq ORDER BY b.seq"
    )
    cards = tuple(loads(Card, row[0]) for row in rows)
    return Captured(
        cards, found.not_seen, found.total_us, found.calls, found.stored_bytes, found.bit_equal, found.notes
    )


def settings_in_force(db: sqlite3.Connection) -> dict[str, Any]:
    """Settings of the newest run event that carries some."""
    row = db.execute(
        "SELECT b.json FROM run r JOIN body b ON b.seq = r.seq WHERE b.json <> 'null' ORDER BY r.seq DESC LIMIT 1"
    ).fetchone()
    found = json.loads(row[0]) if row else {}
    return found if isinstance(found, dict) else {}


def status(db: sqlite3.Connection, session: Path) -> RunStatus:
    """The run now. Numbers that no fact supports are None."""
    owner = read_owner(session / "owner.lock")
    settings = settings_in_force(db)
    events = db.execute("SELECT at, event FROM run ORDER BY seq").fetchall()
    last_at = db.execute("SELECT max(at) FROM (SELECT max(at) AS at FROM attempt UNION SELECT max(at) FROM verdict)")
    last = last_at.fetchone()[0]
    event = events[-1][1] if events else ""
    state = _state(event, owner.state, owner.mine)
    running = state in ("running", "stopping", "elsewhere")
    now = time.time() if running else (last or (events[-1][0] if events else 0.0))
    elapsed = _elapsed(events, now, last)
    counts = dict(db.execute("SELECT state, count(*) FROM node GROUP BY state"))
    judged = sum(counts.values()) - counts.get("queued", 0) - counts.get("running", 0)
    budget = _budget(db, settings)
    rate = _rate(db, now, elapsed) if running else None
    left = max(0, budget["attempts"] - judged) if budget["attempts"] else 0
    spent = db.execute(
        "SELECT coalesce(sum(cost_usd), 0), coalesce(sum(cost_usd IS NULL AND state = 'replied'), 0),"
        " coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)), 0) FROM llm_call WHERE phase = 'reply'"
    ).fetchone()
    steps = _open_steps(db)
    return RunStatus(
        state=state,
        owner=owner.line if owner.state != "none" else "",
        strategy=str(settings.get("strategy", settings.get("search.strategy", ""))),
        elapsed_s=elapsed,
        candidates=sum(counts.values()),
        budget=int(budget["attempts"] or 0),
        per_minute=rate,
        eta_s=_eta(left / rate * 60 if rate and left else None, settings.get("budget.minutes"), elapsed),
        dollars=float(spent[0]),
        dollar_budget=budget["dollars"],
        unpriced_calls=int(spent[1]),
        tokens=int(spent[2]),
        queued=int(counts.get("queued", 0)),
        compiling=sum(step == "compile" for step, _ in steps),
        judging=next((node for step, node in steps if step in ("judge", "confirm")), ""),
        profile=_profile(db, settings),
    )


def _eta(work_s: float | None, minutes: Any, elapsed: float) -> float | None:
    """Seconds to the end: the work that is left, or the search's own time limit when that comes first."""
    if not isinstance(minutes, (int, float)):
        return work_s
    rest = max(0.0, 60.0 * minutes - elapsed)
    return rest if work_s is None else min(work_s, rest)


def _state(event: str, owner: str, mine: bool) -> str:
    if event == "ended":
        return "finished"
    if owner in ("none", "dead"):
        return "interrupted"
    if owner == "elsewhere" or not mine:
        return "elsewhere"
    return {"paused": "paused", "stopping": "stopping", "interrupted": "interrupted"}.get(event, "running")


def _elapsed(events: list[tuple[float, str]], now: float, last: float | None) -> float:
    """Seconds at work: from started, resumed or unpaused to the next pause, end or, after a crash, the last fact."""
    total, since = 0.0, None
    for at, event in events:
        if event in ("started", "resumed", "unpaused"):
            if since is not None and event == "resumed":  # the owner died: what lay between was no work
                total += max(0.0, min(last or since, at) - since)
                since = None
            since = at if since is None else since
        elif event in ("paused", "ended", "interrupted") and since is not None:
            total += at - since
            since = None
    return total + (max(0.0, now - since) if since is not None else 0.0)


def _budget(db: sqlite3.Connection, settings: dict[str, Any]) -> dict[str, Any]:
    """Candidates over all cards and dollars of the whole run: settings, then the user's later changes."""
    found = {
        "attempts": settings.get("total_attempts", settings.get("budget.total_attempts")),
        "dollars": settings.get("dollars", settings.get("budget.dollars")),
    }
    changed = db.execute(
        "SELECT b.json FROM note n JOIN body b ON b.seq = n.seq WHERE n.kind = 'budget' AND n.subject = '' ORDER BY n.seq"
    )
    for (text,) in changed:
        value = json.loads(text)
        if isinstance(value, dict):
            found |= {key: value[key] for key in found if key in value}
    return found


def _rate(db: sqlite3.Connection, now: float, elapsed: float) -> float | None:
    window = min(RATE_WINDOW_S, elapsed)
    if window < 1.0:
        return None
    query = "SELECT count(DISTINCT candidate_id) FROM (SELECT candidate_id, at FROM verdict ORDER BY seq DESC LIMIT 5000) WHERE at > ?"
    count = db.execute(query, (now - window,)).fetchone()[0]
    return count / window * 60 if count else None


def _open_steps(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """(step, candidate) of what is in flight, newest first; older than a few hundred rows nothing is."""
    return db.execute(
        "SELECT step, candidate_id FROM (SELECT * FROM attempt ORDER BY seq DESC LIMIT 500) a WHERE state = 'started'"
        " AND NOT EXISTS (SELECT 1 FROM attempt e WHERE e.attempt_id = a.attempt_id AND e.state IN ('done', 'lost'))"
    ).fetchall()


def _profile(db: sqlite3.Connection, settings: dict[str, Any]) -> str:
    row = db.execute(
        "SELECT b.json FROM note n JOIN body b ON b.seq = n.seq WHERE kind = 'profile' ORDER BY n.seq DESC LIMIT 1"
    )
    found = row.fetchone()
    value = json.loads(found[0]) if found else settings.get("profile", "")
    return str(value.get("name", "")) if isinstance(value, dict) else str(value)


def model(db: sqlite3.Connection, cards: list[CardRow]) -> ModelRow | None:
    """The whole model, None before it was captured. The estimate subtracts what confirmed champions save from eager's time."""
    spec, loaded = latest(db, "spec", WorkloadSpec), latest(db, "loaded", Loaded)
    capture, verdict = latest(db, "captured", Captured), latest(db, "model verdict", ModelVerdict)
    if capture is None:
        return None
    timing = verdict.timing if verdict else None
    eager = _ms(measured(db, "model eager")) or capture.total_us / 1000
    if timing is not None:
        eager = timing.baseline_us / 1000
    compiled = verdict.compile_ms if verdict and verdict.compile_ms is not None else _ms(measured(db, "model compile"))
    synthetic = (loaded.synthetic if loaded else "") or ("captured inputs" if any(c.synthetic for c in cards) else "")
    return ModelRow(
        name=(loaded.name if loaded else "") or (spec.source if spec else ""),
        device=spec.device if spec else "",
        eager_ms=eager,
        compile_ms=compiled,
        compile_line=verdict.compile_line if verdict else "",
        estimate_ms=_estimate(eager, cards),
        cast_ms=timing.candidate_us / 1000 if timing else None,
        cast_speedup=timing.speedup if timing else None,
        cast_low=timing.low if timing else None,
        cast_high=timing.high if timing else None,
        hits=verdict.hits if verdict else None,
        calls=verdict.calls if verdict else None,
        outputs_ok=verdict.outputs_ok if verdict else None,
        synthetic=synthetic,
    )


def _ms(values: dict[str, float | None]) -> float | None:
    found = [value for value in values.values() if value is not None]
    return found[-1] / 1000 if found else None


def _estimate(eager_ms: float | None, cards: list[CardRow]) -> float | None:
    if eager_ms is None:
        return None
    saved = 0.0
    for card in cards:
        if card.state == "champion" and card.speedup and card.share is not None:
            saved += card.share * (1 - 1 / card.speedup)
    return eager_ms * (1 - saved)


def summary(db: sqlite3.Connection, session: Path) -> SessionSummary:
    """One line of the home screen; counts only, whatever the size of the trees."""
    spec, loaded = latest(db, "spec", WorkloadSpec), latest(db, "loaded", Loaded)
    verdict = latest(db, "model verdict", ModelVerdict)
    name = db.execute("SELECT subject FROM note WHERE kind = 'name' ORDER BY seq DESC LIMIT 1").fetchone()
    cards = db.execute("SELECT count(DISTINCT card_id) FROM card").fetchone()[0]
    faster = db.execute("SELECT count(DISTINCT card_id) FROM node WHERE worthy = 1").fetchone()[0]
    dollars = db.execute("SELECT coalesce(sum(cost_usd), 0) FROM llm_call WHERE phase = 'reply'").fetchone()[0]
    ends = [db.execute(f"SELECT at FROM {table} ORDER BY seq DESC LIMIT 1").fetchone() for table in (*FACTS, "log")]
    event = db.execute("SELECT event FROM run ORDER BY seq DESC LIMIT 1").fetchone()
    owner = read_owner(session / "owner.lock")
    return SessionSummary(
        path=str(session),
        name=name[0] if name else session.name,
        model=(loaded.name if loaded else "") or (spec.source if spec else ""),
        device=spec.device if spec else "",
        state=_state(event[0] if event else "", owner.state, owner.mine),
        cards=int(cards),
        faster=int(faster),
        model_speedup=verdict.timing.speedup if verdict and verdict.timing else None,
        dollars=float(dollars),
        last_activity=max((row[0] for row in ends if row), default=0.0),
    )
