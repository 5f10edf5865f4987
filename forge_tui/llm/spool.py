"""Replies on disk before anyone uses them: one JSON file per call, written to a temporary name and renamed."""

from __future__ import annotations

import os
from pathlib import Path

from forge_tui.records.codec import RecordError, dumps, loads
from forge_tui.records.llm import LlmReply


def write_reply(folder: Path, reply: LlmReply) -> Path:
    """Store a reply durably (file and folder are synced). Raises OSError when the disk refuses."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = folder / f"{reply.call_id}.json"
    partial = folder / f".{reply.call_id}.{os.getpid()}.partial"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, dumps(reply).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.rename(target)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return target


def spooled(folder: Path) -> dict[str, LlmReply]:
    """Every whole reply in the spool by call id. Half-written and unreadable files are passed over."""
    found: dict[str, LlmReply] = {}
    if not folder.is_dir():
        return found
    for path in sorted(folder.glob("*.json")):
        try:
            reply = loads(LlmReply, path.read_bytes())
        except (RecordError, OSError):
            continue
        found[reply.call_id] = reply
    return found
