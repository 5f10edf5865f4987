"""Compiled files by content hash: the same source, header, flags, toolchain and target are never compiled twice.

Invariants: only this module writes here (never a compiler), each entry is complete or absent (written aside, then
renamed), a file whose hash no longer matches its record is not used, and the folder is private.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_BYTES = 512 << 20
_BINARY, _REPORT = "binary", "report.json"


def default_folder() -> Path:
    """The user's cache folder, after XDG."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "forge_tui" / "compiled" if base else Path.home() / ".cache" / "forge_tui" / "compiled"


def content_key(parts: Iterable[str]) -> str:
    """Hash of everything that decides what a compiler writes; parts can't run into each other."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


@dataclass(frozen=True)
class CompileCache:
    """A folder of compiled files. An unusable folder means no cache, not an error."""

    folder: Path
    limit_bytes: int = LIMIT_BYTES

    def get(self, key: str) -> tuple[bytes, dict[str, Any]] | None:
        """Binary and report stored under `key`."""
        entry = self.folder / key[:2] / key
        try:
            data = (entry / _BINARY).read_bytes()
            stored = json.loads((entry / _REPORT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(stored, dict) or stored.get("sha256") != hashlib.sha256(data).hexdigest():
            return None
        report = stored.get("report")
        return (data, report) if isinstance(report, dict) else None

    def put(self, key: str, data: bytes, report: dict[str, Any]) -> None:
        """Store an entry; an existing one stays."""
        entry = self.folder / key[:2] / key
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            entry.parent.mkdir(exist_ok=True, mode=0o700)
            aside = Path(tempfile.mkdtemp(prefix="new-", dir=self.folder))
            try:
                (aside / _BINARY).write_bytes(data)
                stored = {"sha256": hashlib.sha256(data).hexdigest(), "report": report}
                (aside / _REPORT).write_text(json.dumps(stored), encoding="utf-8")
                aside.rename(entry)
            except OSError:
                shutil.rmtree(aside, ignore_errors=True)
            self._shrink()
        except OSError:
            return

    def _shrink(self) -> None:
        """Drop the oldest entries down to half the limit once the limit is passed."""
        entries = []
        for binary in self.folder.glob(f"??/*/{_BINARY}"):
            state = binary.stat()
            entries.append((state.st_mtime, state.st_size, binary.parent))
        total = sum(size for _, size, _ in entries)
        if total <= self.limit_bytes:
            return
        for _, size, entry in sorted(entries):
            shutil.rmtree(entry, ignore_errors=True)
            total -= size
            if total <= self.limit_bytes // 2:
                return
