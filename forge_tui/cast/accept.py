"""Whole-model accept test of a cast: outputs against float64 and eager, hits against the capture, interleaved time.

Invariants: the model, the random state and the thread count are as before when it returns, also when the model
raises; a check that could not run says so and is None; a call served inside another operator is no expected call.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from forge_tui.cast.installed import Installed, Report
from forge_tui.cast.outputs import Comparison, compare, flatten
from forge_tui.cast.owner import owner
from forge_tui.cast.pairs import measure_pairs
from forge_tui.cast.runtime import load
from forge_tui.records.workload import ModelVerdict

CHECKED_RUNS = 2
SEED = 20260131
Progress = Callable[[str], None]


def accept_test(
    run: Callable[..., Any],
    modules: Mapping[str, torch.nn.Module],
    cast_path: str | os.PathLike[str],
    expected: Mapping[str, int],
    pairs: int = 30,
    seconds: float = 20.0,
    threads: int | None = None,
    input_sets: int = 1,
    progress: Progress | None = None,
) -> ModelVerdict:
    """Install the cast into the model and compare it with eager in this process.

    run: runs the user's code on input set k, or, when it takes no argument, on all of them. modules: the watched
    roots. expected: card -> matching calls in one run over all input sets.
    The caller wrote the cast, so its host code is accepted. Raises UserInputError for a broken cast; whatever the
    model itself raises passes through.
    """
    say = progress or (lambda line: None)
    once = _once(run, input_sets)
    cast = load(cast_path, accept_host_code=True)
    with _restored(threads):
        say("running eager")
        eager, again = _results(once), _results(once)
        steady = compare(eager, again, None)
        reference, why_not = _float64(once, modules) if steady.ok else (None, "eager itself is not steady")
        installed = cast.install(modules or None, quiet=True)
        try:
            say("running with the cast")
            with _on(installed):
                outputs = _results(once)
            before = installed.report()
            owner().diagnose(True)
            try:
                for _ in range(CHECKED_RUNS):
                    with _on(installed):
                        outputs = _results(once)
            finally:
                owner().diagnose(False)
            after = installed.report()
            verdict = compare(eager, outputs, reference, why_not)
            if steady.ok is False:
                verdict = Comparison(
                    None, f"two eager runs differ ({steady.line}), so the cast can't be judged by outputs"
                )
            say("timing eager and cast in turns")

            def with_cast(count: int) -> None:
                with _on(installed):
                    for _ in range(count):
                        once()

            def plain(count: int) -> None:
                with installed.paused():
                    for _ in range(count):
                        once()

            timing = measure_pairs(plain, with_cast, pairs, seconds, torch.get_num_threads(), random.Random(SEED))
        finally:
            installed.uninstall()
    return _verdict(verdict, timing, before, after, expected)


def _verdict(
    outputs: Comparison, timing: Any, before: Report, after: Report, expected: Mapping[str, int]
) -> ModelVerdict:
    earlier = {e.card_id: e.hits for e in before.entries}
    per_card = {e.card_id: e.hits - earlier[e.card_id] for e in after.entries}
    wanted = {card: calls * CHECKED_RUNS for card, calls in expected.items() if card in per_card}
    served = sum(min(per_card[card], calls) for card, calls in wanted.items())
    extra = sum(per_card.values()) - served
    misses: dict[str, int] = {}
    for op, by_reason in after.misses.items():
        for reason, count in by_reason.items():
            new = count - before.misses.get(op, {}).get(reason, 0)
            if new > 0:
                misses[reason] = misses.get(reason, 0) + new
    missing = sorted(card for card in expected if card not in per_card)
    line = outputs.line
    short = [f"{card} {per_card[card]}/{calls}" for card, calls in wanted.items() if per_card[card] < calls]
    if short:
        line += f"; not every matching call was served: {', '.join(short[:5])}"
    detail = {
        "checked_runs": CHECKED_RUNS,
        "nested_or_unexpected_hits": extra,
        "not_hooked": {e.card_id: e.reason for e in after.entries if not e.hook},
        "declined": {e.card_id: e.declined for e in after.entries if e.declined},
        "cards_not_in_the_cast": missing,
        "prepared_bytes": sum(e.prepared_bytes for e in after.entries),
        "notes": list(after.notes),
        "key": after.key,
    }
    return ModelVerdict(
        outputs.ok, line, timing, None, "measured apart, by model_compile", sum(wanted.values()), served, misses, per_card,
        after.tier, after.tier_reason, outputs.ratio, detail,
    )  # fmt: skip


def _once(run: Callable[..., Any], input_sets: int) -> Callable[[], Any]:
    """One run over all input sets, with the same random numbers every time."""
    try:
        inspect.signature(run).bind(0)
        indexed = True
    except (TypeError, ValueError):
        indexed = False

    def once() -> Any:
        torch.manual_seed(SEED)
        return [run(k) for k in range(input_sets)] if indexed else run()

    return once


def _results(once: Callable[[], Any]) -> list[Any]:
    return flatten(once())


@contextlib.contextmanager
def _on(installed: Installed) -> Iterator[None]:
    """On around the whole run: the capture counted calls outside the watched modules too."""
    with installed.active():
        yield


@contextlib.contextmanager
def _restored(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    state = torch.get_rng_state()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_rng_state(state)


def _float64(once: Callable[[], Any], modules: Mapping[str, torch.nn.Module]) -> tuple[list[Any] | None, str]:
    """Results of a float64 copy of the modules on the same inputs, or None with the reason."""
    roots = list({id(m): m for m in modules.values()}.values())
    if not roots:
        return None, "no watched modules to copy"
    size = sum(2 * t.nbytes for m in roots for t in [*m.parameters(), *m.buffers()])
    free = _free_bytes()
    if free is not None and 2 * size > free:
        return None, f"a float64 copy needs {2 * size >> 20} MiB, {free >> 20} MiB are free"
    calls: list[int] = []
    try:
        copies = [m.double() for m in copy.deepcopy(roots)]
        with _redirected(roots, copies, calls):
            results = _results(once)
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError, KeyError, IndexError) as error:
        return None, f"it fails: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    if not calls:
        return None, "the run does not call the watched modules' forward"
    floats = [r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point()]
    if floats and not any(r.dtype == torch.float64 for r in floats):
        return None, "the model casts its results down itself"
    return results, ""


@contextlib.contextmanager
def _redirected(roots: list[torch.nn.Module], copies: list[torch.nn.Module], calls: list[int]) -> Iterator[None]:
    """Calls of the roots go to their copies, with floating tensors widened."""
    own = [m.__dict__.get("forward") for m in roots]

    def to(target: torch.nn.Module) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return target(*_widened(args), **_widened(kwargs))

        return forward

    for module, target in zip(roots, copies, strict=True):
        module.__dict__["forward"] = to(target)
    try:
        yield
    finally:
        for module, before in zip(roots, own, strict=True):
            if before is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = before


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(_widened(v) for v in value)
    if type(value) is dict:
        return {k: _widened(v) for k, v in value.items()}
    return value


def _free_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
