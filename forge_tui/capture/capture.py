"""`capture`: from a workload to cards.

Plain runs give the model's time and its reference outputs; pass 1 gives order, counts, self times, module paths and
keys; families are folded; pass 2 saves the inputs of chosen calls. Times are medians over several runs; the model's
time is never taken with the recorder on. A share is a card's self time over the uninstrumented time of the model.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from forge_tui.capture.blobs import BlobWriter
from forge_tui.capture.cards import Plan, cards_of, choose_samples, plan_cards
from forge_tui.capture.recorder import Group, Recorder
from forge_tui.records.problem import UserInputError
from forge_tui.records.workload import Captured, NotSeen
from forge_tui.workload.importing import guarded
from forge_tui.workload.workload import Workload, tensors_in

ENOUGH_S = 0.5  # plain runs go on until this much time is sampled or MOST_RUNS are done
MOST_RUNS = 30
MOST_CARDS = (
    200  # a decode loop adds hundreds of tiny variants (a position as a number argument); the list stays readable
)
LONG_RUN_S = 5.0  # a run longer than this is timed twice, not `runs` times
Progress = Callable[..., None]


def silent(**fields: Any) -> None:
    """A progress callback that tells nobody."""


@dataclass(frozen=True)
class Plain:
    """Runs without the recorder. seconds: of each whole run; outputs: of the first; repeatable: the second was bit-equal."""

    seconds: tuple[float, ...]
    outputs: list[torch.Tensor]
    repeatable: bool


def capture(
    workload: Workload, blob_dir: Path, byte_budget: int, runs: int = 5, progress: Progress = silent
) -> Captured:
    """Record one run of the workload (every input set once).

    byte_budget: bytes of captured inputs on disk; beyond it a tensor keeps its statistics only. runs: timed runs.
    Raises UserInputError when the model fails or calls no operator that could be replaced.
    """
    progress(stage="timing the model", done=0, total=4)
    plain = plain_runs(workload, runs)
    progress(stage="watching operators", done=1, total=4)
    recorder = Recorder(workload)
    outputs = _pass_one(workload, recorder, runs, statistics.median(plain.seconds), progress)
    equal = same_outputs(plain.outputs, outputs) if plain.repeatable else None
    calls = recorder.calls
    total_us = statistics.median(plain.seconds) * 1e6
    times, scale = self_times(recorder.groups, total_us)
    plans = plan_cards(recorder.groups, times)
    plans, negligible = plans[:MOST_CARDS], plans[MOST_CARDS:]
    for plan in negligible:
        for number in plan.groups:
            recorder.groups[number].key = None
            recorder.groups[number].unseen = f"negligible: not among the {MOST_CARDS} variants that take most time"
    if not any(not plan.refused for plan in plans):
        raise UserInputError(f"{workload.name}: no operator to optimise; {_what_was_seen(recorder.groups)}")
    progress(stage="saving inputs", done=2, total=4)
    writer = BlobWriter(blob_dir, byte_budget)
    wanted = choose_samples(plans, recorder.groups, byte_budget)
    with guarded("the model while its inputs were saved"):
        outputs = _cloned(recorder.run(workload.run_all, writer, frozenset(wanted)))
    if equal is not None:
        equal = equal and same_outputs(plain.outputs, outputs)
    plans = [replace(p, refused=p.refused or recorder.groups[p.groups[0]].refused) for p in plans]
    progress(stage="building cards", done=3, total=4)
    cards = cards_of(plans, recorder, times, total_us, bool(workload.synthetic))
    unseen = _not_seen(recorder.groups, times, total_us)
    inside = sum(times.values())
    notes = [*workload.notes, *_notes(workload, recorder, plain, equal, inside / total_us if total_us else 0.0, scale)]
    if not all(
        sample.tensors and all(t.blob or not t.nbytes for t in sample.tensors) for c in cards for sample in c.samples
    ):
        notes.append(f"some inputs did not fit the budget of {byte_budget >> 20} MiB and are kept as statistics only")
    return Captured(tuple(cards), tuple(unseen), total_us, calls, writer.stored, equal, tuple(notes))


def plain_runs(workload: Workload, runs: int) -> Plain:
    """Time the workload without the recorder; two warm-up runs give the reference outputs."""
    with guarded("the model"):
        first, second = _cloned(workload.run_all()), _cloned(workload.run_all())
        seconds: list[float] = []
        while len(seconds) < MOST_RUNS and (len(seconds) < runs or sum(seconds) < ENOUGH_S):
            seconds.append(timed_run(workload))
            if len(seconds) >= 2 and seconds[-1] > LONG_RUN_S:
                break
    return Plain(tuple(seconds), first, same_outputs(first, second))


def timed_run(workload: Workload) -> float:
    """Seconds of one run of every input set, the preparation of inputs excluded."""
    total = 0.0
    for index in range(len(workload.inputs)):
        inputs = workload.prepare(index)
        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        result = workload.call_on(inputs)
        if on_gpu:
            torch.cuda.synchronize()
        total += time.perf_counter() - start
        del result
    return total


def same_outputs(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Bit for bit: sizes, dtypes and bytes."""
    if len(a) != len(b):
        return False
    return all(
        x.shape == y.shape and x.dtype == y.dtype and bool(torch.equal(_bytes(x), _bytes(y)))
        for x, y in zip(a, b, strict=True)
    )


def self_times(groups: list[Group], total_us: float) -> tuple[dict[int, float], float]:
    """Microseconds per run inside each group's operators, the recorder's own cost taken off, and the factor applied.

    The timed section holds a Python call that the model did not make; its cost is measured on a trivial operator.
    Sums above the model's own time are scaled down to it: shares are shares.
    """
    cost = call_overhead_us()
    times = {}
    for group in groups:
        raw = group.seconds * 1e6
        times[group.number] = max(raw - cost * group.calls, 0.1 * raw)
    total = sum(times.values())
    scale = min(1.0, total_us / total) if total else 1.0
    return {number: value * scale for number, value in times.items()}, scale


def call_overhead_us(repeats: int = 300) -> float:
    """What calling an operator by its overload object costs above the ordinary call, in microseconds (best of many)."""
    x = torch.zeros(8, dtype=torch.float32)
    overload = torch.ops.aten.relu.default
    best = [float("inf"), float("inf")]
    with torch.no_grad():
        for _ in range(repeats):
            start = time.perf_counter()
            overload(x)
            middle = time.perf_counter()
            torch.relu(x)
            end = time.perf_counter()
            best = [min(best[0], middle - start), min(best[1], end - middle)]
    return max(0.0, (best[0] - best[1]) * 1e6)


def _pass_one(
    workload: Workload, recorder: Recorder, runs: int, expected_s: float, progress: Progress
) -> list[torch.Tensor]:
    count = max(1, runs if expected_s < LONG_RUN_S else 1)
    outputs: list[torch.Tensor] = []
    with guarded("the model while it was watched"):
        for number in range(count + 1):
            outputs = _cloned(recorder.run(workload.run_all))
            if number == 0 and count > 1:  # the first run fills caches and reads schemas
                for group in recorder.groups:
                    group.times.clear()
            elif number and count == 1:
                break
            progress(stage="watching operators", done=1, total=4, run=number, runs=count)
    return outputs


def _cloned(results: list[Any]) -> list[torch.Tensor]:
    """Copies of a run's tensors: the next run may write into the same memory."""
    return [t.detach().clone() for result in results for t in tensors_in(result)]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor.to_dense() if not tensor.is_quantized else tensor.int_repr()
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


def _not_seen(groups: list[Group], times: dict[int, float], total_us: float) -> list[NotSeen]:
    calls: Counter[tuple[str, str]] = Counter()
    spent: dict[tuple[str, str], float] = {}
    for group in groups:
        if group.key is None:
            name = (group.operator, group.unseen)
            calls[name] += group.calls
            spent[name] = spent.get(name, 0.0) + times[group.number]
    return [
        NotSeen(op, count, reason, spent[op, reason] / total_us if total_us else None)
        for (op, reason), count in sorted(calls.items(), key=lambda item: -spent[item[0]])
    ]


def _what_was_seen(groups: list[Group]) -> str:
    reasons: Counter[str] = Counter()
    example: dict[str, str] = {}
    for group in groups:
        reason = group.unseen or group.refused
        reasons[reason] += max(1, group.calls)
        example.setdefault(reason, group.operator)
    if not reasons:
        return "nothing reached torch's dispatcher on this thread (compiled, scripted elsewhere, or not torch)"
    parts = [f"{count} x {reason} (such as {example[reason]})" for reason, count in reasons.most_common(4)]
    return f"seen were {'; '.join(parts)}"


def _notes(
    workload: Workload, recorder: Recorder, plain: Plain, equal: bool | None, inside: float, scale: float
) -> list[str]:
    notes = []
    if not plain.repeatable:
        notes.append("two plain runs of the model differ, so it can't be checked that capture leaves it unchanged")
    elif equal is False:
        notes.append("the model's outputs differ under capture; its numbers are not to be trusted")
    if recorder.other_threads:
        notes.append(f"operators of {recorder.other_threads} thread(s) started by the model are not seen")
    compiled = [
        name for root, m in workload.modules.items() for name, part in m.named_modules(prefix=root)
        if type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
    ]  # fmt: skip
    if compiled:
        notes.append(f"module {compiled[0] or 'model'} is compiled by torch.compile; operators inside it are not seen")
    if scale < 1.0:
        notes.append(
            "operators took longer under capture than the whole model without; shares are scaled to the model's time"
        )
    elif inside < 0.9:
        notes.append(f"{1 - inside:.0%} of the model's time lies outside of operators (Python and dispatch)")
    return notes


__all__ = ["Plan", "capture", "plain_runs", "same_outputs", "timed_run"]
