"""Records to rows: pure functions, one per kind of fact.

A Fact knows its table, its narrow columns and its JSON body; which nodes and cards its arrival can change is said
here too, so that the writer refreshes exactly those.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from forge_tui.records.candidate import Candidate
from forge_tui.records.card import Card
from forge_tui.records.codec import dumps
from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.verdict import Measurement, Verdict
from forge_tui.records.workload import Captured

STEPS = ("propose", "compile", "judge", "confirm")
ATTEMPT_STATES = ("started", "done", "lost")
RUN_EVENTS = ("started", "resumed", "paused", "unpaused", "stopping", "settings", "ended", "interrupted")
LEVELS = ("debug", "info", "good", "warn", "bad")
# Notes that change what a list shows. Others are free: kind and subject are kept as they are.
NODE_NOTES = ("prune", "unprune", "pin", "unpin", "repair", "repair over", "stale")
CARD_NOTES = ("card ready", "card state")
# Kinds of a workload row and what their body is.
WORKLOAD_KINDS = ("spec", "loaded", "captured", "model verdict")
MAX_LINE = 500
MAX_LOG_LINE = 2000


@dataclass(frozen=True)
class Fact:
    """One row to be. nodes: candidate ids whose derived state it can change ("*": all)."""

    table: str
    columns: dict[str, Any]
    body: str | None = None
    nodes: tuple[str, ...] = ()


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """Text for a narrow column: one line, no control bytes, capped."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:limit]


def number_of(candidate_id: str) -> int:
    """37 of "n37"; -1 for an id of another form."""
    digits = candidate_id[1:]
    return int(digits) if candidate_id[:1] == "n" and digits.isascii() and digits.isdigit() else -1


def card_fact(card: Card) -> Fact:
    return Fact(
        "card",
        {
            "card_id": card.card_id, "op": card.key.op, "title": card.title, "calls": card.calls, "share": card.share,
            "self_time_us": card.self_time_us, "state": card.state, "reason": one_line(card.reason),
            "op_class": card.op_class, "synthetic": int(card.synthetic),
        },
        dumps(card),
    )  # fmt: skip


def candidate_facts(candidate: Candidate) -> list[Fact]:
    """The node and its edges. Raises ValueError for an id that is not n<number>."""
    number = number_of(candidate.candidate_id)
    if number < 1:
        raise ValueError(f"candidate id {candidate.candidate_id!r} is not of the form n1, n2, ...")
    label = one_line(candidate.technique or str((candidate.detail or {}).get("recipe", "")) or candidate.proposer)
    node = Fact(
        "candidate",
        {
            "candidate_id": candidate.candidate_id, "number": number, "card_id": candidate.card_id,
            "parent_id": candidate.parent_id or "", "proposer": candidate.proposer, "language": candidate.language,
            "tier": candidate.tier, "attempt": candidate.attempt, "label": label,
            "audit_class": candidate.audit_class, "expected_gain": candidate.expected_gain,
            "digest": candidate.digest(),
        },
        dumps(candidate),
        (candidate.candidate_id,),  # an attempt may have been stored before its candidate

    )  # fmt: skip
    edges = [
        Fact(
            "candidate_parent",
            {
                "candidate_id": candidate.candidate_id,
                "position": position,
                "parent_id": parent.candidate_id,
                "role": parent.role,
            },
        )
        for position, parent in enumerate(candidate.parents)
    ]
    repaired = tuple(p.candidate_id for p in candidate.parents) if candidate.attempt > 1 else ()
    if edges:
        edges[-1] = Fact(edges[-1].table, edges[-1].columns, nodes=repaired)
    return [node, *edges]


def attempt_fact(
    attempt_id: str,
    candidate_id: str,
    step: str,
    state: str,
    seconds: float | None,
    detail: dict[str, Any] | None,
    card_id: str,
) -> Fact:
    if step not in STEPS:
        raise ValueError(f"unknown step {step!r}; known: {', '.join(STEPS)}")
    if state not in ATTEMPT_STATES:
        raise ValueError(f"unknown attempt state {state!r}; known: {', '.join(ATTEMPT_STATES)}")
    columns = {
        "attempt_id": attempt_id,
        "card_id": card_id,
        "candidate_id": candidate_id,
        "step": step,
        "state": state,
        "seconds": seconds,
    }
    nodes = (candidate_id,) if candidate_id else ()
    return Fact("attempt", columns, dumps(detail) if detail is not None else None, nodes)


def verdict_fact(verdict: Verdict) -> Fact:
    timing, installed, problem = verdict.timing, verdict.installed, verdict.problem
    return Fact(
        "verdict",
        {
            "candidate_id": verdict.candidate_id,
            "card_id": verdict.card_id,
            "stage": verdict.stage,
            "outcome": verdict.outcome,
            "confirmation": int(verdict.confirmation),
            "speed": timing.verdict if timing else "",
            "worthy": int(verdict.champion_worthy),
            "speedup": timing.speedup if timing else None,
            "low": timing.low if timing else None,
            "high": timing.high if timing else None,
            "baseline_us": timing.baseline_us if timing else None,
            "candidate_us": timing.candidate_us if timing else None,
            "installed_speedup": installed.speedup if installed else None,
            "installed_low": installed.low if installed else None,
            "floor_us": verdict.floor_us,
            "binary": verdict.binary,
            "blame": problem.blame if problem else "",
            "kind": problem.kind if problem else "",
            "line": one_line(problem.line) if problem else "",
            "seconds": verdict.seconds,
        },
        dumps(verdict),
        (verdict.candidate_id,),
    )


def measurement_fact(measurement: Measurement) -> Fact:
    columns = {
        "kind": measurement.kind, "subject": measurement.subject, "value": measurement.value,
        "unit": measurement.unit, "line": one_line(measurement.line), "low": measurement.low, "high": measurement.high,
    }  # fmt: skip
    return Fact("measurement", columns, dumps(measurement))


def note_fact(kind: str, subject: str, value: Any) -> Fact:
    nodes: tuple[str, ...] = ()
    if kind in NODE_NOTES:
        nodes = (subject,) if number_of(subject) > 0 else ("*",)
    return Fact("note", {"kind": kind, "subject": subject}, dumps(value) if value is not None else None, nodes)


def request_fact(request: LlmRequest) -> Fact:
    return Fact(
        "llm_call",
        {
            "call_id": request.call_id, "phase": "request", "card_id": request.card_id, "node": request.node,
            "purpose": request.purpose, "model": request.model, "attempt_id": request.attempt, "state": "", "finish_reason": "",
            "prompt_tokens": None, "completion_tokens": None, "cost_usd": None, "seconds": None, "line": "",
        },
        dumps(request),
    )  # fmt: skip


def reply_fact(reply: LlmReply) -> Fact:
    return Fact(
        "llm_call",
        {
            "call_id": reply.call_id, "phase": "reply", "card_id": "", "node": "", "purpose": "", "model": "",
            "attempt_id": "", "state": reply.state, "finish_reason": reply.finish_reason,
            "prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens,
            "cost_usd": reply.cost_usd, "seconds": reply.seconds, "line": one_line(reply.line),
        },
        dumps(reply),
    )  # fmt: skip


def command_fact(command: Command, sender: str) -> Fact:
    columns = {"verb": command.verb, "subject": command.subject, "sender": one_line(sender)}
    return Fact("command", columns, dumps(command))


def acknowledgement_fact(answer: Acknowledgement) -> Fact:
    columns = {"command_seq": answer.command_seq, "outcome": answer.outcome, "line": one_line(answer.line)}
    return Fact("acknowledgement", columns, dumps(answer))


def decision_fact(card_id: str, node_id: str, strategy: str, why: Any, line: str) -> Fact:
    columns = {"card_id": card_id, "node_id": node_id, "strategy": strategy, "line": one_line(line)}
    return Fact("decision", columns, dumps(why) if why is not None else None)


def run_fact(event: str, pid: int, host: str, started: float, settings: dict[str, Any] | None, line: str) -> Fact:
    if event not in RUN_EVENTS:
        raise ValueError(f"unknown run event {event!r}; known: {', '.join(RUN_EVENTS)}")
    columns = {"event": event, "pid": pid, "host": host, "started": started, "line": one_line(line)}
    return Fact("run", columns, dumps(settings) if settings is not None else None)


def captured_fact(captured: Captured) -> Fact:
    """The capture without its cards, which are rows of their own."""
    return workload_fact("captured", dataclasses.replace(captured, cards=()))


def workload_fact(kind: str, value: Any) -> Fact:
    if kind not in WORKLOAD_KINDS:
        raise ValueError(f"unknown workload row {kind!r}; known: {', '.join(WORKLOAD_KINDS)}")
    return Fact("workload", {"kind": kind}, dumps(value))
