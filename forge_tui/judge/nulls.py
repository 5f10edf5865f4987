"""The card is tested first: outputs that are wrong by construction must be rejected by the very rules it will use.

A trial set that lets one of them through can't tell a kernel from a cheat; then the card is "undiscriminating" and no
speed-up is claimed from it. Cases: KernelBench #165 (zeros), #97 (half of a mean).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from forge_tui.judge import reference
from forge_tui.judge.reductions import halved, reduced_dims
from forge_tui.judge.samples import generator
from forge_tui.judge.trials import Trial
from forge_tui.records.card import Card
from forge_tui.records.problem import HarnessProblem

Results = tuple[torch.Tensor, ...]
POISON = -6.2774385622041925e66  # stands for memory that was never written
LOWER = {torch.float64: torch.float32, torch.float32: torch.bfloat16, torch.float16: torch.float8_e5m2,
         torch.bfloat16: torch.float8_e5m2}  # fmt: skip
# Operators whose right answer IS their first input: writing a copy of it is the work.
COPIES = frozenset(
    {"clone", "contiguous", "_to_copy", "to", "copy", "copy_", "alias", "detach", "expand_copy", "repeat", "dropout", "cat",
     "view_copy", "reshape", "permute_copy", "transpose_copy", "lift_fresh_copy", "identity"}
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What a null may look at: the card, one trial, its results from eager, and those of the trial before it."""

    card: Card
    trial: Trial
    eager: Results
    previous: Results | None
    seed: str


Null = Callable[[Setting], Results | None]


def zeros(s: Setting) -> Results | None:
    """Nothing computed, on zero pages."""
    return tuple(torch.zeros_like(e) for e in s.eager)


def mean_constant(s: Setting) -> Results | None:
    """One value everywhere."""
    if not any(e.is_floating_point() for e in s.eager):
        return None
    return tuple(
        torch.full_like(e, float(e.double().nanmean().nan_to_num(0.0, 0.0, 0.0))) if e.is_floating_point() else e
        for e in s.eager
    )


def first_input(s: Setting) -> Results | None:
    """The input handed back."""
    if not s.trial.tensors or s.card.key.base_op in COPIES:
        return None
    source = s.trial.tensors[0]
    if source.is_complex() or any(e.is_complex() for e in s.eager):
        return None
    found = []
    for e in s.eager:
        if source.shape == e.shape:
            found.append(source.to(e.dtype))
        elif e.numel() == 0:
            found.append(e)
        elif source.numel():
            flat = source.reshape(-1)
            found.append(flat.repeat(-(-e.numel() // flat.numel()))[: e.numel()].to(e.dtype).reshape(e.shape))
        else:
            return None
    return tuple(found)


def previous_result(s: Setting) -> Results | None:
    """The answer of the call before, kept or looked up."""
    if s.previous is None or any(p.shape != e.shape for p, e in zip(s.previous, s.eager, strict=True)):
        return None
    return s.previous


def unwritten_tail(s: Setting) -> Results | None:
    """The last eighth was never written."""

    def edit(flat: torch.Tensor, source: torch.Generator) -> None:
        flat[-max(1, flat.numel() // 8) :] = _poison(flat)

    return _edited(s, edit)


def one_block_missing(s: Setting) -> Results | None:
    """One block of 64 elements was never written."""

    def edit(flat: torch.Tensor, source: torch.Generator) -> None:
        blocks = max(1, flat.numel() // 64)
        start = int(torch.randint(blocks, (1,), generator=source)) * 64
        block = flat[start : start + 64]
        reverse = block.flip(0)
        block[:] = reverse if not torch.equal(reverse, block) else _poison(flat)

    return _edited(s, edit)


def half_reduction(s: Setting) -> Results | None:
    """Only the first half of a sum, a mean or a norm was computed."""
    inputs = halved(s.card, s.trial.tensors)
    if inputs is None:
        return None
    found = reference.eager(s.card.key, inputs)
    dims = reduced_dims(s.card, s.trial.tensors)
    if not dims or found[0].shape != s.trial.tensors[0].shape:
        return found
    # Same shape out as in: a cheat with half of the statistics gets the first half like this; leave it the rest.
    dim, new = dims[-1], s.eager[0].clone()
    half = new.shape[dim] // 2
    new.narrow(dim, 0, half).copy_(found[0].narrow(dim, 0, half))
    return (new, *found[1:])


def lower_precision(s: Setting) -> Results | None:
    """Rounded through the next lower precision."""
    if not any(e.dtype in LOWER for e in s.eager):
        return None
    return tuple(e.to(LOWER[e.dtype]).to(e.dtype) if e.dtype in LOWER else e for e in s.eager)


def some_signs_flipped(s: Setting) -> Results | None:
    """The sign of one output in a thousand is wrong."""
    if not any(e.is_floating_point() for e in s.eager):
        return None

    def edit(flat: torch.Tensor, source: torch.Generator) -> None:
        if flat.is_floating_point():
            places = torch.randint(flat.numel(), (max(1, flat.numel() // 1000),), generator=source)
            flat[places] = -flat[places]

    return _edited(s, edit)


NULLS: dict[str, Null] = {
    "zeros": zeros,
    "mean constant": mean_constant,
    "first input": first_input,
    "previous result": previous_result,
    "unwritten tail": unwritten_tail,
    "one block missing": one_block_missing,
    "half of the reduction": half_reduction,
    "lower precision": lower_precision,
    "some signs flipped": some_signs_flipped,
}


def build(name: str, setting: Setting) -> Results | None:
    """A null's outputs for one trial, or None where it does not apply there."""
    if all(e.numel() == 0 for e in setting.eager):
        return None
    try:
        return NULLS[name](setting)
    except reference.OperatorRefused:
        return None
    except KeyError:
        raise HarnessProblem(f"there is no null output called {name!r}") from None


def why_not(name: str, card: Card) -> str:
    """Why a null applies to no trial of a card."""
    if name == "first input" and card.key.base_op in COPIES:
        return "does not apply: copying its first input is what the operator does"
    if name == "half of the reduction":
        return "does not apply: no reduction, or none that the key shows"
    if name in ("lower precision", "mean constant", "some signs flipped"):
        return "does not apply: the results are not floating point"
    return "does not apply to any trial of this card"


def _poison(flat: torch.Tensor) -> torch.Tensor:
    """What unwritten memory holds in these trials: as far out as the type allows, the opposite for bools."""
    if flat.dtype == torch.bool:
        return ~flat[-1]
    if flat.is_floating_point() or flat.is_complex():
        return torch.tensor(max(POISON, float(torch.finfo(flat.dtype).min) / 4)).to(flat.dtype)
    return torch.tensor(torch.iinfo(flat.dtype).max, dtype=flat.dtype)


def _edited(s: Setting, edit: Callable[[torch.Tensor, torch.Generator], object]) -> Results:
    found = []
    for number, e in enumerate(s.eager):
        flat = e.contiguous().clone().view(-1)
        if flat.numel():
            edit(flat, generator(s.seed, "null", s.trial.name, number))
        found.append(flat.view(e.shape))
    return tuple(found)
