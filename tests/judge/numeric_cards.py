"""Cards made from a live call, for the tests of the judge's numeric half."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from forge_tui.judge.reference import operator_of
from forge_tui.judge.samples import dtype_name, window_length
from forge_tui.records.card import Arg, CapturedCall, Card, Dim, TensorBlob, TensorSpec, VariantKey


def spec_of(name: str, tensor: torch.Tensor, parameter: bool = False) -> TensorSpec:
    dims = tuple(Dim(n, n) for n in tensor.shape)
    dtype = dtype_name(tensor.dtype)
    return TensorSpec(name, dims, dtype, "strided", tuple(tensor.stride()), parameter=parameter)


def store(tensor: torch.Tensor, folder: Path) -> TensorBlob:
    window = tensor.as_strided((window_length(tensor),), (1,)).contiguous()
    data = window.view(torch.uint8).numpy().tobytes() if window.numel() else b""
    digest = hashlib.sha256(data).hexdigest()
    path = folder / digest[:2] / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return TensorBlob(digest, tuple(tensor.shape), tuple(tensor.stride()), dtype_name(tensor.dtype), len(data))


def _arg(name: str, value: Any, kind: str) -> Arg:
    if kind == "Tensor" and isinstance(value, (int, float)):
        return Arg(name, "number", ["float32" if isinstance(value, float) else "int64", value])
    if value is None:
        return Arg(name, "none")
    if isinstance(value, bool):
        return Arg(name, "bool", value)
    if isinstance(value, int):
        return Arg(name, "int", value)
    if isinstance(value, float):
        return Arg(name, "float", value)
    if isinstance(value, torch.dtype):
        return Arg(name, "dtype", dtype_name(value))
    return Arg(name, "int_list", list(value))


def card_of(
    folder: Path,
    op: str,
    *arguments: Any,
    op_class: str = "",
    parameters: tuple[int, ...] = (),
    mutates: tuple[int, ...] = (),
    flags: tuple[str, ...] = (),
) -> Card:
    """A card of one call. Tensors and lists of tensors among the arguments become its inputs."""
    key = VariantKey(op, (), (), ())
    schema = operator_of(key)._schema.arguments
    args, tensors = [], []
    for declared, value in zip(schema, arguments, strict=False):
        if isinstance(value, torch.Tensor):
            args.append(Arg(declared.name, "tensor", len(tensors)))
            tensors.append((declared.name, value))
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            args.append(Arg(declared.name, "tensor_list", list(range(len(tensors), len(tensors) + len(value)))))
            tensors += [(f"{declared.name}{i}", t) for i, t in enumerate(value)]
        else:
            args.append(_arg(declared.name, value, str(declared.type)))
    given = [t.clone() if isinstance(t, torch.Tensor) and mutates else t for t in arguments]
    with torch.no_grad():
        raw = operator_of(key)(*given)
    outputs = [raw] if isinstance(raw, torch.Tensor) else list(raw)
    specs = tuple(spec_of(name, t, i in parameters) for i, (name, t) in enumerate(tensors))
    results = () if mutates else tuple(spec_of(f"out{i}", t) for i, t in enumerate(outputs))
    key = VariantKey(op, tuple(args), specs, results, mutates, (-1,) * len(results), flags=flags)
    blobs = tuple(store(t, folder) for _, t in tensors)
    moved = sum(s.touched_bytes for s in (*specs, *results))
    return Card("c1", key, 1, ("model",), (CapturedCall(0, blobs),), op_class, moved)
