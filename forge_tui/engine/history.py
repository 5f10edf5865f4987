"""A session's facts as the engine needs them to go on: whole records in order, read once at the start."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from forge_tui.records.candidate import Binary, Candidate
from forge_tui.records.card import Card
from forge_tui.records.codec import from_json, loads
from forge_tui.records.judging import CardReady
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.verdict import Verdict
from forge_tui.records.workload import Captured, Loaded, WorkloadSpec
from forge_tui.store.schema import connect_reader

T = TypeVar("T")


@dataclass(frozen=True)
class OpenAttempt:
    """An attempt that started and never ended."""

    attempt_id: str
    card_id: str
    candidate_id: str
    step: str


class History:
    """Read-only queries over one session's database; `close` when done."""

    def __init__(self, database: Path) -> None:
        self._connection: sqlite3.Connection = connect_reader(database)

    def close(self) -> None:
        self._connection.close()

    def spec(self) -> WorkloadSpec | None:
        return self._newest_workload("spec", WorkloadSpec)

    def loaded(self) -> Loaded | None:
        return self._newest_workload("loaded", Loaded)

    def captured(self) -> Captured | None:
        return self._newest_workload("captured", Captured)

    def cards(self) -> list[Card]:
        """The newest row of every card, in order of capture."""
        found: dict[str, Card] = {}
        for (text,) in self._bodies("card"):
            card = loads(Card, text)
            found[card.card_id] = card
        return list(found.values())

    def candidates(self) -> list[Candidate]:
        return [loads(Candidate, text) for (text,) in self._bodies("candidate")]

    def verdicts(self) -> list[Verdict]:
        return [loads(Verdict, text) for (text,) in self._bodies("verdict")]

    def notes(self, kind: str) -> dict[str, Any]:
        """Newest value of each subject for notes of one kind."""
        rows = self._connection.execute(
            "SELECT n.subject, b.json FROM note n LEFT JOIN body b ON b.seq = n.seq WHERE n.kind = ? ORDER BY n.seq",
            (kind,),
        )
        return {subject: json.loads(text) if text is not None else None for subject, text in rows}

    def last_of(self, first: str, second: str) -> set[str]:
        """Subjects whose newest note of the two kinds is `first` (prune/unprune, pin/unpin)."""
        rows = self._connection.execute(
            "SELECT subject, kind FROM note WHERE kind IN (?, ?) ORDER BY seq", (first, second)
        )
        state = dict(rows.fetchall())
        return {subject for subject, kind in state.items() if kind == first}

    def ready(self) -> dict[str, CardReady]:
        return {card_id: from_json(CardReady, value) for card_id, value in self.notes("card ready").items()}

    def calls(self) -> list[tuple[LlmRequest, LlmReply | None]]:
        """Every model call with its reply, in order of the requests."""
        rows = self._connection.execute(
            "SELECT q.call_id, b.json, c.json FROM llm_call q JOIN body b ON b.seq = q.seq"
            " LEFT JOIN llm_call r ON r.call_id = q.call_id AND r.phase = 'reply' LEFT JOIN body c ON c.seq = r.seq"
            " WHERE q.phase = 'request' ORDER BY q.seq"
        )
        return [(loads(LlmRequest, asked), loads(LlmReply, got) if got else None) for _, asked, got in rows]

    def open_attempts(self) -> list[OpenAttempt]:
        rows = self._connection.execute(
            "SELECT attempt_id, card_id, candidate_id, step FROM attempt a WHERE state = 'started' AND NOT EXISTS"
            " (SELECT 1 FROM attempt b WHERE b.attempt_id = a.attempt_id AND b.state IN ('done', 'lost')) ORDER BY seq"
        )
        return [OpenAttempt(*row) for row in rows]

    def binaries(self) -> dict[str, Binary]:
        """Newest compiled form of every candidate that has one."""
        rows = self._connection.execute(
            "SELECT a.candidate_id, b.json FROM attempt a JOIN body b ON b.seq = a.seq"
            " WHERE a.step = 'compile' AND a.state = 'done' ORDER BY a.seq"
        )
        found = {}
        for candidate_id, text in rows:
            detail = json.loads(text)
            if "binary" in detail:
                found[candidate_id] = from_json(Binary, detail["binary"])
        return found

    def seconds_spent(self) -> float:
        """Wall time of earlier runs of this session's search, from run rows."""
        total, since = 0.0, None
        for event, at in self._connection.execute("SELECT event, at FROM run ORDER BY seq"):
            if event in ("started", "resumed", "unpaused"):
                since = at
            elif event in ("paused", "ended", "interrupted") and since is not None:
                total, since = total + at - since, None
        return total

    def _bodies(self, table: str) -> list[tuple[str]]:
        return self._connection.execute(
            f"SELECT b.json FROM {table} t JOIN body b ON b.seq = t.seq ORDER BY t.seq"
        ).fetchall()

    def _newest_workload(self, kind: str, cls: type[T]) -> T | None:
        row = self._connection.execute(
            "SELECT b.json FROM workload w JOIN body b ON b.seq = w.seq WHERE w.kind = ? ORDER BY w.seq DESC LIMIT 1",
            (kind,),
        ).fetchone()
        return loads(cls, row[0]) if row else None
