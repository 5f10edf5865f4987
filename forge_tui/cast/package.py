"""The .cast file: a zip of a JSON manifest, sources and binaries. No pickles, nothing is executed here, no torch.

Invariants: every member's SHA-256 is in the manifest and is compared whenever the member is read; names are plain
relative paths; sizes are capped before and while unpacking; a file appears under its name complete or not at all.
Every way a file can be wrong is one UserInputError line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from forge_tui.records.codec import RecordError, dumps, from_json
from forge_tui.records.manifest import FORMAT, CastManifest
from forge_tui.records.plan import check_against
from forge_tui.records.problem import MachineProblem, UserInputError

MANIFEST = "manifest.json"
MAX_MEMBERS = 4096
MAX_MANIFEST_BYTES = 32 << 20
MAX_MEMBER_BYTES = 256 << 20
MAX_TOTAL_BYTES = 1 << 30
_NAME = re.compile(r"[A-Za-z0-9_+=.-]+(/[A-Za-z0-9_+=.-]+)*", re.ASCII)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's earliest date: equal contents make equal files
_BROKEN = (
    zipfile.BadZipFile, zlib.error, EOFError, struct.error, RuntimeError, NotImplementedError, ValueError, KeyError,
    OverflowError, IndexError,
)  # fmt: skip


@dataclass(frozen=True)
class Package:
    """An opened and checked cast. digest: SHA-256 of the whole file. names: members besides the manifest."""

    path: str
    digest: str
    manifest: CastManifest
    names: tuple[str, ...]

    def read(self, member: str) -> bytes:
        """Bytes of a member, compared with its hash. Raises UserInputError."""
        with _opened(self.path) as archive:
            data = _bytes_of(archive, self.path, member, MAX_MEMBER_BYTES)
        wanted = self.manifest.members.get(member)
        if wanted is None or hashlib.sha256(data).hexdigest() != wanted:
            raise UserInputError(f"{self.path}: {member} does not match its hash; get an undamaged copy of the cast")
        return data


def write_cast(path: str | os.PathLike[str], manifest: CastManifest, members: Mapping[str, bytes]) -> str:
    """Write a cast atomically and return the file's SHA-256.

    members: archive name -> bytes (sources, headers, binaries). Their hashes are put into the manifest; every member
    the entries name must be among them with the hash the entry states. Raises UserInputError, MachineProblem.
    """
    path = os.fspath(path)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    manifest = replace(manifest, members=hashes)
    _check_manifest(path, manifest, tuple(members))
    for name in members:
        _check_name(path, name)
    target = Path(path)
    try:
        handle, scratch = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise UserInputError(f"can't write {path}: {error.strerror}; choose a folder you can write to") from None
    try:
        with os.fdopen(handle, "w+b") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
                for name, data in ((MANIFEST, dumps(manifest).encode()), *sorted(members.items())):
                    info = zipfile.ZipInfo(name, _EPOCH)
                    info.external_attr = (stat.S_IFREG | 0o644) << 16
                    archive.writestr(info, data, zipfile.ZIP_DEFLATED)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        Path(scratch).replace(target)
    except OSError as error:
        raise MachineProblem(f"writing {path} failed: {error.strerror or error}") from None
    finally:
        Path(scratch).unlink(missing_ok=True)
    return _file_digest(path)


def read_manifest(path: str | os.PathLike[str]) -> CastManifest:
    """The checked manifest of a cast; every member's bytes are compared with its hash. Raises UserInputError."""
    return open_cast(path).manifest


def open_cast(path: str | os.PathLike[str]) -> Package:
    """Check a cast from outside to inside without loading any of it. Raises UserInputError with one line."""
    path = os.fspath(path)
    digest = _file_digest(path)
    with _opened(path) as archive:
        names = _member_names(archive, path)
        if MANIFEST not in names:
            raise UserInputError(f"{path} is a zip file but not a cast: it has no {MANIFEST}")
        raw = _bytes_of(archive, path, MANIFEST, MAX_MANIFEST_BYTES)
        manifest = _parse(path, raw)
        others = tuple(name for name in names if name != MANIFEST)
        _check_manifest(path, manifest, others)
        for name in others:
            if hashlib.sha256(_bytes_of(archive, path, name, MAX_MEMBER_BYTES)).hexdigest() != manifest.members[name]:
                raise UserInputError(f"{path}: {name} was changed after the cast was written; get an undamaged copy")
    return Package(path, digest, manifest, others)


def _opened(path: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise UserInputError(f"no such file: {path}") from None
    except OSError as error:
        raise UserInputError(f"can't read {path}: {error.strerror or error}") from None
    except _BROKEN:
        raise UserInputError(f"{path} is not a complete cast (not a zip file, or cut off); copy it again") from None


def _file_digest(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except FileNotFoundError:
        raise UserInputError(f"no such file: {path}") from None
    except OSError as error:
        raise UserInputError(f"can't read {path}: {error.strerror or error}") from None
    return digest.hexdigest()


def _member_names(archive: zipfile.ZipFile, path: str) -> tuple[str, ...]:
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise UserInputError(f"{path} has {len(infos)} members; a cast has at most {MAX_MEMBERS}")
    total = 0
    names: list[str] = []
    for info in infos:
        _check_name(path, info.filename)
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.is_dir() or kind not in (0, stat.S_IFREG):
            raise UserInputError(f"{path}: member {info.filename!r} is not a plain file; this cast is refused")
        if info.filename in names:
            raise UserInputError(f"{path}: member {info.filename!r} appears twice; this cast is refused")
        total += info.file_size
        limit = MAX_MANIFEST_BYTES if info.filename == MANIFEST else MAX_MEMBER_BYTES
        if info.file_size > limit or total > MAX_TOTAL_BYTES:
            raise UserInputError(f"{path}: {info.filename} would unpack to {info.file_size} bytes, over the limit")
        names.append(info.filename)
    return tuple(names)


def _check_name(path: str, name: str) -> None:
    parts = name.split("/")
    if not _NAME.fullmatch(name) or ".." in parts or "." in parts or len(name) > 200:
        raise UserInputError(f"{path}: member name {name!r} is not a plain relative path; this cast is refused")


def _bytes_of(archive: zipfile.ZipFile, path: str, name: str, limit: int) -> bytes:
    """Unpack at most `limit` bytes, whatever the header claims."""
    try:
        with archive.open(name) as member:
            data = member.read(limit + 1)
    except OSError as error:
        raise UserInputError(f"can't read {path}: {error.strerror or error}") from None
    except _BROKEN:
        raise UserInputError(f"{path}: {name} is damaged; get an undamaged copy of the cast") from None
    if len(data) > limit:
        raise UserInputError(f"{path}: {name} unpacks to more than {limit} bytes; this cast is refused")
    return data


def _parse(path: str, raw: bytes) -> CastManifest:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise UserInputError(f"{path}: {MANIFEST} is not JSON; get an undamaged copy of the cast") from None
    version = data.get("format") if isinstance(data, dict) else None
    if version != FORMAT:
        raise UserInputError(
            f"{path}: cast format {str(version)[:40]} is not known (this forge_tui reads {FORMAT}); update forge_tui"
        )
    try:
        return from_json(CastManifest, data)
    except RecordError as error:
        raise UserInputError(f"{path}: manifest is not valid: {str(error)[:300]}") from None


def _check_manifest(path: str, manifest: CastManifest, members: tuple[str, ...]) -> None:
    if set(members) != set(manifest.members):
        odd = min(set(members) ^ set(manifest.members))
        raise UserInputError(f"{path}: members and manifest differ at {odd!r}; this cast is refused")
    for entry in manifest.entries:
        stated = [(entry.source, entry.source_sha256), *((b.path, b.sha256) for b in entry.binaries)]
        for name, digest in stated:
            if manifest.members.get(name) != digest:
                raise UserInputError(f"{path}: {name} of card {entry.card_id} is missing or not the one its hash names")
        wrong = check_against(entry.plan, entry.key)
        if wrong:
            raise UserInputError(f"{path}: the plan of card {entry.card_id} does not fit its key: {wrong[0]}")
