"""Tables of a session database, its numbered migrations and its format number.

Invariants: fact tables refuse UPDATE and DELETE; every fact's `seq` comes from one sequence across all tables;
narrow columns serve lists, the whole record lies in `body` under the same seq, so that lists never read it.
`node` and `log` are not facts: `node` is derived and can be rebuilt, `log` may lose lines.
A migration is applied whole or not at all, with its format number in the same transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError

APPLICATION_ID = 0x466F7267  # "Forg", in the header of the file: tells ours from any other SQLite database
FORMAT = 1
MAGIC = b"SQLite format 3\x00"
# Result codes of SQLite that mean "this file is damaged" (sqlite.org/rescode.html).
DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_FACT: dict[str, type] = {"seq": int, "at": float}

FACTS: dict[str, dict[str, type]] = {
    "workload": {"kind": str},
    "card": {
        "card_id": str, "op": str, "title": str, "calls": int, "share": float, "self_time_us": float, "state": str,
        "reason": str, "op_class": str, "synthetic": int,
    },
    "candidate": {
        "candidate_id": str, "number": int, "card_id": str, "parent_id": str, "proposer": str, "language": str,
        "tier": str, "attempt": int, "label": str, "audit_class": str, "expected_gain": float, "digest": str,
    },
    "candidate_parent": {"candidate_id": str, "position": int, "parent_id": str, "role": str},
    "attempt": {
        "attempt_id": str, "card_id": str, "candidate_id": str, "step": str, "state": str, "seconds": float,
    },
    "verdict": {
        "candidate_id": str, "card_id": str, "stage": str, "outcome": str, "confirmation": int, "speed": str,
        "worthy": int, "speedup": float, "low": float, "high": float, "baseline_us": float, "candidate_us": float,
        "installed_speedup": float, "installed_low": float, "floor_us": float, "binary": str, "blame": str,
        "kind": str, "line": str, "seconds": float,
    },
    "measurement": {
        "kind": str, "subject": str, "value": float, "unit": str, "line": str, "low": float, "high": float,
    },
    "note": {"kind": str, "subject": str},
    "llm_call": {
        "call_id": str, "phase": str, "card_id": str, "node": str, "purpose": str, "model": str, "attempt_id": str,
        "state": str, "finish_reason": str, "prompt_tokens": int, "completion_tokens": int, "cost_usd": float,
        "seconds": float, "line": str,
    },
    "command": {"verb": str, "subject": str, "sender": str},
    "acknowledgement": {"command_seq": int, "outcome": str, "line": str},
    "decision": {"card_id": str, "node_id": str, "strategy": str, "line": str},
    "run": {"event": str, "pid": int, "host": str, "started": float, "line": str},
}  # fmt: skip

INDEXES: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("card", ("card_id",), False),
    ("candidate", ("candidate_id",), True),
    ("candidate", ("card_id", "digest"), False),
    ("candidate_parent", ("candidate_id", "position"), True),
    ("candidate_parent", ("parent_id",), False),
    ("attempt", ("attempt_id", "state"), False),
    ("attempt", ("candidate_id",), False),
    ("verdict", ("candidate_id",), False),
    ("measurement", ("subject", "kind"), False),
    ("note", ("subject", "kind"), False),
    ("note", ("kind",), False),
    ("llm_call", ("call_id", "phase"), True),
    ("llm_call", ("node",), False),
    ("acknowledgement", ("command_seq",), True),
    ("decision", ("card_id",), False),
    ("log", ("candidate_id", "seq"), False),
    ("log", ("card_id", "seq"), False),
    ("node", ("node_id",), True),
    ("node", ("changed",), False),
    ("node", ("card_id", "state", "confirmed"), False),
)

# Indexes over few rows of large tables, which sqlite_utils has no way to say. With them a card's champion, its best
# provisional node and its last numbers cost the same in a tree of 50 and of 50,000 nodes.
PARTIAL_INDEXES = (
    "CREATE INDEX node_by_worth ON node (card_id, speedup) WHERE worthy = 1",
    "CREATE INDEX node_by_speedup ON node (card_id, speedup) WHERE speedup IS NOT NULL",
    "CREATE INDEX node_champion ON node (card_id) WHERE state = 'champion'",
    "CREATE INDEX verdict_with_time ON verdict (card_id) WHERE baseline_us IS NOT NULL",
    "CREATE INDEX verdict_with_floor ON verdict (card_id) WHERE floor_us IS NOT NULL",
)

LOG: dict[str, type] = {"seq": int, "at": float, "level": str, "card_id": str, "candidate_id": str, "text": str}

NODE_COLUMNS: dict[str, type] = {
    "card_id": str, "number": int, "node_id": str, "parent_id": str, "seq": int, "state": str, "label": str,
    "speedup": float, "low": float, "high": float, "confirmed": int, "time_us": float, "visits": int, "value": float,
    "attempt": int, "line": str, "pinned": int, "pruned": int, "worthy": int, "audit_class": str, "changed": int,
}  # fmt: skip
OPTIONAL = frozenset(
    {
        "share", "self_time_us", "expected_gain", "seconds", "speedup", "low", "high", "baseline_us", "candidate_us",
        "installed_speedup", "installed_low", "floor_us", "value", "prompt_tokens", "completion_tokens", "cost_usd",
        "time_us",
    }
)  # fmt: skip


def _required(columns: dict[str, type]) -> set[str]:
    return {name for name in columns if name not in OPTIONAL and name != "seq"}


def _first_tables(db: Any) -> None:
    """Format 1. `db` is a sqlite_utils.Database."""
    for table, columns in FACTS.items():
        db[table].create(_FACT | columns, pk="seq", not_null=_required(_FACT | columns), strict=True)
    db["body"].create({"seq": int, "json": str}, pk="seq", not_null={"json"}, strict=True)
    db["log"].create(LOG, pk="seq", not_null=_required(LOG), strict=True)
    # sqlite_utils has no WITHOUT ROWID; here the primary key is the order in which a tree is read.
    kinds = {int: "INTEGER", str: "TEXT", float: "REAL"}
    lines = [
        f'"{name}" {kinds[kind]}' + (" NOT NULL" if name not in OPTIONAL else "") for name, kind in NODE_COLUMNS.items()
    ]
    db.execute(f"CREATE TABLE node ({', '.join(lines)}, PRIMARY KEY (card_id, number)) STRICT, WITHOUT ROWID")
    for table, names, unique in INDEXES:
        db[table].create_index(list(names), unique=unique)
    for statement in PARTIAL_INDEXES:
        db.execute(statement)
    for table in (*FACTS, "body"):
        for action in ("UPDATE", "DELETE"):
            db.execute(
                f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} rows are facts: {action} is refused'); END"
            )


# One entry per format number, in order; a released entry never changes.
MIGRATIONS: tuple[Callable[[Any], None], ...] = (_first_tables,)


def migrate(connection: sqlite3.Connection, migrations: tuple[Callable[[Any], None], ...] = MIGRATIONS) -> None:
    """Bring a database of ours up to the newest format; a step that fails leaves the format before it.

    Raises MachineProblem when the database can't be written, HarnessProblem when a step itself fails.
    """
    from sqlite_utils import Database, Migrations  # late: 65 ms that a screen need not pay

    db = Database(connection)
    steps = Migrations("forge")
    for number, step in enumerate(migrations, 1):

        def numbered(target: Any, number: int = number, step: Callable[[Any], None] = step) -> None:
            step(target)
            target.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            target.execute(f"PRAGMA user_version = {number}")

        steps(name=f"{number:04d}{step.__name__}")(numbered)
    try:
        steps.apply(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            raise HarnessProblem(f"a migration of the session database failed and was undone: {error}") from None
        raise MachineProblem(f"the session database could not be brought up to date: {error}") from None


def check_file(path: Path) -> None:
    """Refuse, from the first 100 bytes, what is not ours. Raises UserInputError or MachineProblem with one line."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise UserInputError(f"{path.parent} holds no session ({path.name} is missing)") from None
    except OSError as error:
        raise MachineProblem(f"{path} can't be read: {error.strerror}") from None
    if len(header) < 100:
        raise UserInputError(f"{path} is damaged: {len(header)} bytes are left of it")
    if not header.startswith(MAGIC):
        raise UserInputError(f"{path} is not a forge_tui session (it is no SQLite database)")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise UserInputError(f"{path} is a database of another program, not a forge_tui session")
    _check_format(path, int.from_bytes(header[60:64], "big"))


def _check_format(path: Path, number: int) -> None:
    if number > FORMAT:
        raise UserInputError(
            f"{path} has format {number} and needs a newer version of forge_tui (this one reads up to {FORMAT})"
        )


def format_of(connection: sqlite3.Connection, path: Path) -> int:
    """Format number as SQLite sees it (the write-ahead log included). Raises UserInputError when too new."""
    number = int(connection.execute("PRAGMA user_version").fetchone()[0])
    _check_format(path, number)
    return number


def connect_writer(path: Path, timeout: float = 30.0) -> sqlite3.Connection:
    """Connection that the writer thread owns: WAL, explicit transactions, every commit flushed to the disk.

    Raises MachineProblem when the file system can't carry it (no WAL: usually a network file system).
    """
    connection = sqlite3.connect(path, timeout=timeout, check_same_thread=False, isolation_level=None)
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise MachineProblem(f"{path.parent} can't keep a write-ahead log; use a folder on a local disk")
        connection.execute("PRAGMA synchronous = FULL")  # a reply that was paid for survives a power cut
        connection.execute("PRAGMA wal_autocheckpoint = 2000")
        connection.execute("PRAGMA journal_size_limit = 67108864")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Read-only connection; works on a read-only folder too, as long as no write-ahead log is pending there."""
    uri = path.absolute().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=5, check_same_thread=False, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA mmap_size = 268435456")
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        pending = path.with_name(path.name + "-wal")
        with contextlib.suppress(OSError):
            if pending.stat().st_size > 0:
                raise
        connection = sqlite3.connect(
            f"{uri}?immutable=1", uri=True, timeout=5, check_same_thread=False, isolation_level=None
        )
    return connection


def damage_line(path: Path, error: sqlite3.Error) -> str:
    """One line for a person about a database that SQLite refuses."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in DAMAGED:
        return f"{path} is damaged ({error}); restore it from a copy, or remove the session"
    return f"{path} can't be read: {error}"
