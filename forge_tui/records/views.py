"""Rows that the screen and the command line show, derived from the stored facts."""

from __future__ import annotations

from dataclasses import dataclass

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
