"""Content-addressed files: blobs/aa/<sha256>.

Invariants: a file has its final name only once it is whole and flushed to the disk, so a row may refer to it; what is
read is hashed again and never handed out wrong; mode 0600, since captured tensors are private.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from forge_tui.records.problem import MachineProblem, UserInputError

ADDRESS = re.compile(r"[0-9a-f]{64}")
HALF_WRITTEN = ".part"
CHUNK = 1 << 20


class Blobs:
    """The blob folder of one session. Any process of the user may read and add; only the owner cleans up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, address: str) -> Path:
        """Where a blob lies or would lie. Raises UserInputError for what is no address."""
        if not ADDRESS.fullmatch(address):
            raise UserInputError(f"{address[:80]!r} is not the address of a stored file")
        return self.folder / address[:2] / address

    def has(self, address: str) -> bool:
        return self.path(address).is_file()

    def put(self, data: bytes | bytearray | memoryview) -> str:
        """Store bytes; returns their address. Raises MachineProblem when the disk doesn't take them."""
        address = hashlib.sha256(data).hexdigest()
        target = self.path(address)
        if target.is_file() and target.stat().st_size == memoryview(data).nbytes:
            return address
        draft = self._draft(address)
        try:
            with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._publish(draft, target)
        except OSError as error:
            raise self._full(error) from None
        finally:
            draft.unlink(missing_ok=True)
        return address

    def put_file(self, source: Path) -> str:
        """Store a copy of a file; returns its address."""
        draft = self._draft("")
        digest = hashlib.sha256()
        try:
            with (
                source.open("rb") as origin,
                os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file,
            ):
                while chunk := origin.read(CHUNK):
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            target = self.path(digest.hexdigest())
            self._publish(draft, target)
        except OSError as error:
            raise self._full(error) from None
        finally:
            draft.unlink(missing_ok=True)
        return target.name

    def read(self, address: str) -> bytes:
        """The bytes, checked. Raises MachineProblem when the file is gone or its content is not what was stored."""
        path = self.path(address)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise MachineProblem(f"the stored file {path} is missing; restore the session from a copy") from None
        except OSError as error:
            raise MachineProblem(f"the stored file {path} can't be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != address:
            raise MachineProblem(
                f"the stored file {path} has changed on disk ({len(data)} bytes); restore it from a copy"
            )
        return data

    def fault(self, address: str) -> str:
        """One line when a blob is missing or changed, "" when it is sound. Reads in pieces."""
        path = self.path(address)
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
        except OSError as error:
            return f"the stored file {path} can't be read: {error.strerror}"
        return "" if digest.hexdigest() == address else f"the stored file {path} has changed on disk"

    def addresses(self) -> Iterator[str]:
        """Every blob that is there."""
        for path in sorted(self.folder.glob("[0-9a-f][0-9a-f]/*")):
            if ADDRESS.fullmatch(path.name):
                yield path.name

    def remove_half_written(self, older_than_s: float = 0.0) -> int:
        """Delete what an interrupted write left behind. Returns how many files."""
        count = 0
        for path in (*self.folder.glob(f"*{HALF_WRITTEN}"), *self.folder.glob(f"*/*{HALF_WRITTEN}")):
            try:
                if time.time() - path.stat().st_mtime >= older_than_s:
                    path.unlink()
                    count += 1
            except FileNotFoundError:
                continue
        return count

    def _draft(self, address: str) -> Path:
        """A new name in the folder where the file will lie (the blob folder while that isn't known)."""
        folder = self.folder / address[:2] if address else self.folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._full(error) from None
        return folder / f"{secrets.token_hex(8)}{HALF_WRITTEN}"

    def _publish(self, draft: Path, target: Path) -> None:
        target.parent.mkdir(mode=0o700, exist_ok=True)
        draft.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # the name must outlive a power cut before a row refers to it
        finally:
            os.close(folder)

    def _full(self, error: OSError) -> MachineProblem:
        return MachineProblem(f"a file could not be stored in {self.folder}: {error.strerror or error}")
