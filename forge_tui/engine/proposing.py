"""From "expand this node" to a draft: recipes at once, a language model through stored calls."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from forge_tui.engine.attempt import Attempts
from forge_tui.engine.cardstate import CardSearch, Node
from forge_tui.engine.llm_client import BudgetSpent, new_call_id
from forge_tui.engine.services import Services
from forge_tui.languages.registry import language
from forge_tui.llm.compose import Context
from forge_tui.proposers.llm import draft_from, request_for
from forge_tui.proposers.recipes.registry import first_drafts, mutate, refusals
from forge_tui.records.candidate import Candidate, Draft, Parent
from forge_tui.records.codec import to_json
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.problem import Problem

WASTED_LIMIT = 6
UNREACHABLE_LIMIT = 3


class Proposing:
    """Expands nodes. A proposer that has nothing more to say marks its node exhausted."""

    def __init__(self, services: Services, attempts: Attempts) -> None:
        self._s = services
        self._attempts = attempts
        self._failures = 0

    def open_card(self, cs: CardSearch) -> None:
        """Queue the recipes' first drafts that no earlier run has tried."""
        if self._s.options.recipes:
            drafts = first_drafts(cs.card, self._s.options.threads)
            cs.waiting = [d for d in drafts if _digest(d) not in cs.digests]

    def can_start(self, cs: CardSearch) -> bool:
        """Whether a new root could still be made for the card."""
        return bool(cs.waiting) or self.llm_usable

    def silence(self, cs: CardSearch) -> str:
        """Why nobody has (anything more) to propose for the card, in words."""
        if cs.nodes:
            return "the proposers have nothing more to try"
        reasons = refusals(cs.card.key) if self._s.options.recipes else ["recipes are off"]
        recipe = reasons[0] if reasons else f"no recipe for {cs.card.key.base_op}"
        return f"{recipe}; {self._s.llm_stopped or 'no language model is set'}"

    @property
    def llm_usable(self) -> bool:
        return self._s.llm.enabled and not self._s.llm_stopped

    async def new_root(self, cs: CardSearch) -> Node | None:
        """A first draft: the next recipe start, else a call to the model."""
        if cs.waiting:
            return await self._attempts.develop(cs, cs.waiting.pop(0), "recipe", ())
        if self.llm_usable:
            return await self._ask_model(cs, None)
        return None

    async def expand(self, cs: CardSearch, node: Node) -> Node | None:
        """A child of a correct node: a recipe's mutation, or the model's next idea, by turns when both are there."""
        candidate = node.candidate
        recipe = self._s.options.recipes and candidate.proposer == "recipe" and not node.exhausted
        children = sum(1 for n in cs.nodes.values() if n.candidate.parent_id == candidate.candidate_id)
        if recipe and (not self.llm_usable or children % 2 == 0):
            draft = mutate(cs.card, candidate, self._s.options.threads, cs.rng, set(cs.digests))
            if draft is not None:
                return await self._attempts.develop(cs, draft, "recipe", (Parent(candidate.candidate_id),))
            node.exhausted = True
        if self.llm_usable:
            return await self._ask_model(cs, node)
        node.exhausted = True
        return None

    async def finish_reply(self, cs: CardSearch, request: LlmRequest, reply: LlmReply) -> Node | None:
        """Go on from a stored reply whose candidate was never made (after a kill)."""
        node = cs.nodes.get(request.node) if request.node else None
        return await self._from_reply(cs, node, request, reply, time.monotonic())

    async def send_again(self, cs: CardSearch, request: LlmRequest) -> Node | None:
        """Send a call that was lost in flight once more, under its open attempt."""
        node = cs.nodes.get(request.node) if request.node else None
        return await self._call(cs, node, replace(request, call_id=new_call_id()))

    async def _ask_model(self, cs: CardSearch, node: Node | None) -> Node | None:
        s, o = self._s, self._s.options
        language_name = node.candidate.language if node else ("cpp" if o.device == "cpu" else "cuda")
        problem = node.verdict.problem if node is not None and node.failed and node.verdict is not None else None
        context = Context(
            cs.card, language_name, language(language_name).header(cs.card.key), s.machine, o.threads,
            node.candidate if node else None, problem, node.best if node else None, _failures(cs, node),
        )  # fmt: skip
        request = request_for(
            new_call_id(), context, o.llm_model, o.llm_api_base, o.llm_temperature, o.llm_max_tokens, o.llm_timeout_s
        )
        attempt_id = f"propose-{secrets.token_hex(6)}"
        request = replace(request, attempt=attempt_id)
        await s.store.add_attempt(
            attempt_id, request.node, "propose", "started", detail={"purpose": request.purpose}, card_id=cs.card.card_id
        )
        return await self._call(cs, node, request)

    async def _call(self, cs: CardSearch, node: Node | None, request: LlmRequest) -> Node | None:
        s, started = self._s, time.monotonic()
        try:
            request, reply = await s.llm.complete(request)
        except BudgetSpent as spent:
            s.llm_stopped = str(spent)
            s.store.log("warn", f"the model is not asked any more: {spent}", cs.card.card_id)
            await s.store.add_attempt(
                request.attempt, request.node, "propose", "done", 0.0, {"refused": str(spent)}, cs.card.card_id
            )
            return None
        return await self._from_reply(cs, node, request, reply, started)

    async def _from_reply(
        self, cs: CardSearch, node: Node | None, request: LlmRequest, reply: LlmReply, started: float
    ) -> Node | None:
        s = self._s
        language_name = node.candidate.language if node else ("cpp" if s.options.device == "cpu" else "cuda")
        draft = draft_from(reply, request, language_name)
        if isinstance(draft, Problem):
            level = "info" if draft.blame == "candidate" else "warn"
            s.store.log(level, draft.line, cs.card.card_id, request.node)
            await s.store.add_attempt(
                request.attempt,
                request.node,
                "propose",
                "done",
                time.monotonic() - started,
                {"problem": to_json(draft)},
                cs.card.card_id,
            )
            if draft.blame != "candidate":
                self._unreachable(draft.line)
                return None
            self._wasted(cs)
            return None
        parents = (Parent(node.candidate.candidate_id),) if node is not None else ()
        attempt = node.candidate.attempt + 1 if node is not None and node.failed else 1
        made = await self._attempts.develop(cs, draft, "llm", parents, attempt)
        if made is None:
            self._wasted(cs)
        else:
            cs.wasted_in_a_row = 0
            self._failures = 0
        await s.store.add_attempt(
            request.attempt,
            request.node,
            "propose",
            "done",
            time.monotonic() - started,
            {"candidate": made.candidate.candidate_id if made else ""},
            cs.card.card_id,
        )
        if (
            made is not None
            and _repairable(made)
            and made.candidate.attempt <= s.options.repairs
            and self.llm_usable
            and not s.stopping
        ):
            return await self._ask_model(cs, made)
        return made

    def _unreachable(self, line: str) -> None:
        """A model that can't be reached is not asked any more; recipes and what was found so far go on."""
        self._failures += 1
        if self._failures >= UNREACHABLE_LIMIT and not self._s.llm_stopped:
            self._s.llm_stopped = f"the model could not be reached {self._failures} times"
            self._s.store.log("warn", f"{self._s.options.llm_model} is not asked any more: {line}")

    def _wasted(self, cs: CardSearch) -> None:
        """Count a reply that brought nothing new; a model that only repeats itself is not paid for ever."""
        cs.bad_replies += 1
        cs.wasted_in_a_row += 1
        if cs.wasted_in_a_row >= WASTED_LIMIT and not cs.done:
            cs.done = f"{cs.wasted_in_a_row} replies in a row held no new candidate"
            self._s.store.add_card_state(cs.card.card_id, "done", cs.done)
            self._s.store.log("warn", f"{cs.card.title}: done, {cs.done}", cs.card.card_id)


def _digest(draft: Draft) -> str:
    return Candidate("", "", draft.language, "", draft.source, draft.plan, "recipe").digest()


def _failures(cs: CardSearch, node: Node | None) -> tuple[str, ...]:
    """Failed approaches beside and below a node, one line each."""
    wanted = {node.candidate.candidate_id, node.candidate.parent_id} if node is not None else {None}
    lines = []
    for other in cs.nodes.values():
        if (
            other.failed
            and other.candidate.parent_id in wanted
            and other.verdict is not None
            and other.verdict.problem is not None
        ):
            lines.append(f"{other.candidate.technique or 'no description'}: {other.verdict.problem.line}")
    return tuple(lines)


def _repairable(node: Node) -> bool:
    """Failures that a second look at the error can mend; cheating and sandbox breaks are not repaired."""
    problem = node.verdict.problem if node.verdict is not None else None
    return (
        node.failed
        and problem is not None
        and problem.kind not in ("sandbox", "duplicate", "impossible time", "protocol")
    )
