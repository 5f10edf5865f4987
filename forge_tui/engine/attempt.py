"""The life of one candidate: numbered, stored, compiled, judged, confirmed; each step is a fact before the next begins."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from forge_tui.engine.cardstate import CardSearch, Node
from forge_tui.engine.services import Services
from forge_tui.languages.registry import language
from forge_tui.records.candidate import Binary, Candidate, Draft, Parent
from forge_tui.records.codec import to_json
from forge_tui.records.judging import JudgeJob
from forge_tui.records.problem import BUSY, HarnessProblem, MachineProblem, Problem
from forge_tui.records.verdict import Verdict

BUSY_TRIES, BUSY_WAIT_S = 5, 5.0  # each try waits for a quiet moment itself


class Attempts:
    """Turns drafts into judged nodes."""

    def __init__(self, services: Services) -> None:
        self._s = services

    async def develop(
        self, cs: CardSearch, draft: Draft, proposer: str, parents: tuple[Parent, ...], attempt: int = 1
    ) -> Node | None:
        """Store a draft as a candidate and take it through to a verdict. None for a duplicate."""
        s = self._s
        candidate = Candidate(
            s.store.next_candidate_id(), cs.card.card_id, draft.language, language(draft.language).tier, draft.source, draft.plan, proposer,
            parents, attempt, draft.technique, draft.target, draft.expected_gain, draft.audit_class, draft.detail, time.time(),
        )  # fmt: skip
        digest = candidate.digest()
        if digest in cs.digests:
            s.store.log(
                "info",
                f"duplicate of an earlier candidate, dropped: {candidate.technique or proposer}",
                cs.card.card_id,
            )
            return None
        cs.digests.add(digest)
        node = Node(candidate)
        cs.nodes[candidate.candidate_id] = node
        cs.in_flight.add(candidate.candidate_id)
        try:
            await s.store.add_candidate(candidate)
            await self.judge(cs, node)
        finally:
            cs.in_flight.discard(candidate.candidate_id)
            s.changed.set()
        return node

    async def judge(self, cs: CardSearch, node: Node) -> Verdict:
        """Compile and judge a stored candidate; the verdict is stored and kept in the node."""
        binary = await self.binary_of(cs, node)
        if isinstance(binary, Problem):
            verdict = _unlaunched(node.candidate, binary)
        else:
            verdict = await self._ask(cs, node, binary, confirm=False)
        await self._s.store.add_verdict(verdict)
        node.verdict = verdict
        self._report(cs, node, verdict)
        return verdict

    async def confirm(self, cs: CardSearch, node: Node) -> None:
        """Judge again in a fresh process with fresh seeds and placement; these are the numbers that count."""
        cs.tried_to_confirm.add(node.candidate.candidate_id)
        cs.nodes_at_confirm = len(cs.nodes)
        cs.in_flight.add(node.candidate.candidate_id)
        try:
            binary = await self.binary_of(cs, node)
            if isinstance(binary, Problem):
                verdict = replace(_unlaunched(node.candidate, binary), confirmation=True)
            else:
                verdict = await self._ask(cs, node, binary, confirm=True)
            await self._s.store.add_verdict(verdict)
            node.confirmation = verdict
            self._report(cs, node, verdict)
        finally:
            cs.in_flight.discard(node.candidate.candidate_id)
            self._s.changed.set()

    async def binary_of(self, cs: CardSearch, node: Node) -> Binary | Problem:
        """The node's compiled form, compiling it when this run hasn't yet."""
        if node.binary is not None:
            return node.binary
        s, candidate = self._s, node.candidate
        async with self._step(cs, candidate.candidate_id, "compile") as detail:
            try:
                done = await s.pool.compile(candidate, cs.card.key)
            except (MachineProblem, HarnessProblem) as error:
                done = Problem("machine" if isinstance(error, MachineProblem) else "harness", "compile", str(error))
            if isinstance(done, Problem):
                detail["problem"] = to_json(done)
                return done
            binary, content = done
            blob = await asyncio.to_thread(s.store.blobs.put, content)
            binary = replace(binary, blob=blob)
            detail["binary"] = to_json(binary)
            detail["report"] = to_json(binary.report)
        node.binary = binary
        return binary

    async def _ask(self, cs: CardSearch, node: Node, binary: Binary, confirm: bool) -> Verdict:
        s, candidate = self._s, node.candidate
        step = "confirm" if confirm else "judge"
        async with s.gate.exclusive(), self._step(cs, candidate.candidate_id, step) as detail:
            try:
                for left in reversed(range(BUSY_TRIES)):
                    verdict = await s.judge.judge(cs.card, JudgeJob(candidate, binary, confirm))
                    if verdict.problem is None or verdict.problem.kind != BUSY or not left or s.stopping:
                        break
                    s.store.log(
                        "warn",
                        f"waiting for a quieter machine: {verdict.problem.line}",
                        cs.card.card_id,
                        candidate.candidate_id,
                    )
                    await asyncio.sleep(BUSY_WAIT_S)
            except (MachineProblem, HarnessProblem) as error:
                blame = "machine" if isinstance(error, MachineProblem) else "harness"
                verdict = Verdict(
                    candidate.candidate_id,
                    cs.card.card_id,
                    "compiled",
                    "void",
                    Problem(blame, "judge", str(error)),
                    confirmation=confirm,
                )
            detail["outcome"] = verdict.outcome
        return verdict

    @asynccontextmanager
    async def _step(self, cs: CardSearch, candidate_id: str, step: str) -> AsyncIterator[dict[str, Any]]:
        """An attempt row before and after. A step that is cancelled stays open: the next run marks it lost."""
        attempt_id, started = f"{step}-{candidate_id}-{secrets.token_hex(3)}", time.monotonic()
        detail: dict[str, Any] = {}
        await self._s.store.add_attempt(attempt_id, candidate_id, step, "started", card_id=cs.card.card_id)
        yield detail
        await self._s.store.add_attempt(
            attempt_id, candidate_id, step, "done", time.monotonic() - started, detail or None, cs.card.card_id
        )

    def _report(self, cs: CardSearch, node: Node, verdict: Verdict) -> None:
        s, name, card_id = self._s, node.candidate.candidate_id, cs.card.card_id
        if verdict.outcome == "void":
            problem = verdict.problem or Problem("harness", "judge", "no reason given")
            s.store.log("bad", f"{problem.blame} problem: {problem.line}", card_id, name)
            s.fault(f"{problem.blame} problem while judging {name}: {problem.line}")
            return
        s.faults = 0
        if verdict.outcome == "rejected":
            problem = verdict.problem or Problem("candidate", "rejected", "no reason given")
            s.store.log("info", f"rejected, {problem.kind}: {problem.line}", card_id, name)
            return
        if verdict.timing is None:
            s.store.log("info", "correct; speed unknown", card_id, name)
            return
        t = verdict.timing
        text = f"{t.candidate_us:.1f} us against {t.baseline_us:.1f}, {t.speedup:.2f}x [{t.low:.2f}, {t.high:.2f}]"
        if not verdict.confirmation:
            s.store.log("info", f"correct, ~{text} (provisional)", card_id, name)
        elif verdict.champion_worthy:
            installed = (
                f"; installed call {verdict.installed.speedup:.2f}x"
                if verdict.installed
                else "; installed call unknown"
            )
            s.store.log("good", f"confirmed faster: {text}{installed}", card_id, name)
        elif not verdict.ships and t.verdict == "faster":
            why = next((c.line for c in verdict.checks if c.name == "installed"), "")
            s.store.log("good", f"confirmed faster, not installable: {text}; {why}", card_id, name)
        else:
            s.store.log(
                "info",
                f"not confirmed: {text} is {t.verdict}"
                + (f", installed call {verdict.installed.verdict}" if verdict.installed else ""),
                card_id,
                name,
            )


def _unlaunched(candidate: Candidate, problem: Problem) -> Verdict:
    outcome = "rejected" if problem.blame == "candidate" else "void"
    return Verdict(candidate.candidate_id, candidate.card_id, "captured", outcome, problem)
