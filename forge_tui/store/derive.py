"""The derived state of nodes: a pure rule over a node's facts, and the SQL that keeps the `node` table true to it.

Invariants: `node` holds nothing that can't be computed from facts, except visits and value, which the search writes;
the state kept step by step equals the state rebuilt from nothing (a test compares them). A node's state:

    queued      no attempt is open and nothing has been judged
    running     an attempt is open and nothing has been judged; `line` names the step
    rejected    the last judgement that counts says so; `repair` while a repair of it is on its way
    correct     right, and timed
    champion    the best confirmed candidate of its card (highest confirmed speed-up that is not stale)
    unknown     right but not timed, or not run for want of a device: its speed is unknown
    problem     only void judgements so far: the harness or the machine failed, not the candidate
    pruned      the user or the search gave it up; a champion that is pruned keeps its title
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from forge_tui.store.facts import one_line

NOT_RUN = ("no device", "not run")
FINAL = ("correct", "champion", "rejected", "unknown", "problem")


@dataclass(frozen=True)
class Judged:
    """The columns of one verdict row that decide."""

    seq: int
    outcome: str
    confirmation: bool
    worthy: bool
    speedup: float | None
    low: float | None
    high: float | None
    candidate_us: float | None
    blame: str
    kind: str
    line: str


@dataclass(frozen=True)
class NodeFacts:
    """Everything a node's state depends on. stale_seq: judgements before it are provisional again."""

    judged: tuple[Judged, ...]
    open_step: str
    repairing: bool
    pruned: bool
    pinned: bool
    stale_seq: int


@dataclass(frozen=True)
class NodeState:
    """What the list shows. worthy: confirmed faster and not stale, so it competes for champion."""

    state: str
    speedup: float | None
    low: float | None
    high: float | None
    confirmed: bool
    time_us: float | None
    line: str
    pinned: bool
    pruned: bool
    worthy: bool


def node_state(facts: NodeFacts) -> NodeState:
    """The rule of the module's docstring."""
    counting = [j for j in facts.judged if j.outcome != "void"]
    if not counting:
        return _unjudged(facts)
    last = counting[-1]
    if last.outcome == "rejected":
        state = "repair" if facts.repairing or facts.open_step == "propose" else "rejected"
        line = last.line or last.kind
        return _finish(facts, NodeState(state, None, None, None, False, None, line, False, False, False))
    confirmations = [j for j in counting if j.confirmation and j.outcome == "correct"]
    shown = confirmations[-1] if confirmations else last
    confirmed = shown.confirmation and shown.seq > facts.stale_seq
    state = "unknown" if shown.speedup is None else "correct"
    worthy = confirmed and shown.worthy
    line = facts.open_step if facts.open_step in ("judge", "confirm") else ""
    if shown.confirmation and not confirmed:
        line = line or "measured on another device, driver or torch: to be confirmed again"
    return _finish(
        facts,
        NodeState(
            state, shown.speedup, shown.low, shown.high, confirmed, shown.candidate_us, line, False, False, worthy
        ),
    )


def _unjudged(facts: NodeFacts) -> NodeState:
    if facts.open_step:
        return _finish(facts, NodeState("running", None, None, None, False, None, facts.open_step, False, False, False))
    if not facts.judged:
        return _finish(facts, NodeState("queued", None, None, None, False, None, "", False, False, False))
    void = facts.judged[-1]
    state = "unknown" if void.kind in NOT_RUN or not void.blame else "problem"
    return _finish(facts, NodeState(state, None, None, None, False, None, void.line, False, False, False))


def _finish(facts: NodeFacts, s: NodeState) -> NodeState:
    state = "pruned" if facts.pruned else s.state
    return NodeState(
        state, s.speedup, s.low, s.high, s.confirmed, s.time_us, s.line, facts.pinned, facts.pruned, s.worthy
    )


_JUDGED = (
    "SELECT seq, outcome, confirmation, worthy, speedup, low, high, candidate_us, blame, kind, line"
    " FROM verdict WHERE candidate_id = ? ORDER BY seq"
)
_OPEN = (
    "SELECT step FROM attempt a WHERE candidate_id = ? AND state = 'started' AND NOT EXISTS"
    " (SELECT 1 FROM attempt b WHERE b.attempt_id = a.attempt_id AND b.state IN ('done', 'lost'))"
    " ORDER BY seq DESC LIMIT 1"
)
_LAST_NOTE = "SELECT kind, seq FROM note WHERE subject = ? AND kind IN (?, ?) ORDER BY seq DESC LIMIT 1"
_STALE = "SELECT max(seq) FROM note WHERE kind = 'stale' AND subject IN ('', ?, ?)"
_REPAIRS = (
    "SELECT c.seq, n.state FROM candidate_parent p JOIN candidate c ON c.candidate_id = p.candidate_id"
    " JOIN node n ON n.node_id = c.candidate_id WHERE p.parent_id = ? AND c.attempt > 1 ORDER BY c.seq DESC"
)


def read_facts(connection: sqlite3.Connection, node_id: str, card_id: str) -> NodeFacts:
    """The facts of one node."""
    judged = tuple(
        Judged(s, o, bool(c), bool(w), sp, lo, hi, us, blame, kind, line)
        for s, o, c, w, sp, lo, hi, us, blame, kind, line in connection.execute(_JUDGED, (node_id,))
    )
    step = connection.execute(_OPEN, (node_id,)).fetchone()
    stale = connection.execute(_STALE, (card_id, node_id)).fetchone()[0]
    return NodeFacts(
        judged,
        step[0] if step else "",
        _repairing(connection, node_id) if judged else False,
        _note(connection, node_id, "prune", "unprune")[0],
        _note(connection, node_id, "pin", "unpin")[0],
        stale or 0,
    )


def _note(connection: sqlite3.Connection, node_id: str, on: str, off: str) -> tuple[bool, int]:
    row = connection.execute(_LAST_NOTE, (node_id, on, off)).fetchone()
    return (row[0] == on, row[1]) if row else (False, 0)


def _repairing(connection: sqlite3.Connection, node_id: str) -> bool:
    repairs = connection.execute(_REPAIRS, (node_id,)).fetchall()
    if any(state in ("queued", "running") for _, state in repairs):
        return True
    announced, seq = _note(connection, node_id, "repair", "repair over")
    return announced and not any(child_seq > seq for child_seq, _ in repairs)


def insert_node(connection: sqlite3.Connection, seq: int, columns: Mapping[str, object]) -> None:
    """A new candidate's row, queued."""
    connection.execute(
        "INSERT INTO node (card_id, number, node_id, parent_id, seq, state, label, confirmed, visits, attempt, line,"
        " pinned, pruned, worthy, audit_class, changed) VALUES (?,?,?,?,?,'queued',?,0,0,?,'',0,0,0,?,?)",
        (
            columns["card_id"], columns["number"], columns["candidate_id"], columns["parent_id"], seq,
            columns["label"], columns["attempt"], columns["audit_class"], seq,
        ),
    )  # fmt: skip


def refresh(connection: sqlite3.Connection, node_ids: Iterable[str], seq: int) -> None:
    """Recompute these nodes ("*": all), their champion and, after a repair, their parents."""
    cards: set[str] = set()
    for node_id in _expand(connection, node_ids):
        row = connection.execute("SELECT card_id, attempt FROM node WHERE node_id = ?", (node_id,)).fetchone()
        if row is None:  # a fact about a node whose row is gone: kept, shown nowhere
            continue
        cards.add(row[0])
        _refresh_one(connection, node_id, row[0], seq)
        if row[1] > 1:
            for (parent,) in connection.execute(
                "SELECT p.parent_id FROM candidate_parent p JOIN node n ON n.node_id = p.parent_id"
                " WHERE p.candidate_id = ? AND n.card_id = ?",
                (node_id, row[0]),
            ).fetchall():
                _refresh_one(connection, parent, row[0], seq)
    for card_id in cards:
        crown(connection, card_id, seq)


def _expand(connection: sqlite3.Connection, node_ids: Iterable[str]) -> list[str]:
    wanted = list(node_ids)
    if "*" not in wanted:
        return wanted
    return [row[0] for row in connection.execute("SELECT node_id FROM node ORDER BY number DESC")]


def _refresh_one(connection: sqlite3.Connection, node_id: str, card_id: str, seq: int) -> None:
    s = node_state(read_facts(connection, node_id, card_id))
    values = (
        s.state, s.speedup, s.low, s.high, int(s.confirmed), s.time_us, one_line(s.line), int(s.pinned),
        int(s.pruned), int(s.worthy),
    )  # fmt: skip
    # `IS NOT` keeps `changed` where nothing changed, so viewers re-read little.
    connection.execute(
        "UPDATE node SET state = ?1, speedup = ?2, low = ?3, high = ?4, confirmed = ?5, time_us = ?6, line = ?7,"
        " pinned = ?8, pruned = ?9, worthy = ?10, changed = ?11 WHERE node_id = ?12 AND"
        " (state, speedup, low, high, confirmed, time_us, line, pinned, pruned, worthy)"
        " IS NOT (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        (*values, seq, node_id),
    )


def crown(connection: sqlite3.Connection, card_id: str, seq: int) -> None:
    """Give the card's title to its best confirmed node; earlier rows win a tie.

    The indexes are named because SQLite's planner would walk the whole tree by its primary key.
    """
    best = connection.execute(
        "SELECT node_id FROM node INDEXED BY node_by_worth WHERE card_id = ? AND worthy = 1"
        " ORDER BY speedup DESC, number LIMIT 1",
        (card_id,),
    ).fetchone()
    winner = best[0] if best else ""
    connection.execute(
        "UPDATE node INDEXED BY node_champion SET state = CASE pruned WHEN 1 THEN 'pruned' ELSE 'correct' END, changed = ?"
        " WHERE card_id = ? AND state = 'champion' AND node_id <> ?",
        (seq, card_id, winner),
    )
    connection.execute(
        "UPDATE node SET state = 'champion', changed = ? WHERE node_id = ? AND state <> 'champion'", (seq, winner)
    )


Statistics = Callable[[Sequence[tuple[str, str, str, float | None]]], Mapping[str, tuple[int, float | None]]]


def subtree_visits(
    nodes: Sequence[tuple[str, str, str, float | None]],
) -> dict[str, tuple[int, float | None]]:
    """Visits as the number of finished nodes below and including each one; the value stays unknown.

    nodes: (node id, parent id, state, speed-up) of one card in order of creation.
    """
    visits = {node_id: int(state in FINAL) for node_id, _, state, _ in nodes}
    for node_id, parent, _, _ in reversed(nodes):
        if parent in visits:
            visits[parent] += visits[node_id]
    return {node_id: (count, None) for node_id, count in visits.items()}


def rebuild(connection: sqlite3.Connection, statistics: Statistics, seq: int) -> int:
    """Throw the `node` table away and derive it from facts alone. Returns the number of nodes."""
    connection.execute("DELETE FROM node")
    rows = connection.execute(
        "SELECT seq, card_id, number, candidate_id, parent_id, label, attempt, audit_class FROM candidate ORDER BY seq"
    ).fetchall()
    for row in rows:
        names = ("card_id", "number", "candidate_id", "parent_id", "label", "attempt", "audit_class")
        insert_node(connection, row[0], dict(zip(names, row[1:], strict=True)))
    refresh(connection, ("*",), seq)
    cards = [row[0] for row in connection.execute("SELECT DISTINCT card_id FROM node")]
    for card_id in cards:
        nodes = connection.execute(
            "SELECT node_id, parent_id, state, speedup FROM node WHERE card_id = ? ORDER BY number", (card_id,)
        ).fetchall()
        write_statistics(connection, card_id, statistics(nodes), seq)
    return len(rows)


def write_statistics(
    connection: sqlite3.Connection, card_id: str, rows: Mapping[str, tuple[int, float | None]], seq: int
) -> None:
    """What the search knows of each node: visits and value."""
    connection.executemany(
        "UPDATE node SET visits = ?1, value = ?2, changed = ?3 WHERE node_id = ?4 AND card_id = ?5"
        " AND (visits, value) IS NOT (?1, ?2)",
        [(visits, value, seq, node_id, card_id) for node_id, (visits, value) in rows.items()],
    )
