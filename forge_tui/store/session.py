"""A session: one folder that holds everything needed to resume, replay and export.

    session.db    facts, log, derived rows        blobs/aa/<sha256>   tensors, binaries, profiles
    spool/        model replies as they arrive    work/               scratch of compilers and workers
    inbox/        answers of people and agents    owner.lock, control.sock

Invariants: the folder is 0700 and appears under its name only when it is complete; opening one never changes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from forge_tui.records.problem import MachineProblem, UserInputError
from forge_tui.records.workload import WorkloadSpec
from forge_tui.store import facts, schema
from forge_tui.store.places import home, network_filesystem
from forge_tui.store.schema import check_file, connect_writer, damage_line, format_of, migrate

FOLDERS = ("blobs", "spool", "work", "inbox")
DATABASE = "session.db"


@dataclass(frozen=True)
class Session:
    """Where the parts of one session lie."""

    path: Path
    name: str

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    @property
    def blobs(self) -> Path:
        return self.path / "blobs"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def inbox(self) -> Path:
        return self.path / "inbox"

    @property
    def lock(self) -> Path:
        return self.path / "owner.lock"

    @property
    def socket(self) -> Path:
        return self.path / "control.sock"

    @classmethod
    def create(cls, path: Path | None, name: str, spec: WorkloadSpec | None = None) -> Session:
        """Make a new session, at `path` or in the usual place.

        Raises UserInputError when `path` is taken or on a network file system, MachineProblem when it can't be made.
        """
        path = new_path(name) if path is None else path.absolute()
        kind = network_filesystem(path)
        if kind:
            raise UserInputError(
                f"{path} is on a network file system ({kind}), where sessions break; use a local folder"
            )
        if path.exists():
            raise UserInputError(f"{path} already exists; resume it, or choose another name")
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            draft.mkdir(mode=0o700, parents=True)
            for folder in FOLDERS:
                (draft / folder).mkdir(mode=0o700)
            _first_rows(draft / DATABASE, name, spec)
            draft.rename(path)
        except OSError as error:
            raise MachineProblem(f"the session {path} could not be made: {error.strerror or error}") from None
        except sqlite3.Error as error:
            raise MachineProblem(f"the session {path} could not be made: {error}") from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return cls(path, name)

    @classmethod
    def open(cls, path: Path) -> Session:
        """The session at `path` (its folder or its database file). Raises UserInputError or MachineProblem."""
        folder = path.absolute()
        if folder.name == DATABASE:
            folder = folder.parent
        if not folder.is_dir():
            raise UserInputError(f"there is no session at {folder}")
        database = folder / DATABASE
        check_file(database)
        try:
            connection = schema.connect_reader(database)
            try:
                format_of(connection, database)
                row = connection.execute("SELECT subject FROM note WHERE kind = 'name' ORDER BY seq DESC").fetchone()
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise MachineProblem(damage_line(database, error)) from None
        return cls(folder, row[0] if row else folder.name)


def _first_rows(database: Path, name: str, spec: WorkloadSpec | None) -> None:
    os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # SQLite gives -wal and -shm the same mode
    connection = connect_writer(database)
    try:
        migrate(connection)
        first = [facts.note_fact("name", name, None)]
        if spec is not None:
            first.append(facts.workload_fact("spec", spec))
        connection.execute("BEGIN")
        for seq, fact in enumerate(first, 1):
            names = tuple(fact.columns)
            connection.execute(
                f"INSERT INTO {fact.table} (seq, at, {','.join(names)}) VALUES ({','.join('?' * (len(names) + 2))})",
                (seq, time.time(), *fact.columns.values()),
            )
            if fact.body is not None:
                connection.execute("INSERT INTO body (seq, json) VALUES (?, ?)", (seq, fact.body))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def new_path(name: str, root: Path | None = None) -> Path:
    """An unused folder for a session called `name`."""
    root = home().sessions if root is None else root
    slug = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")[:60] or "session"
    path, number = root / slug, 2
    while path.exists():
        path, number = root / f"{slug}-{number}", number + 1
    return path
