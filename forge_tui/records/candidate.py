"""Candidates: one kernel source in one language with its launch plan; nodes of the revision graph."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from forge_tui.records.codec import dumps
from forge_tui.records.plan import Plan

ROLES = ("revised", "translated", "crossed")
PROPOSERS = ("recipe", "compiler seed", "llm", "inbox", "editor", "own kernel")
AUDIT_CLASSES = ("custom kernel", "compiler-derived", "library wrapper", "fallback")


@dataclass(frozen=True)
class Parent:
    """An edge of the revision graph. role: revised, translated or crossed."""

    candidate_id: str
    role: str = "revised"

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"unknown parent role {self.role!r}")


@dataclass(frozen=True)
class Candidate:
    """A node. The first parent is the one it hangs under in the tree; none means a root.

    candidate_id: "n37", unique in the session, in order of creation.
    language: "cpp", "cuda", "triton". tier: "T1", "T2", "T3".
    attempt: 1 for a first draft, 2.. for bounded repairs of it (the repaired node's parent is the broken one).
    technique, target, expected_gain: the proposer's own words; expected_gain as a factor (1.2 = 20% faster).
    detail: proposer's data (recipe name and point, LLM call id, file name).
    """

    candidate_id: str
    card_id: str
    language: str
    tier: str
    source: str
    plan: Plan
    proposer: str
    parents: tuple[Parent, ...] = ()
    attempt: int = 1
    technique: str = ""
    target: str = ""
    expected_gain: float | None = None
    audit_class: str = "custom kernel"
    detail: dict[str, Any] | None = None
    created_at: float = 0.0

    def __post_init__(self) -> None:
        if self.proposer not in PROPOSERS:
            raise ValueError(f"unknown proposer {self.proposer!r}")
        if self.audit_class not in AUDIT_CLASSES:
            raise ValueError(f"unknown audit class {self.audit_class!r}")

    @property
    def parent_id(self) -> str | None:
        return self.parents[0].candidate_id if self.parents else None

    def digest(self) -> str:
        """Identity of the work: language, source without blank differences, plan. Equal digests are duplicates."""
        source = "\n".join(line.rstrip() for line in self.source.strip().splitlines())
        return hashlib.sha256("\0".join((self.language, source, dumps(self.plan))).encode()).hexdigest()


@dataclass(frozen=True)
class Draft:
    """What a proposer returns before the engine numbers and stores it as a Candidate."""

    language: str
    source: str
    plan: Plan
    technique: str = ""
    target: str = ""
    expected_gain: float | None = None
    audit_class: str = "custom kernel"
    detail: dict[str, Any] | None = None


@dataclass(frozen=True)
class Binary:
    """A compiled candidate.

    digest: sha256 of the file. blob: its content address in the session's blob store.
    flags: the exact command line without paths, identical in check, timing and cast.
    target: "x86-64 avx512f ..." feature list or "sm_90".
    report: resource report (registers, spills, shared bytes, sizes, symbols), language-specific.
    """

    language: str
    digest: str
    blob: str
    flags: tuple[str, ...]
    toolchain: str
    target: str
    seconds: float
    report: dict[str, Any]
