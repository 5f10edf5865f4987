"""Verdicts and measurements: what the judge says, with every number it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_tui.records.problem import Problem

# From number to claim (each stage includes the ones before it).
STAGES = ("captured", "compiled", "launched", "sane", "correct", "timed", "confirmed", "audited")
PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"

# Names of the judge's checks; the cheat suite asserts on them.
CHECKS = (
    "plan", "audit", "load", "launch", "protocol", "guard", "hash", "poison", "meta", "nonfinite",
    "error", "slices", "nulls", "integer probe", "determinism", "recheck", "wall", "floor", "noise", "installed", "sandbox",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One check. A check that did not run is "unknown" with the reason in `line`, never "passed"."""

    name: str
    outcome: str
    line: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in (PASSED, FAILED, UNKNOWN):
            raise ValueError(f"unknown outcome {self.outcome!r}")
        if self.name not in CHECKS:
            raise ValueError(f"unknown check {self.name!r}")


@dataclass(frozen=True)
class TrialError:
    """Error numbers of one trial and output against fp64.

    rms, eager_rms: root mean square of (result - reference); ratio = rms / eager_rms (None when eager's is 0).
    worst: multi-index of the worst element with got, expected and eager's value there.
    """

    trial: str
    output: int
    rms: float | None
    eager_rms: float | None
    ratio: float | None
    worst_index: tuple[int, ...] = ()
    got: float | None = None
    expected: float | None = None
    eager: float | None = None
    passed: bool = True


@dataclass(frozen=True)
class Timing:
    """Interleaved pairs of one method. All times in microseconds per call.

    speedup: ratio of medians baseline / candidate; low, high: 95% bootstrap interval of the paired log-ratios.
    noise: half-width of the A/A ratio (eager against eager through the candidate's plumbing); None when not run.
    other_cores: cores that processes of others used meanwhile; None when not known.
    samples: raw pairs (baseline_us, candidate_us), in order of measurement.
    method: "batch" (n calls a sample) and what both sides allocate.
    against: "eager" or "compile".
    call: "operator" (kernel with equal allocation) or "installed" (through guard and dispatch).
    """

    baseline_us: float
    candidate_us: float
    speedup: float
    low: float
    high: float
    pairs: int
    batch: int
    method: str
    against: str = "eager"
    call: str = "operator"
    noise: float | None = None
    threads: int = 1
    samples: tuple[tuple[float, float], ...] = ()
    other_cores: float | None = None

    @property
    def verdict(self) -> str:
        """ "faster", "slower" or "same", three-valued: the interval must clear max(2%, 3 x A/A half-width)."""
        margin = max(0.02, 3 * self.noise) if self.noise is not None else 0.05
        if self.low > 1 + margin:
            return "faster"
        if self.high < 1 / (1 + margin):
            return "slower"
        return "same"


@dataclass(frozen=True)
class Verdict:
    """The typed result of judging one candidate once.

    stage: the last stage reached. outcome: "correct", "rejected", "void" (harness or machine problem).
    confirmation: True for the run in a fresh process with fresh seeds; its numbers are the ones shown.
    profile: sandbox profile in force with each canary's result. environment: device, torch, driver, toolchain.
    seeds are revealed only after the run. A verdict can be recomputed from the raw samples it carries.
    ships: False where nothing can install the candidate yet (its "installed" check says why): it is never a champion.
    """

    candidate_id: str
    card_id: str
    stage: str
    outcome: str
    problem: Problem | None = None
    checks: tuple[Check, ...] = ()
    errors: tuple[TrialError, ...] = ()
    timing: Timing | None = None
    installed: Timing | None = None
    confirmation: bool = False
    floor_us: float | None = None
    binary: str = ""
    profile: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    seconds: float = 0.0
    seed: str = ""
    ships: bool = True

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"unknown stage {self.stage!r}")
        if self.outcome not in ("correct", "rejected", "void"):
            raise ValueError(f"unknown outcome {self.outcome!r}")

    @property
    def champion_worthy(self) -> bool:
        """Confirmed faster as an operator and as an installed call."""
        if self.outcome != "correct" or not self.confirmation or self.timing is None or not self.ships:
            return False
        if self.timing.verdict != "faster":
            return False
        # Unknown is not enough: a candidate that dies or declines where it would be installed has shown nothing.
        return self.installed is not None and self.installed.verdict == "faster"


@dataclass(frozen=True)
class Measurement:
    """A number that belongs to a card, the model or the device rather than to a candidate.

    kind: "eager", "compile", "copy bandwidth", "matmul rate", "model eager", "model compile", "model cast", "aa".
    value None means unknown, with the reason in `line`. unit: "us", "ms", "GB/s", "GFLOP/s", "ratio".
    """

    kind: str
    subject: str
    value: float | None
    unit: str
    line: str = ""
    low: float | None = None
    high: float | None = None
    detail: dict[str, Any] | None = None
