"""The engine's side of the LLM process: started when first needed, budgeted, stored before use."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace

from forge_tui.engine.options import Options
from forge_tui.engine.processes import Child, ProblemReply
from forge_tui.llm.budget import Budget, Caps
from forge_tui.records.boot import boot_command
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.problem import HarnessProblem, UserInputError
from forge_tui.store.session import Session
from forge_tui.store.store import Store

RETRY_WAIT_S = (1.0, 4.0, 15.0)


class BudgetSpent(Exception):
    """A cap would be passed; the message says which."""


def new_call_id() -> str:
    """A name that no earlier run of the session can have used."""
    return "call-" + secrets.token_hex(6)


class LlmClient:
    """Calls to one model. Every request row is committed before it is sent, every reply row before it is returned."""

    def __init__(
        self,
        session: Session,
        store: Store,
        options: Options,
        on_output: Callable[[str, str], None],
        earlier: Iterable[tuple[LlmRequest, LlmReply | None]] = (),
    ) -> None:
        self._session = session
        self._store = store
        self._options = options
        self._child = Child("LLM process", on_output)
        self._starting = asyncio.Lock()
        self._slots = asyncio.Semaphore(max(1, options.llm_parallel))
        self.budget = Budget(
            Caps(options.dollars, options.tokens, options.calls), _pair(options.price_in, options.price_out)
        )
        for request, reply in earlier:
            self.budget.hold(request)
            self.budget.settle(reply or LlmReply(request.call_id, "lost"))

    @property
    def enabled(self) -> bool:
        return bool(self._options.llm_model)

    async def check(self) -> None:
        """Refuse settings that could never pay for a call. Raises UserInputError before any money is spent."""
        await self._start()
        if self.budget.price is None:
            answer = await self._child.request("price", {"model": self._options.llm_model}, dict, 60)
            self.budget.price = _pair(answer.get("input"), answer.get("output"))
        probe = LlmRequest("probe", "", "probe", self._options.llm_model, (), "", None, 0)
        if self.budget.caps.dollars is not None and self.budget.price is None:
            raise UserInputError(self.budget.refusal(probe))

    async def complete(self, request: LlmRequest) -> tuple[LlmRequest, LlmReply]:
        """Send a call, retrying what may pass; each try is a stored call of its own. Returns the last try.

        Raises BudgetSpent when a cap would be passed.
        """
        async with self._slots:
            for wait in RETRY_WAIT_S:
                reply = await self._once(request)
                if reply.state == "replied" or not reply.retryable:
                    return request, reply
                self._store.log("warn", f"model call failed, again in {wait:.0f} s: {reply.line}", request.card_id)
                await asyncio.sleep(wait)
                request = replace(request, call_id=new_call_id())
            return request, await self._once(request)

    async def _once(self, request: LlmRequest) -> LlmReply:
        refusal = self.budget.refusal(request)
        if refusal:
            raise BudgetSpent(refusal)
        self.budget.hold(request)
        await self._store.add_llm_request(request)
        try:
            await self._start()
            reply = await self._child.request("complete", request, LlmReply, request.timeout_s + 60)
        except (HarnessProblem, ProblemReply) as error:
            reply = LlmReply(request.call_id, "failed", line=f"LLM process: {error}", retryable=True)
        self.budget.settle(reply)
        await self._store.add_llm_reply(reply)
        return reply

    async def _start(self) -> None:
        async with self._starting:
            if self._child.alive:
                return
            prices = {self._options.llm_model: list(self.budget.price)} if self.budget.price else {}
            await self._child.start(boot_command(sys.executable, "forge_tui.llm.process"), dict(os.environ))
            await self._child.request("hello", {"spool": str(self._session.spool), "prices": prices}, dict, 120)

    async def close(self) -> None:
        await self._child.close()


def _pair(price_in: float | None, price_out: float | None) -> tuple[float, float] | None:
    return (price_in, price_out) if price_in is not None and price_out is not None else None
