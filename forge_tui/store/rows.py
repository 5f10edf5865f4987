"""Rows for resume, export and the command line; the screen's rows are in records.views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_tui.records.llm import LlmReply, LlmRequest


@dataclass(frozen=True)
class StepRow:
    """One step of work on a candidate: started, then done or lost. seconds and detail are the end's. seq: of the start."""

    seq: int
    at: float
    attempt_id: str
    card_id: str
    candidate_id: str
    step: str
    state: str
    seconds: float | None
    detail: dict[str, Any] | None


@dataclass(frozen=True)
class LlmCall:
    """A request and its reply (None while in flight). reply_seq gives the order of arrival."""

    seq: int
    at: float
    request: LlmRequest
    reply: LlmReply | None
    reply_seq: int = 0


@dataclass(frozen=True)
class Unfinished:
    """What was in flight when the owner stopped: to be marked lost, and tried once more."""

    attempts: tuple[StepRow, ...]
    calls: tuple[LlmRequest, ...]


@dataclass(frozen=True)
class NoteRow:
    seq: int
    at: float
    kind: str
    subject: str
    value: Any


@dataclass(frozen=True)
class DecisionRow:
    seq: int
    at: float
    card_id: str
    node_id: str
    strategy: str
    why: Any
    line: str


@dataclass(frozen=True)
class CommandRow:
    """A command and its answer (outcome "" while none)."""

    seq: int
    at: float
    verb: str
    subject: str
    sender: str
    outcome: str
    line: str


@dataclass(frozen=True)
class RunRow:
    """One event of the run; settings where the event carries them."""

    seq: int
    at: float
    event: str
    pid: int
    host: str
    line: str
    settings: dict[str, Any] | None


@dataclass(frozen=True)
class Integrity:
    """lines: every fault found, one line each; none means sound."""

    lines: tuple[str, ...]
    facts: int
    blobs: int

    @property
    def sound(self) -> bool:
        return not self.lines
