"""Records that the store's tests put in: small, valid, of every kind."""

from __future__ import annotations

from typing import Any

from forge_tui.records.candidate import Candidate, Parent
from forge_tui.records.card import Arg, Card, Dim, TensorSpec, VariantKey
from forge_tui.records.plan import host_plan
from forge_tui.records.problem import Problem
from forge_tui.records.verdict import Timing, Verdict


def card(card_id: str = "c1", **changes: Any) -> Card:
    spec = TensorSpec("x", (Dim(4, 4), Dim(8, 8)), "float32", "contiguous", (8, 1))
    key = VariantKey("aten::relu", (Arg("self", "tensor", 0),), (spec,), (spec,), output_alias=(-1,))
    given: dict[str, Any] = {"share": 0.25, "self_time_us": 100.0} | changes
    return Card(card_id, key, 6, ("layer",), (), "pointwise", 256, **given)


def candidate(candidate_id: str, parent: str = "", card_id: str = "c1", **changes: Any) -> Candidate:
    parents = (Parent(parent),) if parent else ()
    given: dict[str, Any] = {"technique": "vector of 8", "proposer": "recipe"} | changes
    proposer = given.pop("proposer")
    plan = host_plan()
    source = f"// {candidate_id}\nint forge_launch(const forge_args*);"
    return Candidate(candidate_id, card_id, "cpp", "T3", source, plan, proposer, parents, **given)


def timing(speedup: float, call: str = "operator") -> Timing:
    return Timing(
        100.0, 100.0 / speedup, speedup, speedup * 0.99, speedup * 1.01, 20, 10, "batch", noise=0.004, call=call,
        samples=((100.0, 100.0 / speedup),) * 20,
    )  # fmt: skip


def passed(candidate_id: str, speedup: float, confirm: bool = False, card_id: str = "c1") -> Verdict:
    return Verdict(
        candidate_id, card_id, "confirmed" if confirm else "timed", "correct", timing=timing(speedup),
        installed=timing(speedup) if confirm else None, confirmation=confirm, floor_us=5.0,
    )  # fmt: skip


def rejected(candidate_id: str, kind: str = "numeric", card_id: str = "c1") -> Verdict:
    problem = Problem("candidate", kind, "row 3 is wrong")
    return Verdict(candidate_id, card_id, "sane", "rejected", problem)


def void(candidate_id: str, kind: str = "judge died", card_id: str = "c1") -> Verdict:
    return Verdict(candidate_id, card_id, "compiled", "void", Problem("harness", kind, "the judge was replaced"))
