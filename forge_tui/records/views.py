"""Rows that the screen and the command line show, derived from the stored facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Node states, in the order of `screens`: glyph and ASCII stand-in live in tui.glyphs.
NODE_STATES = (
    "baseline",
    "queued",
    "running",
    "repair",
    "correct",
    "champion",
    "rejected",
    "pruned",
    "unknown",
    "problem",
)
CARD_STATES = ("waiting", "running", "champion", "tie", "done", "refused", "undiscriminating", "problem")


@dataclass(frozen=True)
class CardRow:
    """One operator card in the list. Times in us per call; None reads "unknown"."""

    card_id: str
    title: str
    op: str
    calls: int
    share: float | None
    state: str
    reason: str
    eager_us: float | None
    compile_us: float | None
    floor_us: float | None
    best_id: str
    best_us: float | None
    speedup: float | None
    low: float | None
    high: float | None
    provisional: bool
    audit_class: str
    attempts: int
    failures: int
    weak: bool
    synthetic: bool

    @property
    def headroom(self) -> float | None:
        """How many times the best known time is above the speed-of-light floor."""
        best = self.best_us or self.eager_us
        return best / self.floor_us if best and self.floor_us else None


@dataclass(frozen=True)
class NodeRow:
    """One node of a revision tree, narrow on purpose: 50,000 of them are read at once."""

    node_id: str
    parent_id: str
    card_id: str
    seq: int
    state: str
    label: str
    speedup: float | None
    low: float | None
    high: float | None
    confirmed: bool
    time_us: float | None
    visits: int
    value: float | None
    attempt: int
    line: str
    pinned: bool = False


@dataclass(frozen=True)
class LogRow:
    """One line of the log and repair stream. level: debug, info, good, warn, bad (bad: harness or machine problems only)."""

    seq: int
    at: float
    level: str
    card_id: str
    candidate_id: str
    text: str


@dataclass(frozen=True)
class ModelRow:
    """Whole model: eager, torch.compile, with the cast (measured), and the estimate from current champions. Milliseconds."""

    name: str
    device: str
    eager_ms: float | None
    compile_ms: float | None
    compile_line: str
    estimate_ms: float | None
    cast_ms: float | None
    cast_speedup: float | None
    cast_low: float | None
    cast_high: float | None
    hits: int | None
    calls: int | None
    outputs_ok: bool | None
    synthetic: str


@dataclass(frozen=True)
class RunStatus:
    """The run. state: "running", "paused", "stopping", "finished", "interrupted" (no owner), "elsewhere" (another live owner)."""

    state: str
    owner: str
    strategy: str
    elapsed_s: float
    candidates: int
    budget: int
    per_minute: float | None
    eta_s: float | None
    dollars: float
    dollar_budget: float | None
    unpriced_calls: int
    tokens: int
    queued: int
    compiling: int
    judging: str
    profile: str


@dataclass(frozen=True)
class SessionSummary:
    """One line of the home screen."""

    path: str
    name: str
    model: str
    device: str
    state: str
    cards: int
    faster: int
    model_speedup: float | None
    dollars: float
    last_activity: float
    problem: str = ""


@dataclass(frozen=True)
class AttemptRow:
    """One step of a candidate's life in its timeline: from prompt to verdict.

    step: "prompt", "reply", "compile", "run", "verdict" or "note". outcome: "done", "failed", "running" or "unknown".
    at: seconds since the epoch. seconds None: not measured. text: long plain text (prompt, reply, compiler output).
    """

    seq: int
    at: float
    attempt: int
    step: str
    outcome: str
    line: str
    seconds: float | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    text: str = ""


@dataclass(frozen=True)
class LlmCallRow:
    """One call to a model, as the candidate's timeline shows it. None reads "unknown"."""

    call_id: str
    at: float
    purpose: str
    model: str
    state: str
    seconds: float
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    prompt: str
    reply: str
    line: str = ""
    detail: dict[str, Any] | None = None


@dataclass(frozen=True)
class Changes:
    """What happened after a sequence number. seq: pass it to the next call.

    nodes: rows of every card whose state, numbers or visits changed, new ones included, parents before children.
    cards, status, model, log: something there changed and should be read again.
    """

    seq: int
    nodes: tuple[NodeRow, ...] = ()
    cards: bool = False
    status: bool = False
    model: bool = False
    log: bool = False
