"""A card's arguments as values that torch takes: for a Python call and for the native loop.

Invariant: both forms come from the same `Arg` records, in schema order, so the two loops call the same operator.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from forge_tui.judge.plumbing import int64s, number
from forge_tui.judge.reference import operator_of
from forge_tui.judge.samples import torch_dtype
from forge_tui.records.card import Arg, VariantKey
from forge_tui.records.problem import HarnessProblem

# c10::ScalarType and c10::MemoryFormat, fixed by torch's own serialisation format.
SCALAR_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
    "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15, "float8_e5m2": 23, "float8_e4m3fn": 24,
}  # fmt: skip
MEMORY_FORMATS = {"contiguous_format": 0, "preserve_format": 1, "channels_last": 2, "channels_last_3d": 3}


class Value(ctypes.Structure):
    """forge_value of native_loop.cpp."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("i", ctypes.c_int64),
        ("d", ctypes.c_double),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("doubles", ctypes.POINTER(ctypes.c_double)),
        ("text", ctypes.c_char_p),
    ]


def _plain(name: str) -> str:
    return name.removeprefix("torch.")


def python_value(arg: Arg, tensors: Sequence[torch.Tensor]) -> Any:
    """One argument for a Python call."""
    if arg.value is None or arg.kind == "none":
        return None
    if arg.kind == "tensor":
        return tensors[arg.value]
    if arg.kind == "tensor_list":
        return [tensors[k] if k >= 0 else None for k in arg.value]
    if arg.kind == "number":
        return number(arg.value[1])
    if arg.kind == "float":
        return number(arg.value)
    if arg.kind == "dtype":
        return torch_dtype(arg.value)
    if arg.kind in ("layout", "memory_format"):
        return getattr(torch, _plain(arg.value))
    if arg.kind == "device":
        return torch.device(arg.value)
    return list(arg.value) if arg.kind.endswith("_list") else arg.value


def python_call(key: VariantKey, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of the operator for these input tensors."""
    schema = operator_of(key)._schema.arguments
    if len(schema) != len(key.args):
        raise HarnessProblem(f"{key.op} takes {len(schema)} arguments in this torch, the card has {len(key.args)}")
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for declared, arg in zip(schema, key.args, strict=True):
        value = python_value(arg, tensors)
        if declared.kwarg_only:
            named[declared.name] = value
        else:
            positional.append(value)
    return positional, named


def native_value(arg: Arg, tensors: Sequence[torch.Tensor], keep: list[Any]) -> Value:
    """One argument for the native loop; arrays it points to are appended to `keep`."""
    value, kind = arg.value, arg.kind
    if value is None or kind == "none":
        return Value(0)
    if kind == "tensor":
        return Value(7, 1, tensors[value]._cdata)
    if kind in ("tensor_list", "int_list", "bool_list"):
        numbers = (
            [tensors[k]._cdata if k >= 0 else 0 for k in value] if kind == "tensor_list" else [int(v) for v in value]
        )
        ints = int64s(numbers)
        keep.append(ints)
        code = {"tensor_list": 8, "int_list": 4, "bool_list": 9}[kind]
        return Value(code, len(numbers), 0, 0.0, ctypes.cast(ints, ctypes.POINTER(ctypes.c_int64)))
    if kind == "float_list":
        doubles = (ctypes.c_double * max(1, len(value)))(*(float(v) for v in value))
        keep.append(doubles)
        return Value(5, len(value), 0, 0.0, None, ctypes.cast(doubles, ctypes.POINTER(ctypes.c_double)))
    if kind == "number":
        plain = number(value[1])
        if isinstance(plain, bool):
            return Value(13, 1, int(plain))
        return Value(11, 1, plain) if isinstance(plain, int) else Value(12, 1, 0, plain)
    if kind == "int":
        return Value(1, 1, int(value))
    if kind == "float":
        return Value(2, 1, 0, float(value))
    if kind == "bool":
        return Value(3, 1, int(value))
    if kind == "dtype":
        return Value(1, 1, SCALAR_TYPES[_plain(value)])
    if kind == "layout":
        if _plain(value) != "strided":
            raise HarnessProblem(f"layout {value} is not strided")
        return Value(1, 1, 0)
    if kind == "memory_format":
        return Value(1, 1, MEMORY_FORMATS[_plain(value)])
    text = str(value).encode()
    keep.append(text)
    return Value(10 if kind == "device" else 6, len(text), 0, 0.0, None, None, text)
