"""One run of one session: capture, search, finish; started fresh or resumed, always from what is stored."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from forge_tui.engine.cardstate import CardSearch, Node
from forge_tui.engine.compiling import CompilePool
from forge_tui.engine.finish import build_cast, champions, expected_calls
from forge_tui.engine.gate import MachineGate
from forge_tui.engine.history import History
from forge_tui.engine.judging import JudgeClient
from forge_tui.engine.llm_client import LlmClient
from forge_tui.engine.loop import SearchLoop
from forge_tui.engine.model import ModelClient
from forge_tui.engine.options import options_from, parameters_from
from forge_tui.engine.recovery import Recovered, recover
from forge_tui.engine.services import Services
from forge_tui.records.card import Card
from forge_tui.records.codec import to_json
from forge_tui.records.judging import CompileJob, JudgeSettings
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.verdict import Measurement
from forge_tui.records.workload import Captured, Loaded, ModelVerdict, WorkloadSpec
from forge_tui.settings.schema import Settings
from forge_tui.store.session import Session
from forge_tui.store.store import Store

PACKAGE = Path(__file__).resolve().parent.parent


class Run:
    """Owns a session while it works on it. `go` runs all phases; `close` lets go of everything."""

    def __init__(self, session: Session, spec: WorkloadSpec, settings: Settings) -> None:
        self.session = session
        self.spec = spec
        self.settings = settings
        self.options = options = options_from(settings)
        self.loaded: Loaded | None = None
        self.verdict: ModelVerdict | None = None
        self.cast_path: Path | None = None
        self.recovered: Recovered | None = None
        self.phase = "starting"
        store = Store.open(session)
        gate = MachineGate(exclusive_needed=options.device == "cpu")
        self.services = Services(
            session, store, options, gate, CompilePool(session.work, gate, max(1, (os.cpu_count() or 2))),
            JudgeClient(options.python, self._judge_settings(), self._child_said), LlmClient(session, store, options, self._child_said),
        )  # fmt: skip
        self.services.going.set()
        self.loop = SearchLoop(self.services, parameters_from(settings))
        self._model: ModelClient | None = None

    @property
    def store(self) -> Store:
        return self.services.store

    async def go(self) -> None:
        """Capture if needed, search, finish. Raises UserInputError, MachineProblem or HarnessProblem when a phase can't work."""
        try:
            captured = await self._begin()
            await self._search(captured)
            await self._finish(captured)
        except (UserInputError, MachineProblem, HarnessProblem) as error:
            self.store.log("bad", str(error))
            await self.store.add_run_event("ended", line=str(error))
            raise

    async def close(self) -> None:
        """Stop the children and write what is queued. Safe after any failure."""
        await self.loop.cancel()
        for child in (self.services.judge, self.services.llm, self._model):
            if child is not None:
                with contextlib.suppress(HarnessProblem, MachineProblem):
                    await child.close()
        await asyncio.to_thread(self.store.close)

    def stop(self, reason: str = "stopped by the user") -> None:
        """Begin no new work; what is in flight is finished, then the run finishes with what it has."""
        self.services.stopping = self.services.stopping or reason
        self.services.going.set()
        self.services.changed.set()

    async def export(self, path: Path) -> int:
        """Write the present champions into a cast. Returns how many.

        Raises UserInputError when there is none, and when the last whole-model test found wrong outputs.
        """
        if self.verdict is not None and self.verdict.outputs_ok is False:
            raise UserInputError(
                "the whole-model test found wrong outputs with these champions; prune the culprit and run again"
            )
        manifest = await asyncio.to_thread(build_cast, self.services, self.loaded, path, self.verdict)
        return len(manifest.entries)

    async def prepare(self) -> Captured | None:
        """Close what an earlier owner left open and rebuild the run's state from facts. The capture, if there is one."""
        self.recovered = await asyncio.to_thread(recover, self.session, self.store)
        history = History(self.session.database)
        try:
            captured, self.loaded = history.captured(), history.loaded()
            self._rebuild(history)
            self.loop.spent_s = history.seconds_spent()
            self.services.llm = LlmClient(self.session, self.store, self.options, self._child_said, history.calls())
        finally:
            history.close()
        if self.loaded is not None:
            self.services.environment = {"torch": (self.loaded.versions or {}).get("torch", "unknown")}
        return captured

    async def _begin(self) -> Captured:
        captured = await self.prepare()
        await self.store.add_run_event("started" if captured is None else "resumed", to_json(self.settings.flat()))
        for line in (self.store.taken_over, self.recovered.line if self.recovered else ""):
            if line:
                self.store.log("info", f"resumed: {line}")
        return captured if captured is not None else await self._capture()

    def _rebuild(self, history: History) -> None:
        """Card states from facts alone."""
        ready, binaries = history.ready(), history.binaries()
        pruned, pinned = history.last_of("prune", "unprune"), history.last_of("pin", "unpin")
        budgets = history.notes("budget")
        for card in history.cards():
            self._add_card(card)
            cs = self.services.cards.get(card.card_id)
            if cs is not None:
                cs.ready = ready.get(card.card_id)
                cs.budget = int((budgets.get(card.card_id) or {}).get("attempts", cs.budget))
        for candidate in history.candidates():
            cs = self.services.cards.get(candidate.card_id)
            if cs is None:
                continue
            name = candidate.candidate_id
            binary = binaries.get(name)
            usable = binary is not None and self.store.blobs.has(binary.blob)
            cs.nodes[name] = Node(
                candidate, pruned=name in pruned, pinned=name in pinned, binary=binary if usable else None
            )
            cs.digests.add(candidate.digest())
        for verdict in history.verdicts():
            cs = self.services.cards.get(verdict.card_id)
            node = cs.nodes.get(verdict.candidate_id) if cs else None
            if node is None or verdict.outcome == "void":
                continue
            if verdict.confirmation:
                node.confirmation = verdict
            else:
                node.verdict = verdict

    def _add_card(self, card: Card) -> None:
        if card.state != "open":
            return
        seed = f"{self.options.seed} {card.card_id}"
        self.services.cards[card.card_id] = CardSearch(card, budget=self.options.attempts, rng=random.Random(seed))

    async def _model_process(self) -> ModelClient:
        """The model process with the workload loaded, started when first needed."""
        if self._model is None or not self._model.alive:
            self._model = ModelClient(self.options.python, self.spec, str(Path.cwd()), self._child_said)
            self.loaded = await self._model.load(lambda p: self._progress("load", p))
            await self.store.add_loaded(self.loaded)
        return self._model

    async def _capture(self) -> Captured:
        self.phase = "loading the model"
        self.store.log("info", f"loading {self.spec.source}")
        model = await self._model_process()
        self.phase = "capturing"
        captured = await model.capture(
            str(self.session.blobs), self.options.capture_bytes, self._lock, self.options.other_cores,
            lambda p: self._progress("capture", p),
        )  # fmt: skip
        await self.store.add_captured(captured)
        await self.store.add_measurement(Measurement("model eager", "model", captured.total_us / 1e3, "ms"))
        for note in captured.notes:
            self.store.log("warn", note)
        for card in captured.cards:
            self._add_card(card)
        refused = sum(1 for c in captured.cards if c.state != "open")
        self.store.log(
            "good",
            f"captured {captured.calls} calls: {len(captured.cards) - refused} cards, {refused} refused, {captured.total_us / 1e3:.2f} ms eager",
        )
        return captured

    async def _search(self, captured: Captured) -> None:
        self.phase = "starting the judge"
        if not self.services.cards:
            seen = ", ".join(sorted({n.op for n in captured.not_seen})[:8])
            raise UserInputError(f"no operator of this model can be optimised (seen: {seen or 'none'})")
        if self._model is not None:
            line = await self._model.build_runtime()
            self.store.log("info", f"dispatch of the cast: {line}")
            await self._model.close()  # its memory and threads would be measured with everything else
            self._model = None
        if self.services.llm.enabled:
            await self.services.llm.check()
        hello = await self.services.judge.start()
        self.services.environment = {"torch": hello.torch, "device": hello.device}
        self.services.machine = f"{hello.device}, {self.options.threads} threads"
        await self.store.add_note("profile", "", hello.profile)
        self.store.log(
            "info",
            f"judge ready: torch {hello.torch} on {hello.device}, sandbox {hello.profile.get('name', 'unknown')}, timing loop {hello.native}",
        )
        self.phase = "searching"
        await self.loop.run(self.recovered)

    async def _finish(self, captured: Captured) -> None:
        self.phase = "finishing"
        if self.services.stopping.startswith("now"):
            return
        if not champions(self.services):
            self.store.log("info", "no champion: nothing was confirmed faster than eager")
            await self.store.add_run_event("ended", line="no champion")
            self.phase = "finished"
            return
        self.phase = "testing the whole model"
        await self.services.judge.close()  # its workers' memory and threads would be measured with the model
        path = self.session.path / f"{self.session.name}.cast"
        await self.export(path)
        model = await self._model_process()
        self.verdict = await model.test(
            str(path),
            expected_calls(self.services),
            self.options.model_pairs,
            self.options.model_seconds,
            self._lock,
            self.options.other_cores,
            lambda p: self._progress("model test", p),
        )
        await self._tell(self.verdict, path)
        if self.options.compile_baseline:
            self.phase = "timing torch.compile"
            measured = await model.compile_baseline(self.options.compile_limit_s)
            await self.store.add_measurement(measured)
            self.verdict = replace(self.verdict, compile_ms=measured.value, compile_line=measured.line)
            await self._tell(self.verdict, path)
        await model.close()
        self._model = None
        if self.options.compile_cards:
            for cs, _ in champions(self.services):
                await self._compile_baseline(cs)
        await self.store.add_run_event("ended", line="finished")
        self.phase = "finished"

    async def _tell(self, verdict: ModelVerdict, path: Path) -> None:
        """Store the whole-model verdict, and write it into the cast."""
        await self.store.add_model_verdict(verdict)
        if verdict.outputs_ok is False:
            await asyncio.to_thread(path.unlink, True)
            self.store.log(
                "warn", f"the model's outputs are WRONG with these champions, so nothing is shipped: {verdict.line}"
            )
            return
        await self.export(path)
        self.cast_path = path
        timing = verdict.timing
        text = f"{timing.speedup:.3f}x [{timing.low:.3f}, {timing.high:.3f}]" if timing else "time unknown"
        compiled = f"; torch.compile {verdict.compile_ms:.2f} ms" if verdict.compile_ms is not None else ""
        self.store.log(
            "good" if verdict.proven else "info",
            f"whole model with the cast: {text}, {verdict.hits} of {verdict.calls} matching calls served{compiled}",
        )

    async def _compile_baseline(self, cs: CardSearch) -> None:
        known = [m for m in self.store.reader.measurements(cs.card.card_id) if m.kind == "compile"]
        if known:
            return
        try:
            async with self.services.gate.exclusive():
                await self.services.judge.open_card(cs.card)
                measured = await self.services.judge.compile_baseline(
                    CompileJob(cs.card.card_id, self.options.compile_limit_s)
                )
        except (HarnessProblem, MachineProblem, UserInputError) as error:
            measured = Measurement("compile", cs.card.card_id, None, "us", str(error))
        await self.store.add_measurement(measured)

    @property
    def _lock(self) -> str:
        """One lock per user and machine for everything that is timed."""
        return str(Path(tempfile.gettempdir()) / f"forge_tui-{os.getuid()}-timing.lock")

    def _judge_settings(self) -> JudgeSettings:
        o = self.options
        return JudgeSettings(
            blob_dir=str(self.session.blobs),
            scratch_dir=str(self.session.work),
            worker_python=sys.executable,
            package_dir=str(PACKAGE),
            device=o.device,
            threads=o.threads,
            search_pairs=o.search_pairs,
            confirm_pairs=o.confirm_pairs,
            confirm_seconds=o.confirm_seconds,
            time_limit_s=o.time_limit_s,
            trust_host_code=o.trust_host_code,
            machine_lock=self._lock,
            other_cores=o.other_cores,
        )

    def _child_said(self, name: str, line: str) -> None:
        if line:
            self.store.log("debug", f"{name}: {line}")

    def _progress(self, what: str, fields: dict[str, object]) -> None:
        text = ", ".join(f"{k} {v}" for k, v in fields.items())
        self.store.log("debug", f"{what}: {text}")
