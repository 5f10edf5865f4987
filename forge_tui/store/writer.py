"""The one thread that writes a session's database.

Invariants: jobs are committed in the order they were put, many in one transaction, each whole or not at all.
A future resolves and a listener is called only after COMMIT. A job that the database refuses fails alone.
A full disk, a read-only folder or a lock of another program stop nothing but the writer: it keeps what it has, says
so (`problem`), tries again until it works, and loses no fact; log lines beyond a limit are dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from forge_tui.records.problem import HarnessProblem, MachineProblem, Problem
from forge_tui.store import derive
from forge_tui.store.facts import Fact
from forge_tui.store.schema import DAMAGED, FACTS, connect_writer, damage_line

R = TypeVar("R")
BATCH = 512  # jobs in one transaction
LOG_EVERY_S = 0.2  # log lines wait this long for company
LOG_LIMIT = 20_000  # log lines kept while the disk is full
RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class Announced(Future[R]):
    """Result of a write, there once it is committed. May be awaited in any running loop, or `.result()`-ed."""

    def __await__(self) -> Generator[object, None, R]:
        return asyncio.wrap_future(self).__await__()


@dataclass(frozen=True)
class Committed:
    """What one transaction added: facts and log lines with first <= seq <= last, in these tables ("node" for statistics)."""

    first: int
    last: int
    tables: frozenset[str]


@dataclass(frozen=True)
class LogLine:
    at: float
    level: str
    card_id: str
    candidate_id: str
    text: str


@dataclass
class _Job:
    """Facts written together, or a function run inside the transaction."""

    facts: Sequence[Fact]
    action: Callable[[sqlite3.Connection, int], int] | None
    future: Announced[int]
    tables: set[str] = field(default_factory=set)
    result: int = 0


@dataclass(frozen=True)
class _Stop:
    pass


class Writer:
    """Starts its thread at once. Made by `Store`, for the owner of the session only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: Problem | None = None
        self._connection = connect_writer(path)
        self._seq = last_seq(self._connection)
        self._jobs: queue.SimpleQueue[_Job | LogLine | _Stop] = queue.SimpleQueue()
        self._pending: list[_Job] = []
        self._lines: list[LogLine] = []
        self._dropped = 0
        self._stopping = False
        self._closed = False
        self._giving_up = threading.Event()
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[Committed], None]]] = []
        self._watchers: list[tuple[asyncio.AbstractEventLoop, Callable[[Problem | None], None]]] = []
        self._thread = threading.Thread(target=self._run, name="forge-writer", daemon=True)
        self._thread.start()

    def put(self, facts: Sequence[Fact]) -> Announced[int]:
        """Write facts in one piece; the result is the seq of the first. Raises HarnessProblem once closed."""
        return self._submit(_Job(facts, None, Announced()))

    def run(self, action: Callable[[sqlite3.Connection, int], int], table: str) -> Announced[int]:
        """Run `action(connection, seq)` inside a transaction (derived tables only); the result is what it returns."""
        return self._submit(_Job((), action, Announced(), {table}))

    def log(self, line: LogLine) -> None:
        """Queue a log line. Never waits; lines may be dropped while the disk is full."""
        if not self._closed:
            self._jobs.put(line)

    def listen(self, callback: Callable[[Committed], None]) -> None:
        """Have `callback` called in the running loop after every commit."""
        self._listeners.append((asyncio.get_running_loop(), callback))

    def watch(self, callback: Callable[[Problem | None], None]) -> None:
        """Have `callback` called in the running loop when writing stops working, and with None when it works again."""
        self._watchers.append((asyncio.get_running_loop(), callback))

    def close(self, patience_s: float = 10.0) -> None:
        """Write what is queued and end the thread. Raises MachineProblem when facts could not be written in time."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(_Stop())
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._giving_up.set()
            self._thread.join()
        lost = len(self._pending)
        if lost:
            reason = self.problem.line if self.problem else "the session database stayed busy"
            raise MachineProblem(f"{lost} facts were not written: {reason}")

    def _submit(self, job: _Job) -> Announced[int]:
        if self._closed:
            raise HarnessProblem("the session is closed; nothing more can be written")
        job.future.set_running_or_notify_cancel()  # from here on nobody can cancel a write half-way
        self._jobs.put(job)
        return job.future

    def _run(self) -> None:
        failures = 0
        while not (self._stopping and not self._pending and not self._lines):
            if not self._pending and not self._stopping:
                self._collect()
            if not (self._pending or self._lines):
                continue
            error = self._write_batch()
            if error is None:
                failures = 0
                self._report(None)
                continue
            self._report(error)
            self._drain_queue()
            if self._giving_up.wait(RETRY_S[min(failures, len(RETRY_S) - 1)]):
                break
            failures += 1
        for job in self._pending:
            job.future.set_exception(MachineProblem(self.problem.line if self.problem else "the writer was stopped"))
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _collect(self) -> None:
        """Wait for work; log lines alone wait a little longer for company."""
        deadline = time.monotonic() + LOG_EVERY_S if self._lines else None
        while True:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                item = self._jobs.get(timeout=wait)
            except queue.Empty:
                return
            self._accept(item)
            if self._pending or self._stopping:
                self._drain_queue()
                return
            if deadline is None:
                deadline = time.monotonic() + LOG_EVERY_S

    def _drain_queue(self) -> None:
        with contextlib.suppress(queue.Empty):
            while len(self._pending) < BATCH or self.problem is not None:
                self._accept(self._jobs.get_nowait())

    def _accept(self, item: _Job | LogLine | _Stop) -> None:
        if isinstance(item, _Stop):
            self._stopping = True
        elif isinstance(item, _Job):
            self._pending.append(item)
        elif len(self._lines) < LOG_LIMIT:
            self._lines.append(item)
        else:
            self._dropped += 1

    def _write_batch(self) -> sqlite3.Error | None:
        """One transaction. Returns the error when nothing of it was kept."""
        batch, lines, first = self._pending[:BATCH], self._lines[:], self._seq + 1
        failed: dict[int, sqlite3.Error] = {}
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for index, job in enumerate(batch):
                refused = self._write_job(job)
                if refused is not None:
                    failed[index] = refused
            self._write_lines(lines)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            self._seq = first - 1
            return error
        del self._pending[: len(batch)], self._lines[: len(lines)]
        self._dropped = 0
        self._announce(batch, failed, first, bool(lines))
        return None

    def _write_job(self, job: _Job) -> sqlite3.Error | None:
        """Inside the transaction. Returns the error of a job that is refused for what it is; raises the others."""
        before = self._seq
        self._connection.execute("SAVEPOINT job")
        try:
            if job.action is not None:
                self._seq += 1
                job.result = job.action(self._connection, self._seq)
            else:
                job.result = self._seq + 1
                for fact in job.facts:
                    self._write_fact(fact)
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError) as error:
            self._connection.execute("ROLLBACK TO job")
            self._connection.execute("RELEASE job")
            self._seq = before
            return error
        self._connection.execute("RELEASE job")
        job.tables.update(fact.table for fact in job.facts)
        return None

    def _write_fact(self, fact: Fact) -> None:
        self._seq += 1
        seq = self._seq
        names = tuple(FACTS[fact.table])
        marks = ",".join("?" * (len(names) + 2))
        values = [fact.columns[name] for name in names]
        self._connection.execute(
            f"INSERT INTO {fact.table} (seq, at, {','.join(names)}) VALUES ({marks})", [seq, time.time(), *values]
        )
        if fact.body is not None:
            self._connection.execute("INSERT INTO body (seq, json) VALUES (?, ?)", (seq, fact.body))
        if fact.table == "candidate":
            derive.insert_node(self._connection, seq, fact.columns)
        if fact.nodes:
            derive.refresh(self._connection, fact.nodes, seq)

    def _write_lines(self, lines: Sequence[LogLine]) -> None:
        rows = []
        extra = []
        if self._dropped:
            extra = [LogLine(time.time(), "warn", "", "", f"{self._dropped} log lines were dropped: writing stopped")]
        for line in (*lines, *extra):
            self._seq += 1
            rows.append((self._seq, line.at, line.level, line.card_id, line.candidate_id, line.text))
        self._connection.executemany(
            "INSERT INTO log (seq, at, level, card_id, candidate_id, text) VALUES (?,?,?,?,?,?)", rows
        )

    def _announce(self, batch: Sequence[_Job], failed: dict[int, sqlite3.Error], first: int, lines: bool) -> None:
        tables: set[str] = {"log"} if lines else set()
        for index, job in enumerate(batch):
            if index in failed:
                job.future.set_exception(HarnessProblem(f"the session database refused a row: {failed[index]}"))
            else:
                tables |= job.tables
                job.future.set_result(job.result)
        committed = Committed(first, self._seq, frozenset(tables))
        for loop, callback in self._listeners:
            with contextlib.suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(callback, committed)

    def _report(self, error: sqlite3.Error | None) -> None:
        problem = None if error is None else Problem("machine", "storage", problem_line(self.path, error))
        if problem == self.problem:
            return
        self.problem = problem
        for loop, callback in self._watchers:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(callback, problem)


def problem_line(path: Path, error: sqlite3.Error) -> str:
    """Why writing stopped, and what a person can do."""
    code = getattr(error, "sqlite_errorcode", 0)
    folder = path.parent
    if code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE:
        return f"the disk of {folder} is full or a size limit is reached; free space there, writing goes on by itself"
    if code & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"{folder} can't be written any more ({error}); make it writable, writing goes on by itself"
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"another program holds {path}; close it, writing goes on by itself"
    if code & 0xFF in DAMAGED:
        return damage_line(path, error)
    return f"{path} can't be written: {error}"


def last_seq(connection: sqlite3.Connection) -> int:
    """Highest sequence number in use, over facts and log lines."""
    tables = (*FACTS, "log", "body")
    found = [connection.execute(f"SELECT max(seq) FROM {table}").fetchone()[0] for table in tables]
    changed = connection.execute("SELECT max(changed) FROM node").fetchone()[0]
    return max((n for n in (*found, changed) if n is not None), default=0)
