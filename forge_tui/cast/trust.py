"""Consent to host code: a T3 kernel is native code in the user's own process.

It runs when the caller says so (`accept_host_code=True`), when FORGE_ACCEPT_HOST_CODE=1 is set, or when the file
belongs to this user and its hash was remembered as written on this machine. Nothing else counts as consent.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from forge_tui.records.problem import UserInputError

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def trusted_file() -> Path:
    """$XDG_STATE_HOME/forge_tui/trusted, else ~/.local/state/forge_tui/trusted: one hash per line, mode 0600."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "forge_tui" / "trusted"


def remember(digest: str) -> None:
    """Record a cast (SHA-256 of the file) as written by this user on this machine. Raises ValueError, OSError."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError("not a SHA-256 in hexadecimal")
    target = trusted_file()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{digest}\n".encode())
    finally:
        os.close(handle)


def is_remembered(path: str, digest: str) -> bool:
    """True when the file and the list belong to this user, others can't write the list, and the hash is in it."""
    listed = trusted_file()
    try:
        state = listed.stat()
        if state.st_uid != os.getuid() or state.st_mode & 0o022 or Path(path).stat().st_uid != os.getuid():
            return False
        return digest in listed.read_text().split()
    except (OSError, UnicodeDecodeError):
        return False


def require(path: str, digest: str, accept: bool | None) -> str:
    """How consent was given, in words. Raises UserInputError without it; `accept=False` overrides the rest."""
    if accept:
        return "accepted by the caller"
    if accept is None and os.environ.get("FORGE_ACCEPT_HOST_CODE") == "1":
        return "accepted by FORGE_ACCEPT_HOST_CODE=1"
    if accept is None and is_remembered(path, digest):
        return "written by this user on this machine"
    raise UserInputError(
        f"{path} holds native code that would run in this process; look at it with `forge-tui inspect`, "
        "then pass accept_host_code=True or set FORGE_ACCEPT_HOST_CODE=1"
    )
