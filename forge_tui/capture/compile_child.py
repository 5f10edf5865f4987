"""A process of its own that times torch.compile of the whole workload against eager, so that a limit really holds.

It builds the workload twice: one copy is compiled in place (default mode), the other stays eager; the model process's
own copy is never touched.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from forge_tui.capture.capture import timed_run
from forge_tui.records.codec import from_json
from forge_tui.records.serving import Progress, serve
from forge_tui.records.workload import WorkloadSpec
from forge_tui.workload.importing import told
from forge_tui.workload.load import load
from forge_tui.workload.workload import Workload, tensors_in

MOST_PAIRS, FEWEST_PAIRS, TIMED_S = 60, 10, 8.0


def measure(body: Any, progress: Progress) -> dict[str, Any]:
    """{"spec": WorkloadSpec} -> {"eager_ms": [...], "compiled_ms": [...], "compile_s": x, "worst": y} or {"line": why}."""
    spec = from_json(WorkloadSpec, body["spec"])
    eager, compiled = load(spec), load(spec)
    compiled.fresh = eager.fresh
    for module in compiled.modules.values():
        module.compile()
    start = time.perf_counter()
    try:
        outputs = compiled.run_all()
        for _ in range(2):
            compiled.run_all()
    except Exception as error:  # noqa: BLE001 - the compiler may raise anything; all of it means "no number"
        return {"line": f"torch.compile failed: {_reason(error)}"}
    compile_s = time.perf_counter() - start
    graphs, breaks = compiled_graphs()
    if graphs == 0:
        return {"line": "torch.compile compiled nothing of this model and left it to eager"}
    progress(stage="compiled", seconds=compile_s)
    torch.set_num_threads(spec.threads)
    worst = _worst(eager.run_all(), outputs)
    pairs = _pairs(eager, compiled)
    return {
        "eager_ms": [a * 1e3 for a, _ in pairs],
        "compiled_ms": [b * 1e3 for _, b in pairs],
        "compile_s": compile_s,
        "worst": worst,
        "graphs": graphs,
        "graph_breaks": breaks,
    }


def compiled_graphs() -> tuple[int | None, int | None]:
    """Graphs compiled and graph breaks so far in this process; None where this torch keeps no such counters."""
    try:
        from torch._dynamo.utils import counters
    except ImportError:
        return None, None
    return int(counters["stats"]["unique_graphs"]), sum(int(n) for n in counters["graph_break"].values())


def _pairs(eager: Workload, compiled: Workload) -> list[tuple[float, float]]:
    """Alternating (eager, compiled) seconds; the order within a pair changes every time."""
    pairs: list[tuple[float, float]] = []
    start = time.perf_counter()
    while len(pairs) < MOST_PAIRS and (len(pairs) < FEWEST_PAIRS or time.perf_counter() - start < TIMED_S):
        if len(pairs) % 2:
            b = timed_run(compiled)
            a = timed_run(eager)
        else:
            a = timed_run(eager)
            b = timed_run(compiled)
        pairs.append((a, b))
    return pairs


def _worst(eager: list[Any], compiled: list[Any]) -> float | None:
    """Largest difference over the largest eager value; None when the outputs can't be compared."""
    a, b = tensors_in(eager), tensors_in(compiled)
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return None
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x.numel():
            difference = (x.double() - y.double()).abs().nan_to_num(0.0).max().item()
            worst = max(worst, difference / max(x.double().abs().nan_to_num(0.0).max().item(), 1e-30))
    return worst


def _reason(error: BaseException) -> str:
    cause = error.__cause__ or getattr(error, "inner_exception", None) or error
    text = told(cause)
    return text if len(text) <= 240 else text[:237] + "..."


if __name__ == "__main__":
    serve({"measure": measure})
