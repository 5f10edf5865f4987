"""Read-only view of a session, for the screen, the command line, viewers and the owner itself.

Invariants: a reader never writes and never blocks the writer; every method answers from one snapshot of the database,
held no longer than the query takes; a fact that was announced is in every later answer. Safe to call from any thread.
Damage is one MachineProblem line, never a sqlite3 exception.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from forge_tui.records.candidate import Candidate
from forge_tui.records.card import Card
from forge_tui.records.codec import RecordError, loads
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.problem import HarnessProblem, MachineProblem
from forge_tui.records.verdict import Measurement, Verdict
from forge_tui.records.views import (
    AttemptRow,
    CardRow,
    Changes,
    LlmCallRow,
    LogRow,
    ModelRow,
    NodeRow,
    RunStatus,
    SessionSummary,
)
from forge_tui.records.workload import Captured, Loaded, ModelVerdict, WorkloadSpec
from forge_tui.store import lists, overview, timeline
from forge_tui.store.blobs import Blobs
from forge_tui.store.rows import (
    CommandRow,
    DecisionRow,
    Integrity,
    LlmCall,
    NoteRow,
    RunRow,
    StepRow,
    Unfinished,
)
from forge_tui.store.schema import FACTS, check_file, connect_reader, damage_line, format_of
from forge_tui.store.session import DATABASE

T = TypeVar("T")


class Reader:
    """Opens the database of the session at `path`. Raises UserInputError or MachineProblem."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.database = self.path / DATABASE
        self._lock = threading.Lock()
        check_file(self.database)
        try:
            self._connection = connect_reader(self.database)
            format_of(self._connection, self.database)
        except sqlite3.Error as error:
            raise MachineProblem(damage_line(self.database, error)) from None
        self._version = -1
        self._read_to = -1

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN")
                try:
                    yield self._connection
                finally:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
            except sqlite3.ProgrammingError as error:
                raise HarnessProblem(f"the session was read after it was closed: {error}") from None
            except sqlite3.Error as error:
                raise MachineProblem(damage_line(self.database, error)) from None
            except (RecordError, json.JSONDecodeError) as error:
                raise MachineProblem(f"a row of {self.database} can't be understood: {error}") from None

    # Lists

    def cards(self) -> list[CardRow]:
        """Every card, largest share of time first."""
        with self._snapshot() as db:
            return lists.cards(db)

    def nodes(self, card_id: str) -> list[NodeRow]:
        """The card's tree in order of creation: its baselines, then every candidate. Roots hang under "eager"."""
        was_enabled = gc.isenabled()
        gc.disable()  # 50,000 rows that live on: collections in between cost more than the rows
        try:
            with self._snapshot() as db:
                return lists.nodes(db, card_id)
        finally:
            if was_enabled:
                gc.enable()

    def seq(self) -> int:
        """The newest sequence number; where `changes` starts from."""
        with self._snapshot() as db:
            return lists.newest(db)

    def changes(self, since: int) -> Changes:
        """What happened after `since`. Costs one pragma when nothing was committed in between."""
        with self._snapshot() as db:
            version = int(db.execute("PRAGMA data_version").fetchone()[0])
            if version == self._version and since >= self._read_to >= 0:
                return Changes(since)
            changes = lists.changes(db, since)
            self._version, self._read_to = version, changes.seq
            return changes

    def log(
        self,
        *,
        card_id: str = "",
        candidate_id: str = "",
        levels: tuple[str, ...] = (),
        text: str = "",
        before: int | None = None,
        after: int | None = None,
        limit: int = 500,
    ) -> list[LogRow]:
        """The newest `limit` lines that match and lie in after < seq < before, in ascending order."""
        with self._snapshot() as db:
            return lists.log(db, lists.LogFilter(card_id, candidate_id, levels, text, before, after), limit)

    def log_count(
        self, *, card_id: str = "", candidate_id: str = "", levels: tuple[str, ...] = (), text: str = ""
    ) -> int:
        """How many log lines match."""
        with self._snapshot() as db:
            return lists.log_count(db, lists.LogFilter(card_id, candidate_id, levels, text))

    # The run

    def status(self) -> RunStatus:
        with self._snapshot() as db:
            return overview.status(db, self.path)

    def model(self) -> ModelRow | None:
        """The whole model, None before it was captured."""
        with self._snapshot() as db:
            return overview.model(db, lists.cards(db))

    def runs(self) -> list[RunRow]:
        """Every event of the run, oldest first."""
        with self._snapshot() as db:
            rows = db.execute(
                "SELECT seq, at, event, pid, host, line, (SELECT json FROM body b WHERE b.seq = r.seq) FROM run r ORDER BY seq"
            ).fetchall()
        return [RunRow(*(*row[:6], _json(row[6]))) for row in rows]

    def workload(self) -> tuple[WorkloadSpec | None, Loaded | None]:
        """How the workload is built, and what it was when it was last loaded."""
        with self._snapshot() as db:
            return overview.latest(db, "spec", WorkloadSpec), overview.latest(db, "loaded", Loaded)

    def captured(self) -> Captured | None:
        """The last capture with its cards, or None."""
        with self._snapshot() as db:
            return overview.captured(db)

    def model_verdicts(self) -> list[ModelVerdict]:
        return self._bodies(ModelVerdict, "SELECT seq FROM workload WHERE kind = 'model verdict' ORDER BY seq")

    def measurements(self, subject: str | None = None, kind: str | None = None) -> list[Measurement]:
        """Measurements, oldest first, of one subject or kind or all."""
        return self._bodies(
            Measurement,
            "SELECT seq FROM measurement WHERE (?1 IS NULL OR subject = ?1) AND (?2 IS NULL OR kind = ?2) ORDER BY seq",
            subject,
            kind,
        )

    def notes(self, subject: str | None = None, kind: str | None = None) -> list[NoteRow]:
        with self._snapshot() as db:
            rows = db.execute(
                "SELECT seq, at, kind, subject, (SELECT json FROM body b WHERE b.seq = n.seq) FROM note n"
                " WHERE (?1 IS NULL OR subject = ?1) AND (?2 IS NULL OR kind = ?2) ORDER BY seq",
                (subject, kind),
            ).fetchall()
        return [NoteRow(*(*row[:4], _json(row[4]))) for row in rows]

    def decisions(self, card_id: str | None = None) -> list[DecisionRow]:
        with self._snapshot() as db:
            rows = db.execute(
                "SELECT seq, at, card_id, node_id, strategy, (SELECT json FROM body b WHERE b.seq = d.seq), line"
                " FROM decision d WHERE (?1 IS NULL OR card_id = ?1) ORDER BY seq",
                (card_id,),
            ).fetchall()
        return [DecisionRow(*(*row[:5], _json(row[5]), row[6])) for row in rows]

    def commands(self) -> list[CommandRow]:
        with self._snapshot() as db:
            rows = db.execute(
                "SELECT c.seq, c.at, verb, subject, sender, coalesce(a.outcome, ''), coalesce(a.line, '') FROM command c"
                " LEFT JOIN acknowledgement a ON a.command_seq = c.seq ORDER BY c.seq"
            ).fetchall()
        return [CommandRow(*row) for row in rows]

    # One candidate, one card

    def card(self, card_id: str) -> Card | None:
        """The newest row of a card, None when there is none."""
        found = self._bodies(Card, "SELECT seq FROM card WHERE card_id = ? ORDER BY seq DESC LIMIT 1", card_id)
        return found[0] if found else None

    def candidate(self, candidate_id: str) -> Candidate | None:
        """None when there is none."""
        found = self._bodies(Candidate, "SELECT seq FROM candidate WHERE candidate_id = ?", candidate_id)
        return found[0] if found else None

    def candidates(self, card_id: str | None = None) -> list[Candidate]:
        """Whole records, in order of creation; for resume and export, not for lists."""
        return self._bodies(
            Candidate, "SELECT seq FROM candidate WHERE (?1 IS NULL OR card_id = ?1) ORDER BY seq", card_id
        )

    def source(self, candidate_id: str) -> str:
        """The candidate's kernel source, "" when there is no such candidate."""
        found = self.candidate(candidate_id)
        return found.source if found else ""

    def duplicates(self, card_id: str, digest: str) -> list[str]:
        """Ids of the card's candidates with this digest."""
        with self._snapshot() as db:
            rows = db.execute(
                "SELECT candidate_id FROM candidate WHERE card_id = ? AND digest = ? ORDER BY seq", (card_id, digest)
            ).fetchall()
        return [row[0] for row in rows]

    def verdicts(self, candidate_id: str) -> list[Verdict]:
        """Every verdict of a candidate, oldest first."""
        return self._bodies(Verdict, "SELECT seq FROM verdict WHERE candidate_id = ? ORDER BY seq", candidate_id)

    def attempts(self, candidate_id: str) -> list[AttemptRow]:
        """The candidate's timeline, oldest first: prompts, replies, compiles, runs, verdicts, notes."""
        with self._snapshot() as db:
            return timeline.timeline(db, candidate_id)

    def steps(self, candidate_id: str) -> list[StepRow]:
        """The attempt rows of a candidate, in order of their start."""
        with self._snapshot() as db:
            return timeline.steps(db, "WHERE a.candidate_id = ?", (candidate_id,))

    def report(self, candidate_id: str) -> dict[str, Any] | None:
        """The compiler's resource report, None while the candidate is not compiled."""
        with self._snapshot() as db:
            return timeline.report(db, candidate_id)

    def llm_calls(self, candidate_id: str) -> list[LlmCallRow]:
        """The model calls that led to the candidate, oldest first."""
        with self._snapshot() as db:
            return [timeline.call_row(call) for call in timeline.calls_of(db, candidate_id)]

    def calls(self) -> list[LlmCall]:
        """Every model call of the session, in order of the requests."""
        with self._snapshot() as db:
            return timeline.calls(db)

    def unfinished(self) -> Unfinished:
        """Attempts without an end, model requests without a reply."""
        with self._snapshot() as db:
            attempts = timeline.steps(db, "WHERE e.seq IS NULL", ())
            open_calls = [call.request for call in timeline.calls(db) if call.reply is None]
        return Unfinished(tuple(attempts), tuple(open_calls))

    def highest_number(self) -> int:
        """The largest n of any candidate id that a row mentions, 0 for none."""
        with self._snapshot() as db:
            return lists.highest_number(db)

    def replies(self) -> list[tuple[LlmRequest, LlmReply]]:
        """Answered calls in order of arrival, for replay."""
        answered = sorted((call for call in self.calls() if call.reply is not None), key=lambda call: call.reply_seq)
        return [(call.request, call.reply) for call in answered if call.reply is not None]

    def summary(self) -> SessionSummary:
        """The session's line on the home screen."""
        with self._snapshot() as db:
            return overview.summary(db, self.path)

    def integrity(self) -> Integrity:
        """Check the database, the references between rows and every blob. Slow on purpose; raises nothing for damage."""
        lines: list[str] = []
        facts = 0
        try:
            with self._snapshot() as db:
                lines += [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
                facts = sum(int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in FACTS)
                lines += lists.dangling(db)
        except MachineProblem as problem:
            lines.append(str(problem))
        blobs = Blobs(self.path / "blobs")
        addresses = list(blobs.addresses())
        lines += [fault for address in addresses if (fault := blobs.fault(address))]
        return Integrity(tuple(lines), facts, len(addresses))

    def _bodies(self, cls: type[T], query: str, *values: object) -> list[T]:
        with self._snapshot() as db:
            rows = db.execute(f"SELECT b.json FROM ({query}) q JOIN body b ON b.seq = q.seq ORDER BY b.seq", values)
            return [loads(cls, row[0]) for row in rows]


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
