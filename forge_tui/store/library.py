"""The user's library: one SQLite file beside the sessions, shared by all of them.

    ceiling   what a device can do at best: copy bandwidth per working-set size, matmul rate
    gain      what a recipe or tool promised and what came of it, one row per candidate
    memory    what is worth knowing in the next session, by kind and subject

Invariants: safe with several sessions and processes open (write-ahead log, short transactions, a lock while it is
made); rows are inserted, never changed; an unknown number is None, never a guess.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_tui.records.codec import dumps
from forge_tui.records.problem import MachineProblem, UserInputError
from forge_tui.store.lock import guarded
from forge_tui.store.places import home
from forge_tui.store.schema import DAMAGED, connect_writer

APPLICATION_ID = 0x466F726C  # "Forl"
FORMAT = 1
HIT = 1.02  # a gain counts from 2% on: the judge's own margin for "faster" (records.verdict.Timing.verdict)


@dataclass(frozen=True)
class Ceiling:
    """One measured limit. kind: "copy bandwidth" (GB/s at `size` bytes), "matmul rate" (GFLOP/s). at: when."""

    device: str
    kind: str
    size: int
    value: float
    unit: str
    at: float
    detail: Any = None


@dataclass(frozen=True)
class HitRate:
    """How often a tool's candidates gained. rate None: never tried. calibration: median of realised / predicted gain
    (in log terms, hits and misses alike), None when no prediction was recorded."""

    hits: int
    tries: int
    calibration: float | None

    @property
    def rate(self) -> float | None:
        return self.hits / self.tries if self.tries else None


class Library:
    """An open library. Safe to call from any thread; every call is one short transaction."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path | None = None) -> Library:
        """The user's library, made when missing. Raises UserInputError for a foreign or newer file, MachineProblem."""
        path = home().library if path is None else path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with guarded(path):
                if not path.exists():
                    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
                connection = connect_writer(path)
                try:
                    _bring_up_to_date(connection, path)
                except BaseException:
                    connection.close()
                    raise
        except sqlite3.Error as error:
            raise MachineProblem(_line(path, error)) from None
        except OSError as error:
            raise MachineProblem(f"{path} can't be opened: {error.strerror or error}") from None
        return cls(path, connection)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def ceiling(self, device: str, kind: str, size: int = 0) -> Ceiling | None:
        """The newest value measured for exactly this size, None when there is none."""
        found = [c for c in self.ceilings(device, kind) if c.size == size]
        return found[0] if found else None

    def ceilings(self, device: str, kind: str) -> list[Ceiling]:
        """The newest value of every size, smallest size first."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT device, kind, size, value, unit, at, detail, max(id) FROM ceiling"
                " WHERE device = ? AND kind = ? GROUP BY size ORDER BY size",
                (device, kind),
            ).fetchall()
        return [Ceiling(*(*row[:6], json.loads(row[6]))) for row in rows]

    def put_ceiling(self, device: str, kind: str, size: int, value: float, unit: str, detail: Any = None) -> None:
        """Record a measurement. Raises ValueError for a value that isn't above zero."""
        if not value > 0:
            raise ValueError(f"a ceiling of {value} {unit} is no measurement")
        with self._transaction() as db:
            db.execute(
                "INSERT INTO ceiling (device, kind, size, value, unit, at, detail) VALUES (?,?,?,?,?,?,?)",
                (device, kind, size, value, unit, time.time(), dumps(detail)),
            )

    def record_gain(
        self, tool: str, subject: str, predicted: float | None, realised: float | None, session: str, candidate_id: str
    ) -> None:
        """What a tool's candidate promised and gave, as factors over its parent (1.2 = 20% faster).

        realised None: it failed. subject: operator family. The same candidate counts once, also after a resume.
        """
        with self._transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO gain (tool, subject, predicted, realised, session, candidate_id, at)"
                " VALUES (?,?,?,?,?,?,?)",
                (tool, subject, predicted, realised, session, candidate_id, time.time()),
            )

    def hit_rate(self, tool: str, subject: str | None = None) -> HitRate:
        """Over all sessions, for one operator family or all."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT predicted, realised FROM gain WHERE tool = ?1 AND (?2 IS NULL OR subject = ?2)", (tool, subject)
            ).fetchall()
        hits = sum(realised is not None and realised >= HIT for _, realised in rows)
        return HitRate(hits, len(rows), _calibration(rows))

    def remember(self, kind: str, subject: str, value: Any) -> None:
        with self._transaction() as db:
            db.execute(
                "INSERT INTO memory (kind, subject, at, value) VALUES (?,?,?,?)",
                (kind, subject, time.time(), dumps(value)),
            )

    def recall(self, kind: str, subject: str, limit: int = 20) -> list[Any]:
        """What was remembered, newest first."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT value FROM memory WHERE kind = ? AND subject = ? ORDER BY id DESC LIMIT ?",
                (kind, subject, limit),
            ).fetchall()
        return [json.loads(row[0]) for row in rows]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN")
                try:
                    yield self._connection
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise MachineProblem(_line(self.path, error)) from None


def _calibration(rows: list[tuple[float | None, float | None]]) -> float | None:
    ratios = [
        math.log(realised or 1.0) / math.log(predicted)
        for predicted, realised in rows
        if predicted is not None and predicted > 1.0 and (realised is None or realised > 0)
    ]
    return statistics.median(ratios) if ratios else None


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    ours = connection.execute("PRAGMA application_id").fetchone()[0]
    number = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and ours != APPLICATION_ID:
        raise UserInputError(f"{path} is a database of another program, not a forge_tui library; move it away")
    if number > FORMAT:
        raise UserInputError(f"{path} has format {number} and needs a newer version of forge_tui")
    if number == FORMAT:
        return
    from sqlite_utils import Database, Migrations

    steps = Migrations("forge library")
    steps(name="0001 first tables")(_first_tables)
    steps.apply(Database(connection))


def _first_tables(db: Any) -> None:
    """Format 1. `db` is a sqlite_utils.Database."""
    key = {"id": int}
    db["ceiling"].create(
        key | {"device": str, "kind": str, "size": int, "value": float, "unit": str, "at": float, "detail": str},
        pk="id", not_null={"device", "kind", "size", "value", "unit", "at", "detail"}, strict=True,
    )  # fmt: skip
    db["ceiling"].create_index(["device", "kind", "size"])
    db["gain"].create(
        key | {
            "tool": str, "subject": str, "predicted": float, "realised": float, "session": str, "candidate_id": str,
            "at": float,
        },
        pk="id", not_null={"tool", "subject", "session", "candidate_id", "at"}, strict=True,
    )  # fmt: skip
    db["gain"].create_index(["session", "candidate_id", "tool"], unique=True)
    db["gain"].create_index(["tool", "subject"])
    db["memory"].create(
        key | {"kind": str, "subject": str, "at": float, "value": str},
        pk="id", not_null={"kind", "subject", "at", "value"}, strict=True,
    )  # fmt: skip
    db["memory"].create_index(["kind", "subject"])
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {FORMAT}")


def _line(path: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in DAMAGED:
        return f"{path} is damaged ({error}); move it away, a new one is made"
    return f"{path} can't be used: {error}"
