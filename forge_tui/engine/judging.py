"""The engine's side of the judge: start it, keep it healthy, replace it when it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from forge_tui.engine.processes import Child, ProblemReply, boot_command, child_environment, raise_problem
from forge_tui.records.card import Card
from forge_tui.records.judging import CardReady, CompileJob, JudgeHello, JudgeJob, JudgeSettings
from forge_tui.records.problem import BUSY, HarnessProblem, MachineBusy, MachineProblem, Problem
from forge_tui.records.verdict import Measurement, Verdict

START_S = 180.0  # import torch plus the first build of the native timing loop
CARD_S = 180.0


class JudgeClient:
    """One judge process. A judge that dies is replaced and the run in flight is void, tried once more."""

    def __init__(self, python: str, settings: JudgeSettings, on_output: Callable[[str, str], None]) -> None:
        self._python = python
        self._settings = settings
        self._on_output = on_output
        self._child = Child("judge", on_output)
        self._opened: dict[str, CardReady] = {}
        self.replaced = 0
        self.hello: JudgeHello | None = None

    async def start(self) -> JudgeHello:
        """Start the process and say hello. Raises HarnessProblem, MachineProblem or UserInputError."""
        self._child = Child("judge", self._on_output)
        self._opened = {}
        environment = child_environment({"OMP_NUM_THREADS": str(self._settings.threads)})
        await self._child.start(boot_command(self._python, "forge_tui.judge.process"), environment)
        try:
            self.hello = await self._child.request("hello", self._settings, JudgeHello, START_S)
        except ProblemReply as reply:
            raise_problem(reply.problem)
        assert self.hello is not None
        return self.hello

    async def open_card(self, card: Card, progress: Callable[[dict[str, Any]], None] | None = None) -> CardReady:
        """Test the card itself (nulls, A/A, floor). Cached for the life of the judge process."""
        if card.card_id not in self._opened:
            self._opened[card.card_id] = await self._ask("open_card", card, CardReady, CARD_S, progress)
        return self._opened[card.card_id]

    async def judge(
        self, card: Card, job: JudgeJob, progress: Callable[[dict[str, Any]], None] | None = None
    ) -> Verdict:
        """Judge one candidate. A judge failure gives a void verdict after one retry in a new judge, never a rejection."""
        limit = 6 * self._settings.time_limit_s + self._settings.confirm_seconds * 3 + 120
        last: Problem | None = None
        for _ in range(2):
            try:
                if not self._child.alive:
                    await self.start()
                await self.open_card(card)
                return await self._child.request("judge", job, Verdict, limit, progress)
            except ProblemReply as reply:
                last = reply.problem
                if last.blame == "machine":
                    break  # another judge would meet the same machine
            except MachineProblem as error:
                last = Problem("machine", BUSY if isinstance(error, MachineBusy) else "machine", str(error))
                break
            except HarnessProblem as error:
                last = Problem("harness", "judge", str(error))
            self.replaced += 1
            await self._child.kill()
        return Verdict(job.candidate.candidate_id, card.card_id, "compiled", "void", last, confirmation=job.confirm)

    async def compile_baseline(self, job: CompileJob) -> Measurement:
        """torch.compile's time for an opened card; value None with the reason when there is none."""
        measured: Measurement = await self._ask("compile_baseline", job, Measurement, job.limit_s + 60, None)
        return measured

    async def close(self) -> None:
        await self._child.close()

    async def _ask(
        self, verb: str, body: Any, kind: type[Any], limit: float, progress: Callable[[dict[str, Any]], None] | None
    ) -> Any:
        if not self._child.alive:
            await self.start()
        try:
            return await self._child.request(verb, body, kind, limit, progress)
        except ProblemReply as reply:
            raise_problem(reply.problem)
        except HarnessProblem:
            self.replaced += 1
            with contextlib.suppress(ProcessLookupError):
                await self._child.kill()
            raise
