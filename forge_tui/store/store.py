"""What the engine writes: one typed method per kind of fact, each answering once the fact is committed.

    store = Store.open(session)                  # becomes the owner, or raises SessionLocked
    await store.add_candidate(candidate)         # or store.add_candidate(candidate).result()

Invariant: there is one Store per session at a time, in the owning process. Facts that belong together go together:
a candidate with its edges, a command with nothing but itself.
"""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

from forge_tui.records.candidate import Candidate
from forge_tui.records.card import Card
from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.judging import CardReady
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.problem import MachineProblem, Problem, UserInputError
from forge_tui.records.verdict import Measurement, Verdict
from forge_tui.records.workload import Captured, Loaded, ModelVerdict, WorkloadSpec
from forge_tui.store import derive, facts, lock
from forge_tui.store.blobs import Blobs
from forge_tui.store.facts import Fact
from forge_tui.store.reader import Reader
from forge_tui.store.rows import Unfinished
from forge_tui.store.schema import FORMAT, connect_writer, damage_line, format_of, migrate
from forge_tui.store.session import Session
from forge_tui.store.writer import Announced, Committed, LogLine, Writer


class Store:
    """The owner's handle on a session. `reader` and `blobs` serve the same process; `taken_over` tells of a dead owner."""

    def __init__(self, session: Session, owner: lock.OwnerLock, writer: Writer, next_number: int) -> None:
        self.session = session
        self.taken_over = owner.removed
        self.blobs = Blobs(session.blobs)
        self.reader = Reader(session.path)
        self._owner = owner
        self._writer = writer
        self._next = next_number

    @classmethod
    def open(cls, session: Session) -> Store:
        """Own the session: lock it, bring its format up to date, clean up half-written blobs, start the writer.

        Raises lock.SessionLocked for a live owner, UserInputError for a newer format, MachineProblem for a damaged or
        read-only database.
        """
        owner = lock.OwnerLock.acquire(session.lock)
        try:
            _bring_up_to_date(session)
            writer = Writer(session.database)
            try:
                store = cls(session, owner, writer, 1)
                store._next = 1 + store.reader.highest_number()
            except BaseException:
                writer.close()
                raise
        except BaseException as error:
            owner.release()
            if isinstance(error, sqlite3.Error):
                raise MachineProblem(damage_line(session.database, error)) from None
            raise
        store.blobs.remove_half_written()
        return store

    @property
    def problem(self) -> Problem | None:
        """Why facts wait to be written (disk full, read-only folder), or None."""
        return self._writer.problem

    def listen(self, callback: Callable[[Committed], None]) -> None:
        """Have `callback` called in the running asyncio loop after every commit, with the range it covers."""
        self._writer.listen(callback)

    def watch(self, callback: Callable[[Problem | None], None]) -> None:
        """Have `callback` called in the running loop when writing stops working, and with None when it goes on."""
        self._writer.watch(callback)

    def close(self, patience_s: float = 10.0) -> None:
        """Write what is queued, then let go of the session. Raises MachineProblem when facts could not be written."""
        try:
            self._writer.close(patience_s)
        finally:
            self.reader.close()
            self._owner.release()

    def next_candidate_id(self) -> str:
        """A fresh id, in order of creation; never one that any row mentions, even where rows are missing."""
        number = self._next
        self._next += 1
        return f"n{number}"

    def unfinished(self) -> Unfinished:
        """Attempts without an end and model requests without a reply, from before this call."""
        return self.reader.unfinished()

    # Facts. Each returns an awaitable future of the row's sequence number, resolved after commit.

    def add_spec(self, spec: WorkloadSpec) -> Announced[int]:
        return self._put(facts.workload_fact("spec", spec))

    def add_loaded(self, loaded: Loaded) -> Announced[int]:
        return self._put(facts.workload_fact("loaded", loaded))

    def add_captured(self, captured: Captured) -> Announced[int]:
        """The capture and all of its cards, in one piece."""
        return self._put(facts.captured_fact(captured), *(facts.card_fact(card) for card in captured.cards))

    def add_model_verdict(self, verdict: ModelVerdict) -> Announced[int]:
        return self._put(facts.workload_fact("model verdict", verdict))

    def add_card(self, card: Card) -> Announced[int]:
        """A card; one with the same id replaces it in lists, the older row stays."""
        return self._put(facts.card_fact(card))

    def add_card_ready(self, ready: CardReady) -> Announced[int]:
        """What the judge says of a card before any candidate, with its measurements, in one piece."""
        return self._put(
            facts.note_fact("card ready", ready.card_id, ready),
            *(facts.measurement_fact(m) for m in ready.measurements),
        )

    def add_card_state(self, card_id: str, state: str, reason: str = "") -> Announced[int]:
        """The engine's word on a card: "waiting", "running", "done" or "problem"; the rest is derived."""
        if state not in ("waiting", "running", "done", "problem"):
            raise ValueError(f"unknown card state {state!r}")
        return self._put(facts.note_fact("card state", card_id, {"state": state, "reason": reason}))

    def add_candidate(self, candidate: Candidate) -> Announced[int]:
        """A node with its edges. Its parents must be there already; a taken id is refused."""
        return self._writer.put(facts.candidate_facts(candidate))

    def add_attempt(
        self,
        attempt_id: str,
        candidate_id: str,
        step: str,
        state: str,
        seconds: float | None = None,
        detail: dict[str, Any] | None = None,
        card_id: str = "",
    ) -> Announced[int]:
        """One end of an attempt. step: propose, compile, judge, confirm; state: started, done, lost.

        A "propose" attempt names the node that is expanded or repaired ("" for a root, then `card_id` tells where).
        """
        return self._put(facts.attempt_fact(attempt_id, candidate_id, step, state, seconds, detail, card_id))

    def add_verdict(self, verdict: Verdict) -> Announced[int]:
        return self._put(facts.verdict_fact(verdict))

    def add_measurement(self, measurement: Measurement) -> Announced[int]:
        return self._put(facts.measurement_fact(measurement))

    def add_note(self, kind: str, subject: str, value: Any = None) -> Announced[int]:
        """A remark on a node, a card or the run ("" subject). Kinds that lists show: facts.NODE_NOTES, CARD_NOTES,
        "budget" {"attempts": n} / {"dollars": x}, "profile" (sandbox profile in force)."""
        return self._put(facts.note_fact(kind, subject, value))

    def add_llm_request(self, request: LlmRequest) -> Announced[int]:
        return self._put(facts.request_fact(request))

    def add_llm_reply(self, reply: LlmReply) -> Announced[int]:
        """One reply per request: a second one is refused."""
        return self._put(facts.reply_fact(reply))

    def add_command(self, command: Command, sender: str) -> Announced[int]:
        """sender: who asked ("key", "palette", "process 123")."""
        return self._put(facts.command_fact(command, sender))

    def add_acknowledgement(self, answer: Acknowledgement) -> Announced[int]:
        return self._put(facts.acknowledgement_fact(answer))

    def add_decision(
        self, card_id: str, node_id: str, strategy: str, why: Any = None, line: str = ""
    ) -> Announced[int]:
        """Which node a strategy chose ("" for a new root), and why."""
        return self._put(facts.decision_fact(card_id, node_id, strategy, why, line))

    def add_run_event(self, event: str, settings: dict[str, Any] | None = None, line: str = "") -> Announced[int]:
        """event: facts.RUN_EVENTS. settings: flat key -> value of the settings in force, on started, resumed, settings."""
        owner = lock.read_owner(self.session.lock)
        return self._put(facts.run_fact(event, owner.pid, socket.gethostname(), owner.since, settings, line))

    def log(self, level: str, text: str, card_id: str = "", candidate_id: str = "") -> None:
        """A log line: batched, no fact. level: debug, info, good, warn, bad."""
        if level not in facts.LEVELS:
            raise ValueError(f"unknown log level {level!r}; known: {', '.join(facts.LEVELS)}")
        self._writer.log(LogLine(time.time(), level, card_id, candidate_id, facts.one_line(text, facts.MAX_LOG_LINE)))

    def write_snapshot(self, card_id: str, rows: Mapping[str, tuple[int, float | None]]) -> Announced[int]:
        """Visits and value per node id, as the search sees them; not facts, kept for fast opening."""
        kept = dict(rows)

        def write(connection: sqlite3.Connection, seq: int) -> int:
            derive.write_statistics(connection, card_id, kept, seq)
            return seq

        return self._writer.run(write, "node")

    def rebuild(self, statistics: derive.Statistics = derive.subtree_visits) -> Announced[int]:
        """Derive all lists from facts alone; `statistics` recomputes visits and value. The result is the node count."""
        return self._writer.run(lambda connection, seq: derive.rebuild(connection, statistics, seq), "node")

    def _put(self, *rows: Fact) -> Announced[int]:
        return self._writer.put(rows)


def _bring_up_to_date(session: Session) -> None:
    connection = connect_writer(session.database)
    try:
        if format_of(connection, session.database) < FORMAT:
            migrate(connection)
        fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if fault != "ok":
            raise UserInputError(
                f"{session.database} is damaged ({fault}); restore it from a copy, or remove the session"
            )
    finally:
        connection.close()
