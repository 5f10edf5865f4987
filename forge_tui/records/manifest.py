"""The manifest of a .cast: what it would put where, and on what evidence. JSON, no pickles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forge_tui.records.card import VariantKey
from forge_tui.records.plan import Plan

FORMAT = 1


@dataclass(frozen=True)
class CastBinary:
    """One compiled form. path: member of the archive. target: CPU feature list or "sm_90". sha256 of the member."""

    path: str
    sha256: str
    language: str
    target: str
    flags: tuple[str, ...]
    toolchain: str


@dataclass(frozen=True)
class Evidence:
    """Why the entry is trusted: confirmed interval, installed-call interval, error ratio, who wrote it, on what data."""

    speedup: float
    low: float
    high: float
    baseline_us: float
    candidate_us: float
    installed_low: float | None
    error_ratio: float | None
    candidate_id: str
    proposer: str
    audit_class: str
    synthetic: bool
    environment: dict[str, Any]
    checks: dict[str, str]


@dataclass(frozen=True)
class CastEntry:
    """One variant. source: member path; source_sha256 its hash. calls: per run at capture; modules: where it was seen."""

    card_id: str
    key: VariantKey
    plan: Plan
    source: str
    source_sha256: str
    binaries: tuple[CastBinary, ...]
    evidence: Evidence
    calls: int
    modules: tuple[str, ...]
    tier: str


@dataclass(frozen=True)
class CastManifest:
    """format: FORMAT. workload: name shown to people. torch: version the evidence is from. model_verdict: its JSON, or None.

    members: SHA-256 of every archive member besides the manifest; filled in by the writer.
    """

    format: int
    name: str
    workload: str
    created_at: float
    torch: str
    device: str
    entries: tuple[CastEntry, ...]
    synthetic: bool
    model_verdict: dict[str, Any] | None = None
    members: dict[str, str] = field(default_factory=dict)
