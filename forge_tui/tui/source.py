"""Where the screen's rows come from: a `Reader` over a session, and how its commands leave.

Invariants: the screen only reads, and it reads rows of `records.views`; whatever it wants
changed leaves as a `Command`. A reader is called from one thread at a time, though not always
the same one, and every method returns within the time of one indexed query: nothing here waits
for the engine. None in a row reads "unknown" on the screen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from forge_tui.records.candidate import Candidate
from forge_tui.records.card import Card
from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.verdict import Measurement, Verdict
from forge_tui.records.views import (
    AttemptRow,
    CardRow,
    Changes,
    LlmCallRow,
    LogRow,
    ModelRow,
    NodeRow,
    RunStatus,
    SessionSummary,
)

Send = Callable[[Command], Awaitable[Acknowledgement]]


class Reader(Protocol):
    """One session, read only."""

    def seq(self) -> int:
        """The newest sequence number; where `changes` starts from."""

    def changes(self, since: int) -> Changes:
        """What happened after `since`."""

    def cards(self) -> Sequence[CardRow]:
        """All operator cards, most to win first."""

    def nodes(self, card_id: str) -> Sequence[NodeRow]:
        """All nodes of a card's revision tree in order of creation, parents before children."""

    def card(self, card_id: str) -> Card | None:
        """The full card, or None when there is no such card."""

    def candidate(self, candidate_id: str) -> Candidate | None:
        """The full candidate, or None when there is no such candidate."""

    def source(self, candidate_id: str) -> str:
        """The candidate's kernel source, "" when there is none."""

    def verdicts(self, candidate_id: str) -> Sequence[Verdict]:
        """Every verdict on the candidate, oldest first."""

    def report(self, candidate_id: str) -> dict[str, object] | None:
        """The compiler's resource report, or None while the candidate is not compiled."""

    def attempts(self, candidate_id: str) -> Sequence[AttemptRow]:
        """The candidate's timeline, oldest first."""

    def llm_calls(self, candidate_id: str) -> Sequence[LlmCallRow]:
        """The model calls that led to the candidate, oldest first."""

    def log(
        self,
        *,
        card_id: str = "",
        candidate_id: str = "",
        levels: tuple[str, ...] = (),
        text: str = "",
        before: int | None = None,
        after: int | None = None,
        limit: int = 500,
    ) -> Sequence[LogRow]:
        """Log rows in ascending order: the newest `limit` that match and lie in after < seq < before.

        levels: only these, () for all. text: substring, case-insensitive, "" for all.
        """

    def log_count(
        self, *, card_id: str = "", candidate_id: str = "", levels: tuple[str, ...] = (), text: str = ""
    ) -> int:
        """How many log rows match."""

    def status(self) -> RunStatus:
        """The run as it is now."""

    def model(self) -> ModelRow | None:
        """The whole model, or None before it was captured."""

    def measurements(self, subject: str) -> Sequence[Measurement]:
        """Measurements of a card, the model or the device, oldest first."""


@dataclass(frozen=True)
class OpenSession:
    """A session that the home screen opened.

    readonly: another process owns the run; commands travel to it through `send` all the same.
    close: releases what was opened, told how we leave: "keep" (our search goes on without a screen), "stop" (it ends
        and can be resumed), "leave" (nothing of ours runs), "signal" (terminal lost or told to end).
    take_over: makes this process the owner; raises UserInputError when the owner lives and won't let go.
    export_folder: where casts and saved sources go unless the user says otherwise, "" for the present folder.
    can_keep: whether a search of ours can go on without the screen.
    """

    name: str
    reader: Reader
    send: Send
    readonly: bool = False
    close: Callable[[str], Awaitable[None]] | None = None
    export_folder: str = ""
    take_over: Callable[[], Awaitable[OpenSession]] | None = None
    can_keep: bool = False


class Home(Protocol):
    """The sessions of this user. Every method raises `UserInputError` with one line that the screen shows."""

    async def sessions(self) -> Sequence[SessionSummary]:
        """All sessions, last active first."""

    async def open(self, path: str) -> OpenSession:
        """Resume the session, or attach to its owner."""

    async def new(self, source: str) -> OpenSession:
        """Start a session for a model: a file, file.py:function, package.module:function or example:NAME."""

    async def delete(self, path: str) -> None:
        """Delete a session for good. Refuses one that has a live owner."""

    async def doctor(self) -> str:
        """The doctor's report as plain text."""

    async def close(self) -> None:
        """Let go of every session this app works on; their searches can be resumed."""
