"""The engine's side of the model process: the user's interpreter with the user's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forge_tui.engine.processes import Child, ProblemReply, boot_command, child_environment, raise_problem
from forge_tui.records.problem import HarnessProblem, UserInputError
from forge_tui.records.verdict import Measurement
from forge_tui.records.workload import Captured, Loaded, ModelVerdict, WorkloadSpec

Progress = Callable[[dict[str, Any]], None]
LOAD_S, CAPTURE_S, TEST_S = 900.0, 1800.0, 1800.0


class ModelClient:
    """One model process. Problems come out as UserInputError, MachineProblem or HarnessProblem."""

    def __init__(self, python: str, spec: WorkloadSpec, folder: str, on_output: Callable[[str, str], None]) -> None:
        self._python = python
        self._spec = spec
        self._folder = folder
        self._child = Child("model process", on_output)
        self.loaded: Loaded | None = None

    async def load(self, progress: Progress | None = None) -> Loaded:
        """Start the process and build the workload in it."""
        environment = child_environment(
            {"OMP_NUM_THREADS": str(self._spec.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        )
        await self._child.start(boot_command(self._python, "forge_tui.capture.process"), environment, cwd=self._folder)
        try:
            self.loaded = await self._ask("load", self._spec, Loaded, LOAD_S, progress)
        except HarnessProblem as problem:
            if self._child.alive:
                raise
            # Nothing but the user's code runs there during a load, and it took the process with it.
            raise UserInputError(
                f"{self._spec.source} ended its process while it was loaded or run once ({problem})"
            ) from None
        return self.loaded

    async def build_runtime(self) -> str:
        """Build the cast runtime's hook library for this torch, if it isn't cached; the tier it gives, or why not."""
        answer: dict[str, str] = await self._ask("build_runtime", None, dict, TEST_S, None)
        return answer["line"]

    async def capture(
        self, blob_dir: str, byte_budget: int, lock: str, other_cores: float | None, progress: Progress | None = None
    ) -> Captured:
        """Run the workload under capture; blobs land in `blob_dir`."""
        body = {
            "blob_dir": blob_dir, "byte_budget": byte_budget, "runs": 5, "machine_lock": lock, "other_cores": other_cores,
        }  # fmt: skip
        captured: Captured = await self._ask("capture", body, Captured, CAPTURE_S, progress)
        return captured

    async def test(
        self,
        cast: str,
        expected: dict[str, int],
        pairs: int,
        seconds: float,
        lock: str,
        other_cores: float | None,
        progress: Progress | None = None,
    ) -> ModelVerdict:
        """Whole-model accept test of a cast, interleaved with eager, under the machine lock."""
        body = {
            "cast": cast, "pairs": pairs, "seconds": seconds, "threads": self._spec.threads, "expected": expected,
            "machine_lock": lock, "other_cores": other_cores,
        }  # fmt: skip
        verdict: ModelVerdict = await self._ask("model_test", body, ModelVerdict, TEST_S, progress)
        return verdict

    async def compile_baseline(self, limit_s: float) -> Measurement:
        """torch.compile of the whole model; value None with the reason when there is none."""
        measurement: Measurement = await self._ask(
            "model_compile", {"limit_s": limit_s}, Measurement, limit_s + 120, None
        )
        return measurement

    @property
    def alive(self) -> bool:
        return self._child.alive

    async def close(self) -> None:
        await self._child.close()

    async def _ask(self, verb: str, body: Any, kind: type[Any], limit: float, progress: Progress | None) -> Any:
        try:
            return await self._child.request(verb, body, kind, limit, progress)
        except ProblemReply as reply:
            raise_problem(reply.problem)
