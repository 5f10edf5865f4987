"""What happened to one candidate, in order; and the records behind it. Each function takes an open snapshot."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from forge_tui.records.codec import loads
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.views import AttemptRow, LlmCallRow
from forge_tui.store.facts import NODE_NOTES
from forge_tui.store.rows import LlmCall, StepRow

WORDS = {
    "prune": "pruned", "unprune": "no longer pruned", "pin": "pinned", "unpin": "no longer pinned",
    "repair": "sent for repair", "repair over": "repair given up", "stale": "its numbers are stale",
}  # fmt: skip


def steps(db: sqlite3.Connection, where: str, values: Iterable[object]) -> list[StepRow]:
    """Starts joined with their ends, in order of the starts."""
    rows = db.execute(
        "SELECT a.seq, a.at, a.attempt_id, a.card_id, a.candidate_id, a.step, coalesce(e.state, 'started'), e.seconds,"
        " (SELECT json FROM body b WHERE b.seq = coalesce(e.seq, a.seq)) FROM"
        " (SELECT * FROM attempt WHERE state = 'started') a"
        f" LEFT JOIN attempt e ON e.attempt_id = a.attempt_id AND e.state IN ('done', 'lost') {where}"
        " GROUP BY a.seq ORDER BY a.seq",
        tuple(values),
    ).fetchall()
    return [StepRow(*(*row[:8], None if row[8] is None else json.loads(row[8]))) for row in rows]


def calls(db: sqlite3.Connection, where: str = "", values: Iterable[object] = ()) -> list[LlmCall]:
    """Requests with their replies, in order of the requests."""
    rows = db.execute(
        "SELECT q.seq, q.at, qb.json, rb.json, coalesce(r.seq, 0) FROM llm_call q JOIN body qb ON qb.seq = q.seq"
        " LEFT JOIN llm_call r ON r.call_id = q.call_id AND r.phase = 'reply' LEFT JOIN body rb ON rb.seq = r.seq"
        f" WHERE q.phase = 'request' {where} ORDER BY q.seq",
        tuple(values),
    ).fetchall()
    return [
        LlmCall(seq, at, loads(LlmRequest, request), loads(LlmReply, reply) if reply is not None else None, reply_seq)
        for seq, at, request, reply, reply_seq in rows
    ]


def calls_of(db: sqlite3.Connection, candidate_id: str) -> list[LlmCall]:
    """The calls that led to a candidate: the one its detail names ("call"), and lost ones of the same attempt."""
    row = db.execute(
        "SELECT json_extract(b.json, '$.detail.call') FROM candidate c JOIN body b ON b.seq = c.seq"
        " WHERE c.candidate_id = ?",
        (candidate_id,),
    ).fetchone()
    if row is None or row[0] is None:
        return []
    return calls(
        db,
        "AND (q.call_id = ?1 OR (q.attempt_id <> '' AND q.attempt_id ="
        " (SELECT attempt_id FROM llm_call WHERE call_id = ?1 AND phase = 'request')))",
        (str(row[0]),),
    )


def call_row(call: LlmCall) -> LlmCallRow:
    """A call as the timeline shows it."""
    request, reply = call.request, call.reply
    return LlmCallRow(
        call_id=request.call_id,
        at=call.at,
        purpose=request.purpose,
        model=request.model,
        state=reply.state if reply else "in flight",
        seconds=reply.seconds if reply else 0.0,
        prompt_tokens=reply.prompt_tokens if reply else None,
        completion_tokens=reply.completion_tokens if reply else None,
        cost_usd=reply.cost_usd if reply else None,
        prompt="\n\n".join(f"{m.get('role', '')}:\n{m.get('content', '')}" for m in request.messages),
        reply=reply.text if reply else "",
        line=reply.line if reply else "",
        detail={"prompt_version": request.prompt_version, "temperature": request.temperature},
    )


def timeline(db: sqlite3.Connection, candidate_id: str) -> list[AttemptRow]:
    """Prompt, reply, compile, run, verdict and notes of one candidate, oldest first."""
    row = db.execute("SELECT attempt FROM candidate WHERE candidate_id = ?", (candidate_id,)).fetchone()
    if row is None:
        return []
    number = int(row[0])
    rows = [
        *_call_rows(calls_of(db, candidate_id), number),
        *(_step_row(step, number) for step in steps(db, "WHERE a.candidate_id = ?", (candidate_id,)) if step.step != "propose"),
        *_verdict_rows(db, candidate_id, number),
        *_note_rows(db, candidate_id, number),
    ]  # fmt: skip
    return sorted(rows, key=lambda found: found.seq)


def _call_rows(found: list[LlmCall], number: int) -> list[AttemptRow]:
    rows = []
    for call in found:
        shown = call_row(call)
        rows.append(
            AttemptRow(
                call.seq, call.at, number, "prompt", "done", f"{shown.purpose}, {shown.model}", text=shown.prompt
            )
        )
        reply = call.reply
        if reply is None:
            rows.append(AttemptRow(call.seq + 1, call.at, number, "reply", "running", "waiting for the model"))
            continue
        outcome = "done" if reply.state == "replied" else "failed"
        tokens = None if reply.completion_tokens is None else reply.completion_tokens
        rows.append(
            AttemptRow(
                call.reply_seq, call.at + reply.seconds, number, "reply", outcome, reply.line or reply.finish_reason,
                reply.seconds, tokens, reply.cost_usd, reply.text,
            )
        )  # fmt: skip
    return rows


def _step_row(step: StepRow, number: int) -> AttemptRow:
    detail = step.detail or {}
    problem = detail.get("problem") if isinstance(detail.get("problem"), dict) else None
    outcome = {"started": "running", "done": "done", "lost": "failed"}[step.state]
    line = {"compile": "compile", "judge": "judge", "confirm": "confirm in a fresh process"}.get(step.step, step.step)
    text = ""
    if step.state == "lost":
        line += ": interrupted, done again"
    if problem:
        outcome, line, text = "failed", str(problem.get("line", "")), str(problem.get("detail", ""))
    kind = "compile" if step.step == "compile" else "run"
    return AttemptRow(step.seq, step.at, number, kind, outcome, line, step.seconds, text=text)


def _verdict_rows(db: sqlite3.Connection, candidate_id: str, number: int) -> list[AttemptRow]:
    found = db.execute(
        "SELECT seq, at, outcome, confirmation, speed, speedup, low, high, kind, line, seconds,"
        " (SELECT json_extract(b.json, '$.problem.detail') FROM body b WHERE b.seq = v.seq)"
        " FROM verdict v WHERE candidate_id = ? ORDER BY seq",
        (candidate_id,),
    )
    rows = []
    for seq, at, outcome, confirmation, speed, speedup, low, high, kind, line, seconds, detail in found:
        if outcome == "correct":
            words = "confirmed" if confirmation else "correct"
            words += f", {speedup:.2f}x [{low:.2f}, {high:.2f}] {speed}" if speedup is not None else ", speed unknown"
        else:
            words = f"{kind}: {line}" if kind else line
        shown = {"correct": "done", "rejected": "failed", "void": "unknown"}[outcome]
        rows.append(AttemptRow(seq, at, number, "verdict", shown, words, seconds, text=detail or ""))
    return rows


def _note_rows(db: sqlite3.Connection, candidate_id: str, number: int) -> list[AttemptRow]:
    marks = ",".join("?" * len(NODE_NOTES))
    found = db.execute(
        f"SELECT seq, at, kind FROM note WHERE subject = ? AND kind IN ({marks}) ORDER BY seq",
        (candidate_id, *NODE_NOTES),
    )
    return [AttemptRow(seq, at, number, "note", "done", WORDS[kind]) for seq, at, kind in found]


def report(db: sqlite3.Connection, candidate_id: str) -> dict[str, Any] | None:
    """The compiler's resource report of the newest finished compile, None while there is none."""
    row = db.execute(
        "SELECT b.json FROM attempt a JOIN body b ON b.seq = a.seq WHERE a.candidate_id = ? AND a.step = 'compile'"
        " AND a.state = 'done' AND json_type(b.json, '$.report') = 'object' ORDER BY a.seq DESC LIMIT 1",
        (candidate_id,),
    ).fetchone()
    return None if row is None else dict(json.loads(row[0])["report"])
