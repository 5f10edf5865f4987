"""Results of a model as flat lists, and how far two of them are apart.

Rule (the same for every model): against a float64 run of the model, the cast's root-mean-square error may be at most
twice eager's own plus a floor of 4 units of round-off of the result; NaN and Inf must stand in the same places;
whole numbers, booleans and text must be equal. Where no float64 run is possible, the distance to eager itself may be
at most RELATIVE of the result's size. Invariant: results are copied when they are taken, a model may reuse its memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from forge_tui.records.dtype import EPS

MAX_DEPTH = 8
FACTOR = 2.0
FLOOR_EPS = 4.0
# Against eager alone: what a chain of some hundred operators may drift by, per dtype (relative root mean square).
RELATIVE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}


def flatten(result: Any) -> list[Any]:
    """Tensors (copied) and plain values of a result, in a fixed order; modules and unknown objects' methods are skipped."""
    found: list[Any] = []
    _collect(result, found, set(), 0)
    return found


def _collect(value: Any, found: list[Any], seen: set[int], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value.detach().clone())
        return
    if value is None or isinstance(value, (bool, int, float, str)):
        found.append(value)
        return
    if depth >= MAX_DEPTH or id(value) in seen or isinstance(value, (torch.nn.Module, type)):
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, f.name) for f in dataclasses.fields(value)]
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    for part in parts:
        _collect(part, found, seen, depth + 1)


@dataclass(frozen=True)
class Comparison:
    """ok: None when it can't be decided. ratio: largest error of the cast over eager's own; None without a reference."""

    ok: bool | None
    line: str
    ratio: float | None = None


def compare(eager: list[Any], cast: list[Any], reference: list[Any] | None, why_not: str = "") -> Comparison:
    """Judge the cast's results. reference: the float64 run's, or None with the reason."""
    if len(eager) != len(cast):
        return Comparison(False, f"eager returns {len(eager)} values, with the cast there are {len(cast)}")
    if not any(isinstance(v, torch.Tensor) for v in eager):
        return Comparison(None, "the run returns no tensors, so there is nothing to compare")
    if reference is not None and not _alike(eager, reference):
        reference, why_not = None, "the float64 run returns other sizes"
    ratios: list[float] = []
    for number, (a, b) in enumerate(zip(eager, cast, strict=True)):
        wrong = _differs(number, a, b)
        if wrong:
            return Comparison(False, wrong)
        if not isinstance(a, torch.Tensor) or not a.is_floating_point():
            continue
        wrong, ratio = _too_far(number, a, b, reference[number] if reference is not None else None)
        if wrong:
            return Comparison(False, wrong, ratio)
        if ratio is not None:
            ratios.append(ratio)
    count = sum(isinstance(v, torch.Tensor) for v in eager)
    if reference is None:
        line = f"{count} outputs within {RELATIVE['float32']:g} (float32) of eager; no float64 run: {why_not}"
        return Comparison(True, line)
    worst = max(ratios, default=None)
    said = f", worst {worst:.2f}x eager's own error" if worst is not None else ""
    return Comparison(
        True, f"{count} outputs within {FACTOR:g}x eager's error plus the round-off floor, against float64{said}", worst
    )


def _alike(eager: list[Any], reference: list[Any]) -> bool:
    if len(eager) != len(reference):
        return False
    pairs = zip(eager, reference, strict=True)
    return all(
        isinstance(a, torch.Tensor) == isinstance(b, torch.Tensor)
        and (not isinstance(a, torch.Tensor) or a.shape == b.shape)
        for a, b in pairs
    )


def _differs(number: int, a: Any, b: Any) -> str:
    """Differences that no rounding explains."""
    if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
        return f"output {number} is a tensor on one side only"
    if not isinstance(a, torch.Tensor):
        return "" if isinstance(a, float) or a == b else f"output {number} is {b!r} with the cast, {a!r} in eager"
    if a.shape != b.shape or a.dtype != b.dtype or a.stride() != b.stride():
        return f"output {number} has another shape, dtype or strides with the cast"
    if not a.is_floating_point():
        return (
            ""
            if torch.equal(a, b)
            else f"output {number} ({a.dtype}) differs in {int((a != b).sum())} of {a.numel()} values"
        )
    if any(not torch.equal(test(a), test(b)) for test in (torch.isnan, torch.isposinf, torch.isneginf)):
        return f"output {number} has NaN or Inf in other places with the cast"
    return ""


def _too_far(number: int, a: torch.Tensor, b: torch.Tensor, reference: Any) -> tuple[str, float | None]:
    finite = torch.isfinite(a)
    x, y = a[finite].double(), b[finite].double()
    if x.numel() == 0:
        return "", None
    name = str(a.dtype).removeprefix("torch.")
    size = _rms(x)
    if reference is None:
        apart = _rms(y - x)
        limit = RELATIVE.get(name, RELATIVE["bfloat16"]) * size
        return (
            f"output {number} is {apart / max(size, 1e-300):.1e} of its size away from eager" if apart > limit else ""
        ), None
    exact = reference[finite].double()
    own, its = _rms(x - exact), _rms(y - exact)
    limit = FACTOR * own + FLOOR_EPS * EPS.get(name, EPS["bfloat16"]) * _rms(exact)
    ratio = its / own if own > 0 else None
    if its > limit or its != its:
        return f"output {number}: error {its:.2e} against float64, eager's own is {own:.2e}", ratio
    return "", ratio


def _rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt())
