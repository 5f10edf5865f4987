"""Queries behind the lists: cards, nodes, log, changes. Each takes an open snapshot."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from forge_tui.records.views import CardRow, Changes, LogRow, NodeRow
from forge_tui.store.facts import number_of
from forge_tui.store.schema import FACTS

EAGER, COMPILE = "eager", "compile"  # node ids of a card's baselines

_CARDS = """
WITH latest AS (SELECT max(seq) AS seq FROM card GROUP BY card_id),
 counts AS (SELECT card_id, count(*) AS attempts, sum(state IN ('rejected', 'repair')) AS failures,
    sum(state IN ('queued', 'running', 'repair')) AS active, sum(confirmed) AS confirmed FROM node GROUP BY card_id)
SELECT c.card_id, c.title, c.op, c.calls, c.share, c.state, c.reason, c.op_class, c.synthetic,
    coalesce(n.attempts, 0), coalesce(n.failures, 0), coalesce(n.active, 0), coalesce(n.confirmed, 0)
 FROM latest l JOIN card c ON c.seq = l.seq LEFT JOIN counts n ON n.card_id = c.card_id
 ORDER BY c.share IS NULL, c.share DESC, c.seq
"""
_BEST = (
    "SELECT node_id, time_us, speedup, low, high, confirmed, audit_class, state FROM node INDEXED BY {index}"
    " WHERE card_id = ? AND {rule}"
)
_NO_BEST: tuple[Any, ...] = ("", None, None, None, None, 1, "", "")


def cards(db: sqlite3.Connection) -> list[CardRow]:
    """Every card's row, largest share first."""
    ready, words = card_notes(db, "card ready"), card_notes(db, "card state")
    eager, compiled = measured(db, "eager"), measured(db, "compile")
    rows = []
    for row in db.execute(_CARDS).fetchall():
        card_id, title, op, calls, share, state, reason, op_class, synthetic, attempts, failures, active, confirmed = (
            row
        )
        best_id, best_us, speedup, low, high, best_confirmed, audit_class, best_state = _best(db, card_id)
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
                eager_us=eager.get(card_id) or said.get("eager_us") or _last(db, "baseline_us", card_id),
                compile_us=compiled.get(card_id),
                floor_us=said.get("floor_us") or _last(db, "floor_us", card_id),
                best_id=best_id,
                best_us=best_us,
                speedup=speedup,
                low=low,
                high=high,
                provisional=not best_confirmed,
                audit_class=audit_class,
                attempts=attempts,
                failures=failures,
                weak=bool(said.get("weak", not op_class)),
                synthetic=bool(synthetic),
            )
        )
    return rows


def _best(db: sqlite3.Connection, card_id: str) -> tuple[Any, ...]:
    """The champion, else the fastest right node so far."""
    found = db.execute(_BEST.format(index="node_champion", rule="state = 'champion'"), (card_id,)).fetchone()
    if found is None:
        rule = "speedup IS NOT NULL AND state IN ('correct', 'pruned') ORDER BY speedup DESC, number LIMIT 1"
        found = db.execute(_BEST.format(index="node_by_speedup", rule=rule), (card_id,)).fetchone()
    return found or _NO_BEST


_INDEX_OF = {"baseline_us": "verdict_with_time", "floor_us": "verdict_with_floor"}


def _last(db: sqlite3.Connection, column: str, card_id: str) -> float | None:
    """The newest known value of a verdict column."""
    row = db.execute(
        f"SELECT {column} FROM verdict INDEXED BY {_INDEX_OF[column]} WHERE card_id = ? AND {column} IS NOT NULL"
        " ORDER BY seq DESC LIMIT 1",
        (card_id,),
    ).fetchone()
    return row[0] if row else None


def _card_state(
    state: str,
    reason: str,
    ready: dict[str, Any],
    word: dict[str, Any],
    best_state: str,
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


_NODES = (
    "SELECT node_id, CASE parent_id WHEN '' THEN 'eager' ELSE parent_id END, card_id, seq, state, label, speedup,"
    " low, high, confirmed, time_us, visits, value, attempt, line, pinned FROM node"
)


def nodes(db: sqlite3.Connection, card_id: str) -> list[NodeRow]:
    """Baselines, then the card's candidates in order of creation."""
    rows = _baselines(db, card_id)
    return rows + _rows(db.execute(f"{_NODES} WHERE card_id = ? ORDER BY number", (card_id,)))


def _rows(found: Iterable[tuple[Any, ...]]) -> list[NodeRow]:
    """Rows are filled through __dict__: a frozen dataclass's __init__ costs as much as the query (50,000 rows)."""
    rows = []
    new = object.__new__
    for values in found:
        row = new(NodeRow)
        to = row.__dict__
        (
            to["node_id"], to["parent_id"], to["card_id"], to["seq"], to["state"], to["label"], to["speedup"],
            to["low"], to["high"], confirmed, to["time_us"], to["visits"], to["value"], to["attempt"], to["line"], pinned,
        ) = values  # fmt: skip
        to["confirmed"] = confirmed == 1
        to["pinned"] = pinned == 1
        rows.append(row)
    return rows


def _baselines(db: sqlite3.Connection, card_id: str) -> list[NodeRow]:
    ready = card_notes(db, "card ready").get(card_id, {})
    eager = measured(db, "eager").get(card_id) or ready.get("eager_us") or _last(db, "baseline_us", card_id)
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


def changes(db: sqlite3.Connection, since: int) -> Changes:
    """What happened after `since`: whole node rows, and which other lists should be read again."""
    tables = set()
    last = since
    for table in (*FACTS, "log"):
        found = db.execute(f"SELECT max(seq) FROM {table}").fetchone()[0]
        if found is not None and found > since:
            tables.add(table)
            last = max(last, found)
    changed = db.execute("SELECT max(changed) FROM node").fetchone()[0]
    rows: list[NodeRow] = []
    if changed is not None and changed > since:
        tables.add("node")
        last = max(last, changed)
    for card_id in _baselines_changed(db, since) if tables & {"note", "measurement"} else ():
        rows += _baselines(db, card_id)
    if "node" in tables:
        rows += _rows(db.execute(f"{_NODES} WHERE changed > ? ORDER BY number", (since,)))
    return Changes(
        seq=last,
        nodes=tuple(rows),
        cards=bool(tables & {"card", "node", "note", "measurement", "verdict"}),
        status=bool(tables - {"log", "workload", "card", "decision"}),
        model=bool(tables & {"workload", "card", "measurement", "verdict", "note"}),
        log="log" in tables,
    )


def _baselines_changed(db: sqlite3.Connection, since: int) -> list[str]:
    found = db.execute(
        "SELECT subject FROM note WHERE seq > ?1 AND kind = 'card ready' UNION"
        " SELECT m.subject FROM measurement m JOIN card c ON c.card_id = m.subject WHERE m.seq > ?1"
        " AND m.kind IN ('eager', 'compile')",
        (since,),
    )
    return [row[0] for row in found]


def newest(db: sqlite3.Connection) -> int:
    """The newest sequence number of anything a list shows."""
    found = [db.execute(f"SELECT max(seq) FROM {table}").fetchone()[0] for table in (*FACTS, "log")]
    found.append(db.execute("SELECT max(changed) FROM node").fetchone()[0])
    return max((n for n in found if n is not None), default=0)


@dataclasses.dataclass(frozen=True)
class LogFilter:
    """Which log lines. Empty fields admit all; `text` is a part of the line, in any case."""

    card_id: str = ""
    candidate_id: str = ""
    levels: tuple[str, ...] = ()
    text: str = ""
    before: int | None = None
    after: int | None = None

    def where(self) -> tuple[str, list[Any]]:
        clauses, values = ["1"], list[Any]()
        for clause, value in (
            ("card_id = ?", self.card_id or None),
            ("candidate_id = ?", self.candidate_id or None),
            ("seq < ?", self.before),
            ("seq > ?", self.after),
            ("instr(lower(text), lower(?)) > 0", self.text or None),
        ):
            if value is not None:
                clauses.append(clause)
                values.append(value)
        if self.levels:
            clauses.append(f"level IN ({','.join('?' * len(self.levels))})")
            values += self.levels
        return " AND ".join(clauses), values


def log(db: sqlite3.Connection, chosen: LogFilter, limit: int) -> list[LogRow]:
    """The newest `limit` matching lines, in ascending order."""
    where, values = chosen.where()
    found = db.execute(
        f"SELECT seq, at, level, card_id, candidate_id, text FROM log WHERE {where} ORDER BY seq DESC LIMIT ?",
        (*values, limit),
    ).fetchall()
    return [LogRow(*row) for row in reversed(found)]


def log_count(db: sqlite3.Connection, chosen: LogFilter) -> int:
    where, values = chosen.where()
    return int(db.execute(f"SELECT count(*) FROM log WHERE {where}", values).fetchone()[0])


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
