"""The engine's side of the LLM process: started when first needed, budgeted, stored before use."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

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


class LlmClient:
    """Calls to one model. Every request row is committed before it is sent, every reply row before it is returned."""

    def __init__(self, session: Session, store: Store, options: Options, on_output: Callable[[str, str], None]) -> None:
        self._session = session
        self._store = store
        self._options = options
        self._child = Child("LLM process", on_output)
        self._starting = asyncio.Lock()
        self._slots = asyncio.Semaphore(options.llm_parallel)
        price = (options.price_in, options.price_out)
        self.budget = Budget(Caps(options.dollars, options.tokens, options.calls), _pair(price))
        for reply in store.llm_replies():
            self.budget.settle(reply)

    @property
    def enabled(self) -> bool:
        return bool(self._options.llm_model)

    async def check(self) -> None:
        """Refuse settings that could never pay for a call. Raises UserInputError before any money is spent."""
        await self._start()
        if self.budget.price is None:
            answer = await self._child.request("price", {"model": self._options.llm_model}, dict, 60)
            self.budget.price = _pair((answer.get("input"), answer.get("output")))
        probe = LlmRequest("probe", "", "probe", self._options.llm_model, (), "", None, 1)
        if self.budget.caps.dollars is not None and self.budget.price is None:
            raise UserInputError(self.budget.refusal(probe))

    async def complete(self, request: LlmRequest) -> LlmReply:
        """Send a call, retrying what may pass; each try is a stored call of its own.

        Raises BudgetSpent, and HarnessProblem when the process fails twice.
        """
        async with self._slots:
            for wait in (*RETRY_WAIT_S, None):
                reply = await self._once(request)
                if reply.state == "replied" or not reply.retryable or wait is None:
                    return reply
                self._store.log("warn", f"call failed, again in {wait:.0f} s: {reply.line}", request.card_id)
                await asyncio.sleep(wait)
                request = self._store.renamed_request(request)
        raise HarnessProblem("unreachable")  # the loop above returns

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


def _pair(price: tuple[float | None, float | None]) -> tuple[float, float] | None:
    return (price[0], price[1]) if price[0] is not None and price[1] is not None else None
