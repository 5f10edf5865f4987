"""What an operator reduces over, read from its key: how many terms, and inputs with half of them missing.

Serves the error rule (K in its conditioning test) and the null "half of the reduction". Where an operator's shape says
nothing, the answer is "don't know" (None), never a guess.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from forge_tui.judge.rules import TF32_EPS
from forge_tui.judge.samples import compact, like
from forge_tui.records import opclass
from forge_tui.records.card import Card, VariantKey
from forge_tui.records.dtype import EPS, FLOATING

# Index, in the key's tensors, of the operand whose listed dimension is contracted.
_SECOND_OPERAND = {"mm": 1, "bmm": 1, "matmul": 1, "mv": 1, "dot": 1, "addmm": 2, "addmv": 2, "baddbmm": 2, "addbmm": 2}
_SEVERAL_ROUNDINGS = frozenset({"addcmul", "addcdiv", "lerp", "rsub", "hypot"})


def argument(key: VariantKey, name: str) -> Any:
    """Value of a non-tensor argument, or None when absent."""
    for arg in key.args:
        if arg.name == name and arg.kind not in ("tensor", "tensor_list", "none"):
            return arg.value[1] if arg.kind == "number" else arg.value
    return None


def tensor_of(key: VariantKey, *names: str) -> int:
    """Index of the first tensor argument with one of these names, or -1."""
    for arg in key.args:
        if arg.name in names and arg.kind == "tensor":
            return int(arg.value)
    return -1


def reduced_dims(card: Card, tensors: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """Dimensions of the first input that norms, softmax and reductions run over; () when none or not known."""
    key = card.key
    if not tensors or card.op_class not in (opclass.REDUCTION_NORM, opclass.SOFTMAX):
        return ()
    rank, name = tensors[0].dim(), key.base_op
    if rank == 0 or "batch_norm" in name:
        return ()
    if "group_norm" in name or "instance_norm" in name:
        return tuple(range(2, rank))
    shape = argument(key, "normalized_shape")
    if shape:
        return tuple(range(rank - len(shape), rank))
    dim = argument(key, "dim")
    if dim is None:
        return (rank - 1,) if "norm" in name or card.op_class == opclass.SOFTMAX else tuple(range(rank))
    dims = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(sorted(d % rank for d in dims)) or tuple(range(rank))


def reduction_length(card: Card, tensors: tuple[torch.Tensor, ...]) -> int:
    """K: terms summed into one output; 1 for element-wise operators and where the key doesn't tell."""
    key = card.key
    if not tensors:
        return 1
    first = tensors[0]
    weight = tensor_of(key, "weight")
    if card.op_class == opclass.CONV and weight >= 0:
        return _whole(tensors[weight].numel() // max(1, tensors[weight].shape[0]))
    if card.op_class == opclass.MATMUL:
        operand = tensors[_SECOND_OPERAND.get(key.base_op, 0) if len(tensors) > 1 else 0]
        if key.base_op in _SECOND_OPERAND and operand.dim() >= 2:
            return _whole(operand.shape[-2])
        return _whole(first.shape[-1] if first.dim() else 1)
    if card.op_class == opclass.ATTENTION and len(tensors) > 1:
        return _whole(max(first.shape[-1], tensors[1].shape[-2]))
    dims = reduced_dims(card, tensors)
    if dims:
        length = math.prod(first.shape[d] for d in dims)
        groups = argument(key, "num_groups")
        return _whole(length * (first.shape[1] // groups if groups else 1))
    if card.op_class == opclass.POOL_AVERAGE and key.outputs:
        return _whole(first.numel() // max(1, key.outputs[0].numel))
    return 1


def _whole(terms: int) -> int:
    return max(1, int(terms))


def accumulator_eps(card: Card) -> float:
    """Round-off of the type the operator accumulates in under the user's flags."""
    key = card.key
    dtypes = {t.dtype for t in key.tensors if t.dtype in FLOATING}
    eps = EPS["float64"] if dtypes == {"float64"} else EPS["float32"]
    if key.autocast in EPS:
        eps = max(eps, EPS[key.autocast])
    matrices = card.op_class in (opclass.MATMUL, opclass.CONV, opclass.ATTENTION)
    if matrices and any(f in ("matmul=high", "matmul=medium", "tf32") for f in key.flags):
        eps = max(eps, TF32_EPS if "matmul=medium" not in key.flags else EPS["bfloat16"])
    return eps


def several_roundings(key: VariantKey) -> bool:
    """An operator of class "one rounding" that really does several: add with alpha, addcmul, lerp."""
    return key.base_op.rstrip("_") in _SEVERAL_ROUNDINGS or argument(key, "alpha") not in (None, 1, 1.0)


def halved(card: Card, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
    """Inputs on which the operator sees only the first half of its reduction; None when there is nothing to halve.

    Matrices and convolutions: the second half of the contracted dimension of one operand is zero. Norms, softmax, sums:
    the second half of the last reduced dimension repeats the first. Average pools: every second column repeats the one
    before it.
    """
    key, new = card.key, list(tensors)
    if card.op_class in (opclass.MATMUL, opclass.CONV):
        index = tensor_of(key, "weight")
        if index >= 0:
            values = compact(tensors[index]).clone()
            rows = values.reshape(values.shape[0], -1) if values.dim() > 1 else values.reshape(1, -1)
            rows[:, rows.shape[1] // 2 :] = 0
            values = rows.reshape(values.shape)
        else:
            index = _SECOND_OPERAND.get(key.base_op, -1)
            if not 0 <= index < len(tensors):
                return None
            values = compact(tensors[index]).clone()
            dim = -2 if values.dim() >= 2 else -1
            values.narrow(dim, values.shape[dim] // 2, values.shape[dim] - values.shape[dim] // 2).zero_()
        new[index] = like(tensors[index], values)
        return tuple(new)
    if card.op_class == opclass.ATTENTION and len(tensors) >= 3 and tensors[1].shape[-2] >= 2:
        for index in (1, 2):
            new[index] = like(tensors[index], _repeat_half(compact(tensors[index]), -2))
        return tuple(new)
    dims = reduced_dims(card, tensors)
    if dims and tensors[0].shape[dims[-1]] >= 2:
        new[0] = like(tensors[0], _repeat_half(compact(tensors[0]), dims[-1]))
        return tuple(new)
    if card.op_class == opclass.POOL_AVERAGE and tensors[0].is_floating_point() and tensors[0].dim() >= 3:
        values = compact(tensors[0]).clone()
        pairs = values.shape[-1] // 2
        if pairs and reduction_length(card, tensors) > 1:
            values[..., 1 : 2 * pairs : 2] = values[..., 0 : 2 * pairs : 2].clone()
            new[0] = like(tensors[0], values)
            return tuple(new)
    return None


def _repeat_half(values: torch.Tensor, dim: int) -> torch.Tensor:
    half = values.shape[dim] // 2
    if half == 0:
        return values.clone()
    new = values.clone()
    new.narrow(dim, half, half).copy_(values.narrow(dim, 0, half))
    return new
