"""The correctness run: every secret trial, twice, under two poisons, in the judge's own buffers.

Invariants: the candidate never sees an expected value; each run is followed by the red zones, the input images and a
quiet channel before any number is looked at; a result that depends on what memory held before the call is refused,
while one whose order of additions varies is judged run by run and labelled.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from forge_tui.judge.buffers import Buffers
from forge_tui.judge.pool import FRESH, TrialPool
from forge_tui.judge.reference import written
from forge_tui.judge.sides import Rejected, RunSide, launch_failure
from forge_tui.records.card import Dim, TensorSpec, VariantKey
from forge_tui.records.problem import HarnessProblem, MachineProblem, Problem
from forge_tui.records.verdict import CHECKS, FAILED, PASSED, UNKNOWN, Check, TrialError

Results = list[torch.Tensor]
NOT_REACHED = "not reached"
COMPARED = ("meta", "nonfinite", "error", "slices", "integer probe")  # what TrialPool.check reports


@dataclass
class Ledger:
    """Outcomes of all checks of one verdict; a check that nobody reports stays unknown, with the reason."""

    found: dict[str, Check] = field(default_factory=dict)

    def passed(self, name: str, line: str = "") -> None:
        if self.found.get(name, Check(name, UNKNOWN)).outcome != FAILED:
            self.found[name] = Check(name, PASSED, line)

    def failed(self, name: str, line: str) -> None:
        self.found[name] = Check(name, FAILED, line)

    def unknown(self, name: str, line: str) -> None:
        self.found.setdefault(name, Check(name, UNKNOWN, line))

    def all(self) -> tuple[Check, ...]:
        return tuple(self.found.get(name, Check(name, UNKNOWN, NOT_REACHED)) for name in CHECKS)


@dataclass
class Examination:
    """What the correctness run leaves for timing: error numbers and each trial's verified results."""

    errors: list[TrialError] = field(default_factory=list)
    results: dict[int, Results] = field(default_factory=dict)
    runs: int = 0
    varies: str = ""


def examine(
    side: RunSide, buffers: Buffers, pool: TrialPool, only: Sequence[int], ledger: Ledger, source: random.Random
) -> Examination:
    """Run the trials `only` (indices that fit the buffers' sizes). Raises Rejected at the first failure."""
    found = Examination()
    compared: dict[str, bool] = {}
    place = source.randrange(buffers.sets)
    slots = list(range(buffers.sets))
    for step in pool.schedule():
        if step.trial not in only:
            continue
        trial = pool.trials[step.trial]
        if step.placement == FRESH:
            place = (place + source.randrange(1, buffers.sets)) % buffers.sets
        buffers.write_set(place, trial.tensors)
        first, second = source.sample(slots, 2)
        order = [(first, 0), (second, 1)]
        source.shuffle(order)
        outcomes = {which: _once(side, buffers, place, slot, which) for slot, which in order}
        found.runs += 2
        if not _same(outcomes[0], outcomes[1]):
            found.runs += _explain(side, buffers, place, first, second, outcomes, trial.name, found)
            _compare(pool, step.trial, outcomes[1], found, compared, ledger)
        _compare(pool, step.trial, outcomes[0], found, compared, ledger)
        found.results[step.trial] = outcomes[0]
    _report(found, compared, ledger, len(only))
    return found


def _once(side: RunSide, buffers: Buffers, place: int, slot: int, which: int) -> Results:
    buffers.poison_slot(slot, which, place)
    code = side.once(place, slot)
    side.check_quiet()
    check_memory(buffers, place)
    if code:
        raise launch_failure(code)
    return [t.clone() for t in buffers.slot_tensors(slot)]


def check_memory(buffers: Buffers, only: int | None = None) -> None:
    """Raises Rejected when a red zone or an input (of set `only`) changed."""
    broken = buffers.broken_zone()
    if broken:
        raise Rejected("out of bounds", "guard", broken, stage="launched")
    if buffers.inputs_changed(only):
        raise Rejected(
            "changed its inputs", "hash", "an input changed although the operator only reads it", stage="launched"
        )


def _same(a: Results, b: Results) -> bool:
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, NaN payloads included."""
    first, second = a.contiguous().reshape(-1), b.contiguous().reshape(-1)
    width = torch.int64 if first.numel() * first.element_size() % 8 == 0 else torch.uint8
    try:
        return bool(torch.equal(first.view(width), second.view(width)))
    except RuntimeError:  # storage not aligned to eight bytes
        return bool(torch.equal(first.view(torch.uint8), second.view(torch.uint8)))


def _explain(
    side: RunSide,
    buffers: Buffers,
    place: int,
    first: int,
    second: int,
    outcomes: dict[int, Results],
    trial: str,
    found: Examination,
) -> int:
    """Two poisons gave different results: unwritten output, poison-dependent, or varying by itself. Returns runs made."""
    fresh = len(written(buffers.key))
    for output in range(fresh):
        unwritten = buffers.survived(first, output, 0) & buffers.survived(second, output, 1)
        count = int(unwritten.sum())
        if count:
            line = f"{count} of {unwritten.numel()} elements of output {output} were never written (trial {trial!r})"
            raise Rejected("unwritten output", "poison", line, stage="launched")
    again = {which: _once(side, buffers, place, slot, which) for slot, which in ((first, 0), (second, 1))}
    if _same(outcomes[0], again[0]) and _same(outcomes[1], again[1]):
        line = f"the result depends on what output or workspace memory held before the call (trial {trial!r})"
        raise Rejected("nondeterministic", "determinism", line, stage="launched")
    spread = max(
        float((a.double() - b.double()).abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
        for a, b in zip(outcomes[0], again[0], strict=True)
    )
    found.varies = f"results vary from run to run by up to {spread:.2g}; every run is inside the error rule"
    return 2


def _compare(
    pool: TrialPool, trial: int, results: Results, found: Examination, compared: dict[str, bool], ledger: Ledger
) -> None:
    outcome = pool.check(trial, results)
    found.errors += outcome.errors
    for check in outcome.checks:
        compared[check.name] = compared.get(check.name, True) and check.outcome == PASSED
        if check.outcome == FAILED:
            ledger.failed(check.name, check.line)
    if outcome.problem is not None:
        raise_outcome(outcome.problem, found.varies)


def raise_outcome(problem: Problem, varies: str = "") -> None:
    """Turn a comparison's problem into the right exception: only a candidate's is a rejection."""
    if problem.blame == "machine":
        raise MachineProblem(problem.line)
    if problem.blame != "candidate":
        raise HarnessProblem(problem.line)
    check = "nonfinite" if problem.kind == "non-finite" else "error"
    line = f"{problem.line} ({varies.split(';')[0]})" if varies else problem.line
    raise Rejected(problem.kind, check, line, problem.detail, stage="sane")


def _report(found: Examination, compared: dict[str, bool], ledger: Ledger, trials: int) -> None:
    ledger.passed("launch", f"{found.runs} launches")
    ledger.passed("protocol", "every reply answered its request")
    ledger.passed("guard", "red zones untouched")
    ledger.passed("hash", "inputs unchanged, byte for byte")
    ledger.passed("poison", f"every element written under two poisons in {trials} trials")
    ledger.passed("determinism", found.varies or f"the same bits in {found.runs} runs of {trials} trials")
    for name in COMPARED:
        if compared.get(name):
            ledger.passed(name, f"{trials} trials" if name in ("error", "meta", "nonfinite") else "")
        elif name not in compared:
            ledger.unknown(
                name, "does not apply to this operator class" if name != "nonfinite" else "exact comparison covers it"
            )


def fitting(key: VariantKey, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a trial's inputs have the sizes and strides that the key's example has."""
    return all(
        tuple(t.shape) == s.sizes and (t.numel() == 0 or tuple(t.stride()) == s.strides)
        for t, s in zip(tensors, key.tensors, strict=True)
    )


def sized_key(key: VariantKey, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> VariantKey:
    """The key of a family with one trial's own sizes, so that its buffers are exact."""
    fresh = written(key)
    outputs = list(key.outputs)
    for number, index in enumerate(fresh):
        outputs[index] = _sized(outputs[index], results[number])
    inputs = tuple(_sized(s, t) for s, t in zip(key.tensors, tensors, strict=True))
    return replace(key, tensors=inputs, outputs=tuple(outputs))


def _sized(spec: TensorSpec, tensor: torch.Tensor) -> TensorSpec:
    return replace(spec, dims=tuple(Dim(n, n) for n in tensor.shape), strides=tuple(tensor.stride()))
