"""What the engine asks of the judge. Trusted JSON frames, one request at a time.

Verbs: "hello" JudgeSettings -> JudgeHello; "open_card" Card -> CardReady; "judge" JudgeJob -> Verdict;
"compile_baseline" CompileJob -> Measurement; "health" {} -> {"ok": true}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_tui.records.candidate import Binary, Candidate
from forge_tui.records.verdict import Check, Measurement


@dataclass(frozen=True)
class JudgeSettings:
    """How to judge in this session.

    blob_dir: the session's content-addressed files (captured tensors, binaries).
    scratch_dir: private folder on a local disk for workers and caches.
    worker_python: interpreter of the run worker (ours, standard library only); package_dir: folder `forge_tui`.
    threads: OpenMP threads, equal on both sides. search_pairs / confirm_pairs: timing pairs (5.3 of the trust notes: 20 / 100).
    time_limit_s: wall limit of one candidate's run. trust_host_code: the user's consent to run LLM or inbox host code
    below the full sandbox profile. other_cores: a CPU measurement counts only while processes of others use less than this
    many cores; None turns that off (and the result says so).
    """

    blob_dir: str
    scratch_dir: str
    worker_python: str
    package_dir: str
    device: str = "cpu"
    threads: int = 2
    search_pairs: int = 20
    confirm_pairs: int = 100
    confirm_seconds: float = 10.0
    time_limit_s: float = 20.0
    trust_host_code: bool = False
    machine_lock: str = ""
    other_cores: float | None = 0.3


@dataclass(frozen=True)
class JudgeHello:
    """Who judges: torch version, device, CPU features, sandbox profile with its layers, native timing loop or its lack."""

    torch: str
    device: str
    profile: dict[str, Any]
    native: str
    environment: dict[str, Any]


@dataclass(frozen=True)
class CardReady:
    """A card after its own tests. usable False: no speed-up is ever claimed from it (line says why).

    weak: no error-rule class, torch's default tolerances are used and every verdict says so.
    eager_us: eager's median per call; noise: A/A half-width as a ratio; floor_us: speed-of-light bound.
    nulls: one check per null output ("zeros rejected 8/8").
    """

    card_id: str
    usable: bool
    weak: bool
    line: str
    eager_us: float | None
    noise: float | None
    floor_us: float | None
    nulls: tuple[Check, ...]
    measurements: tuple[Measurement, ...] = ()


@dataclass(frozen=True)
class JudgeJob:
    """Judge one compiled candidate. confirm: fresh process, seeds and placement, more pairs, installed call."""

    candidate: Candidate
    binary: Binary
    confirm: bool = False


@dataclass(frozen=True)
class CompileJob:
    """Time torch.compile's version of a card beside eager (in the background, after confirmation)."""

    card_id: str
    limit_s: float = 120.0
