"""Queries behind the lists: cards, nodes, log, attempts, calls, changes. Each takes an open snapshot."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from typing import Any

from forge_tui.records.codec import loads
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.views import CardRow, LogRow, NodeRow
from forge_tui.store.facts import LEVELS, number_of
from forge_tui.store.rows import AttemptRow, Changes, Cursor, LlmCall
from forge_tui.store.schema import FACTS

EAGER, COMPILE = "eager", "compile"  # node ids of a card's baselines
NODE_FIELDS = tuple(f.name for f in dataclasses.fields(NodeRow))

_CARDS = """
WITH latest AS (SELECT max(seq) AS seq FROM card GROUP BY card_id),
 counts AS (SELECT card_id, count(*) AS attempts, sum(state IN ('rejected', 'repair')) AS failures,
    sum(state IN ('queued', 'running', 'repair')) AS active, sum(confirmed) AS confirmed,
    sum(speedup IS NOT NULL) AS timed FROM node GROUP BY card_id),
 best AS (SELECT card_id, node_id, time_us, speedup, low, high, confirmed, audit_class, state,
    row_number() OVER (PARTITION BY card_id ORDER BY state = 'champion' DESC, speedup DESC, number) AS place
    FROM node WHERE speedup IS NOT NULL AND state IN ('champion', 'correct', 'pruned'))
SELECT c.card_id, c.title, c.op, c.calls, c.share, c.state, c.reason, c.op_class, c.synthetic,
    coalesce(n.attempts, 0), coalesce(n.failures, 0), coalesce(n.active, 0), coalesce(n.confirmed, 0),
    b.node_id, b.time_us, b.speedup, b.low, b.high, b.confirmed, b.audit_class, b.state
 FROM latest l JOIN card c ON c.seq = l.seq LEFT JOIN counts n ON n.card_id = c.card_id
 LEFT JOIN best b ON b.card_id = c.card_id AND b.place = 1
 ORDER BY c.share IS NULL, c.share DESC, c.seq
"""


def cards(db: sqlite3.Connection) -> list[CardRow]:
    """Every card's row, largest share first."""
    ready, words = card_notes(db, "card ready"), card_notes(db, "card state")
    eager, compiled = measured(db, "eager"), measured(db, "compile")
    floors = {
        card_id: floor
        for card_id, floor, _ in db.execute(
            "SELECT card_id, floor_us, max(seq) FROM verdict WHERE floor_us IS NOT NULL GROUP BY card_id"
        )
    }
    rows = []
    for row in db.execute(_CARDS):
        card_id, title, op, calls, share, state, reason, op_class, synthetic = row[:9]
        attempts, failures, active, confirmed = row[9:13]
        best_id, best_us, speedup, low, high, best_confirmed, audit_class, best_state = row[13:]
        said = ready.get(card_id, {})
        shown, why = _card_state(state, reason, said, words.get(card_id, {}), best_state, active, attempts, confirmed)
        rows.append(
            CardRow(
                card_id=card_id,
                title=title,
                op=op,
                calls=calls,
                share=share,
                state=shown,
                reason=why,
                eager_us=eager.get(card_id, said.get("eager_us")),
                compile_us=compiled.get(card_id),
                floor_us=said.get("floor_us") or floors.get(card_id),
                best_id=best_id or "",
                best_us=best_us,
                speedup=speedup,
                low=low,
                high=high,
                provisional=best_id is not None and not best_confirmed,
                audit_class=audit_class or "",
                attempts=attempts,
                failures=failures,
                weak=bool(said.get("weak", not op_class)),
                synthetic=bool(synthetic),
            )
        )
    return rows


def _card_state(
    state: str,
    reason: str,
    ready: dict[str, Any],
    word: dict[str, Any],
    best_state: str | None,
    active: int,
    attempts: int,
    confirmed: int,
) -> tuple[str, str]:
    """The card's state with its reason: refused before undiscriminating before problem before champion before the rest."""
    said, why = str(word.get("state", "")), str(word.get("reason", ""))
    if state == "refused":
        return "refused", reason
    if ready and not ready.get("usable", True):
        return "undiscriminating", str(ready.get("line", ""))
    if said == "problem":
        return "problem", why
    if best_state == "champion":
        return "champion", why
    if said == "done":
        return ("tie" if confirmed else "done"), why
    if said:
        return said, why
    return ("running" if active or attempts else "waiting"), why


def card_notes(db: sqlite3.Connection, kind: str) -> dict[str, dict[str, Any]]:
    """subject -> value of the last note of a kind."""
    rows = db.execute(
        "SELECT n.subject, b.json FROM note n JOIN body b ON b.seq = n.seq WHERE n.kind = ? ORDER BY n.seq", (kind,)
    )
    return {subject: json.loads(text) for subject, text in rows}


def measured(db: sqlite3.Connection, kind: str) -> dict[str, float | None]:
    """subject -> last measured value of a kind, times in microseconds; None means unknown."""
    factor = {"ms": 1000.0, "s": 1e6}
    rows = db.execute("SELECT subject, value, unit FROM measurement WHERE kind = ? ORDER BY seq", (kind,))
    return {s: None if value is None else value * factor.get(unit, 1.0) for s, value, unit in rows}


def nodes(db: sqlite3.Connection, card_id: str, since: int) -> list[NodeRow]:
    """Baselines, then the card's candidates; only those changed after `since` when it is above 0."""
    # Rows are filled through __dict__: a frozen dataclass's __init__ costs twice the query (50,000 rows).
    rows: list[NodeRow] = [] if since else _baselines(db, card_id)
    new = object.__new__
    query = (
        "SELECT node_id, CASE parent_id WHEN '' THEN 'eager' ELSE parent_id END, card_id, seq, state, label, speedup,"
        " low, high, confirmed, time_us, visits, value, attempt, line, pinned FROM node WHERE card_id = ?"
    )
    if since:
        found = db.execute(query + " AND changed > ? ORDER BY number", (card_id, since))
    else:
        found = db.execute(query + " ORDER BY number", (card_id,))
    for values in found:
        row = new(NodeRow)
        fields = row.__dict__
        fields.update(zip(NODE_FIELDS, values, strict=True))
        fields["confirmed"] = values[9] == 1
        fields["pinned"] = values[15] == 1
        rows.append(row)
    return rows


def _baselines(db: sqlite3.Connection, card_id: str) -> list[NodeRow]:
    ready = card_notes(db, "card ready").get(card_id, {})
    eager = measured(db, "eager").get(card_id, ready.get("eager_us"))
    compiled = measured(db, "compile").get(card_id)
    speedup = 1.0 if eager is not None else None
    base = NodeRow(
        EAGER, "", card_id, 0, "baseline", "eager", speedup, None, None, eager is not None, eager, 0, None, 0, ""
    )
    if compiled is None:
        return [base]
    ratio = eager / compiled if eager and compiled else None
    second = NodeRow(
        COMPILE, EAGER, card_id, 0, "baseline", "torch.compile", ratio, None, None, True, compiled, 0, None, 0, ""
    )
    return [base, second]


def changes(db: sqlite3.Connection, since: Cursor) -> Changes:
    """Tables with rows after the cursor, and the cards and nodes that read differently."""
    tables: set[str] = set()
    last = since.seq
    for table in (*FACTS, "log"):
        found = db.execute(f"SELECT max(seq) FROM {table}").fetchone()[0]
        if found is not None and found > since.seq:
            tables.add(table)
            last = max(last, found)
    nodes = db.execute("SELECT node_id, card_id, changed FROM node WHERE changed > ?", (since.seq,)).fetchall()
    card_ids = {card_id for _, card_id, _ in nodes}
    if nodes:
        tables.add("node")
        last = max(last, *(changed for _, _, changed in nodes))
    for table, column in (("card", "card_id"), ("verdict", "card_id"), ("measurement", "subject"), ("note", "subject")):
        if table in tables:
            query = f"SELECT DISTINCT t.{column} FROM {table} t JOIN card c ON c.card_id = t.{column} WHERE t.seq > ?"
            card_ids.update(row[0] for row in db.execute(query, (since.seq,)))
    return Changes(Cursor(last), frozenset(tables), frozenset(card_ids), frozenset(row[0] for row in nodes))


def log(
    db: sqlite3.Connection,
    card_id: str | None,
    candidate_id: str | None,
    level: str | None,
    before: int | None,
    after: int | None,
    limit: int,
    search: str,
) -> list[LogRow]:
    """Matching lines in order, the last `limit` of them (the first when `after` is given)."""
    clauses, values = ["1"], []
    for clause, value in (
        ("card_id = ?", card_id),
        ("candidate_id = ?", candidate_id),
        ("seq < ?", before),
        ("seq > ?", after),
        ("instr(lower(text), lower(?)) > 0", search or None),
    ):
        if value is not None:
            clauses.append(clause)
            values.append(value)
    if level is not None:
        serious = LEVELS[LEVELS.index(level) :] if level in LEVELS else ()
        clauses.append(f"level IN ({','.join('?' * len(serious))})")
        values += serious
    order = "ASC" if after is not None else "DESC"
    found = db.execute(
        "SELECT seq, at, level, card_id, candidate_id, text FROM log"
        f" WHERE {' AND '.join(clauses)} ORDER BY seq {order} LIMIT ?",
        (*values, limit),
    ).fetchall()
    if after is None:
        found.reverse()
    return [LogRow(*row) for row in found]


def attempts(db: sqlite3.Connection, where: str, values: tuple[object, ...]) -> list[AttemptRow]:
    """Starts joined with their ends."""
    rows = db.execute(
        "SELECT a.seq, a.at, a.attempt_id, a.card_id, a.candidate_id, a.step, coalesce(e.state, 'started'), e.seconds,"
        " (SELECT json FROM body b WHERE b.seq = coalesce(e.seq, a.seq)) FROM"
        " (SELECT * FROM attempt WHERE state = 'started') a"
        f" LEFT JOIN attempt e ON e.attempt_id = a.attempt_id AND e.state IN ('done', 'lost') {where}"
        " GROUP BY a.seq ORDER BY a.seq",
        values,
    ).fetchall()
    return [AttemptRow(*(*row[:8], None if row[8] is None else json.loads(row[8]))) for row in rows]


def llm_calls(db: sqlite3.Connection, candidate_id: str | None) -> list[LlmCall]:
    """Requests with their replies."""
    call_id = ""
    if candidate_id is not None:
        row = db.execute(
            "SELECT json_extract(b.json, '$.detail.call_id') FROM candidate c JOIN body b ON b.seq = c.seq"
            " WHERE c.candidate_id = ?",
            (candidate_id,),
        ).fetchone()
        call_id = str(row[0]) if row and row[0] is not None else ""
    rows = db.execute(
        "SELECT q.seq, q.at, qb.json, rb.json, coalesce(r.seq, 0) FROM llm_call q JOIN body qb ON qb.seq = q.seq"
        " LEFT JOIN llm_call r ON r.call_id = q.call_id AND r.phase = 'reply' LEFT JOIN body rb ON rb.seq = r.seq"
        " WHERE q.phase = 'request' AND (?1 IS NULL OR q.node = ?1 OR q.call_id = ?2) ORDER BY q.seq",
        (candidate_id, call_id),
    ).fetchall()
    return [
        LlmCall(seq, at, loads(LlmRequest, request), loads(LlmReply, reply) if reply is not None else None, reply_seq)
        for seq, at, request, reply, reply_seq in rows
    ]


def highest_number(db: sqlite3.Connection) -> int:
    """Over every table that names a candidate, so that a missing row's id is never given out again."""
    best = db.execute("SELECT coalesce(max(number), 0) FROM candidate").fetchone()[0]
    for query in (
        "SELECT DISTINCT candidate_id FROM verdict WHERE candidate_id NOT IN (SELECT candidate_id FROM candidate)",
        "SELECT DISTINCT candidate_id FROM attempt WHERE candidate_id NOT IN (SELECT candidate_id FROM candidate)",
        "SELECT DISTINCT candidate_id FROM candidate_parent",
        "SELECT DISTINCT node FROM llm_call WHERE node NOT IN (SELECT candidate_id FROM candidate)",
    ):
        best = max(best, *(number_of(row[0]) for row in db.execute(query)), 0)
    return int(best)


def dangling(db: sqlite3.Connection) -> list[str]:
    """Rows that refer to rows which are not there."""
    lines = []
    for what, query in (
        ("edge", "SELECT parent_id FROM candidate_parent p WHERE NOT EXISTS"
         " (SELECT 1 FROM candidate c WHERE c.candidate_id = p.parent_id)"),
        ("verdict", "SELECT candidate_id FROM verdict v WHERE NOT EXISTS"
         " (SELECT 1 FROM candidate c WHERE c.candidate_id = v.candidate_id)"),
        ("reply", "SELECT call_id FROM llm_call r WHERE phase = 'reply' AND NOT EXISTS"
         " (SELECT 1 FROM llm_call q WHERE q.call_id = r.call_id AND q.phase = 'request')"),
    ):  # fmt: skip
        for (name,) in db.execute(query):
            lines.append(f"a {what} row refers to {name}, which is missing")
    return lines
