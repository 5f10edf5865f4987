"""The model process: `python -m forge_tui.capture.process`. Holds the user's workload; speaks frames on FORGE_FD.

Verbs: "load" WorkloadSpec -> Loaded; "capture" {blob_dir, byte_budget, runs, machine_lock, other_cores} -> Captured; "model_test" {cast, pairs,
seconds, threads, expected, machine_lock, other_cores} -> ModelVerdict; "model_compile" {limit_s} -> Measurement; "health" {} -> {"ok": true}.
The model may print: stdout is never a frame.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from forge_tui.capture.capture import capture
from forge_tui.capture.compiling import compile_baseline
from forge_tui.machine.hold import hold
from forge_tui.records.codec import from_json
from forge_tui.records.problem import HarnessProblem
from forge_tui.records.serving import Progress, serve
from forge_tui.records.verdict import Measurement
from forge_tui.records.workload import Captured, Loaded, ModelVerdict, WorkloadSpec
from forge_tui.workload.load import load, loaded_record
from forge_tui.workload.workload import Workload

DEFAULT_BUDGET = 1 << 30  # bytes of captured inputs
DEFAULT_RUNS = 5
TEST_TRIES = 2  # a neighbour may have been busy only the first time


class ModelProcess:
    """The handlers and the one workload they share."""

    def __init__(self) -> None:
        self._spec: WorkloadSpec | None = None
        self._workload: Workload | None = None

    def load(self, body: Any, progress: Progress) -> Loaded:
        """Build the workload and run it once."""
        spec = from_json(WorkloadSpec, body)
        progress(stage="building the model")
        self._workload, self._spec = None, None
        self._workload = load(spec)
        self._spec = spec
        return loaded_record(self._workload)

    def capture(self, body: Any, progress: Progress) -> Captured:
        """Record the workload's operators."""
        spec, workload = self._ready()
        torch.set_num_threads(spec.threads)
        limit = body.get("other_cores")
        lock = Path(str(body.get("machine_lock") or Path(str(body["blob_dir"])) / ".timing.lock"))
        for _ in range(TEST_TRIES):
            with hold(lock, None if limit is None else float(limit)) as held:
                captured = capture(
                    workload,
                    Path(str(body["blob_dir"])),
                    int(body.get("byte_budget", DEFAULT_BUDGET)),
                    int(body.get("runs", DEFAULT_RUNS)),
                    progress,
                )
                if held.quiet():
                    return captured
        busy = "other processes kept the machine busy during the capture: times and shares are unreliable"
        return replace(captured, notes=(*captured.notes, busy))

    def model_test(self, body: Any, progress: Progress) -> ModelVerdict:
        """Whole-model accept test of a cast, interleaved with eager."""
        from forge_tui.cast.accept import accept_test

        spec, workload = self._ready()
        progress(stage="testing the model with the cast")
        expected = {str(card): int(calls) for card, calls in dict(body["expected"]).items()}
        limit = body.get("other_cores")
        for attempt in range(TEST_TRIES):
            with hold(Path(str(body["machine_lock"])), None if limit is None else float(limit)) as held:
                verdict: ModelVerdict = accept_test(
                    workload.run_all,
                    workload.modules,
                    Path(str(body["cast"])),
                    expected,
                    pairs=int(body["pairs"]),
                    seconds=float(body["seconds"]),
                    threads=int(body.get("threads", spec.threads)),
                    progress=lambda line: progress(stage=line),
                )
                if held.quiet() or attempt == TEST_TRIES - 1:
                    others = held.insist()
                    break
        timing = verdict.timing and replace(verdict.timing, other_cores=others)
        return replace(verdict, timing=timing)

    def model_compile(self, body: Any, progress: Progress) -> Measurement:
        """torch.compile of the whole workload beside eager, in a process of its own."""
        spec, workload = self._ready()
        progress(stage="torch.compile of the model")
        return compile_baseline(spec, workload.name, float(body["limit_s"]))

    def build_runtime(self, body: Any, progress: Progress) -> dict[str, str]:
        """Build the dispatch hooks now, while nothing is timed, so that the first install does not wait for a compiler."""
        from forge_tui.cast.native import build

        built = build()
        return {"line": built if isinstance(built, str) else "C++ hooks"}

    def health(self, body: Any, progress: Progress) -> dict[str, Any]:
        """Answers while the process can still run an operator."""
        return {"ok": bool(torch.ones(2, dtype=torch.float32).sum().item() == 2.0)}

    def _ready(self) -> tuple[WorkloadSpec, Workload]:
        if self._workload is None or self._spec is None:
            raise HarnessProblem("no workload is loaded in the model process")
        return self._spec, self._workload


def main() -> None:
    """Serve until the parent closes the socket."""
    process = ModelProcess()
    serve(
        {
            "load": process.load,
            "capture": process.capture,
            "model_test": process.model_test,
            "model_compile": process.model_compile,
            "build_runtime": process.build_runtime,
            "health": process.health,
        }
    )


if __name__ == "__main__":
    main()
