"""What the user wants made faster, and what running it showed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_tui.records.card import Card
from forge_tui.records.verdict import Timing


@dataclass(frozen=True)
class WorkloadSpec:
    """How to build the workload in the model process.

    source: a Python file, "file.py:function", "package.module:function", or "example:NAME".
    weights: path of a local checkpoint, or "". options: builder options of an example ("seq=128").
    threads: CPU threads for everything that is timed, equal on all sides.
    """

    source: str
    weights: str = ""
    options: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int = 2


@dataclass(frozen=True)
class Loaded:
    """The workload is built. input_sets: names of the example inputs. synthetic: weights or inputs are made up, with the reason.

    notes: what the user should know (switched to evaluation mode), one line each.
    """

    name: str
    kind: str
    parameters: int
    nbytes: int
    input_sets: tuple[str, ...]
    synthetic: str = ""
    versions: dict[str, str] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotSeen:
    """Something that ran and made no card, with the reason ("view", "random", "registered by the user's file")."""

    op: str
    calls: int
    reason: str
    share: float | None = None


@dataclass(frozen=True)
class Captured:
    """One capture. total_us: eager time of one run (median); call_us: summed time inside operators."""

    cards: tuple[Card, ...]
    not_seen: tuple[NotSeen, ...]
    total_us: float
    calls: int
    stored_bytes: int
    bit_equal: bool | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelVerdict:
    """Whole-model accept test of a cast: interleaved pairs in the model process.

    outputs_ok: True/False, or None when it could not be decided ("unknown", reason in `line`).
    calls, hits: matching calls expected from the capture and served, summed over the counted forwards.
    misses: reason -> count. compile_ms: torch.compile of the same model, None with the reason in compile_line.
    """

    outputs_ok: bool | None
    line: str
    timing: Timing | None
    compile_ms: float | None
    compile_line: str
    calls: int
    hits: int
    misses: dict[str, int]
    per_card: dict[str, int]
    tier: str
    tier_reason: str
    error_ratio: float | None = None
    detail: dict[str, Any] | None = None

    @property
    def proven(self) -> bool:
        """The interval is clear of 1.0, outputs are right, every matching call was served."""
        return (
            bool(self.outputs_ok) and self.timing is not None and self.timing.low > 1.0 and self.hits == self.calls > 0
        )
