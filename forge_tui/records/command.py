"""Commands a viewer, the command line or a key sends to the owner of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VERBS = (
    "pause", "resume", "stop", "quit", "prune", "unprune", "pin", "unpin", "expand", "rejudge", "budget", "submit", "export", "yield_owner", "status",
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    """One command. subject: candidate or card id, or "" for the run.

    budget: value {"attempts": n} or {"dollars": x}; submit: value {"card_id", "language", "source", "plan"}.
    """

    verb: str
    subject: str = ""
    value: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.verb not in VERBS:
            raise ValueError(f"unknown command {self.verb!r}; known: {', '.join(VERBS)}")


@dataclass(frozen=True)
class Acknowledgement:
    """Insert-only answer to a command. outcome: "done", "refused", "failed"; line says why; value is the verb's result."""

    command_seq: int
    outcome: str
    line: str = ""
    value: dict[str, Any] | None = None
