"""Small cards made by hand for the judge's tests: real blobs on disk, real operators, no capture involved."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from forge_tui.records import opclass
from forge_tui.records.card import Arg, CapturedCall, Card, Dim, TensorBlob, TensorSpec, VariantKey


def spec(name: str, tensor: torch.Tensor, parameter: bool = False, alignment: int = 64) -> TensorSpec:
    contiguous = "contiguous" if tensor.is_contiguous() else "strided"
    return TensorSpec(
        name,
        tuple(Dim(n, n) for n in tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        contiguous,
        tuple(tensor.stride()),
        alignment=alignment,
        parameter=parameter,
    )


def blob(tensor: torch.Tensor, blob_dir: Path) -> TensorBlob:
    length = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    window = tensor.as_strided((length,), (1,))
    raw = bytes(window.contiguous().view(torch.uint8).tolist())
    digest = hashlib.sha256(raw).hexdigest()
    path = blob_dir / digest[:2] / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    wide = tensor.double()
    stats = (float(wide.mean()), float(wide.std(correction=0)), float(wide.min()), float(wide.max()))
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorBlob(digest, tuple(tensor.shape), tuple(tensor.stride()), dtype, len(raw), stats=stats)


def card(
    blob_dir: Path,
    op: str,
    args: tuple[Arg, ...],
    tensors: dict[str, torch.Tensor],
    outputs: tuple[torch.Tensor, ...],
    op_class: str,
    *,
    parameters: tuple[str, ...] = (),
    mutates: tuple[int, ...] = (),
    alignment: int = 64,
    flops: int | None = None,
) -> Card:
    key = VariantKey(
        op,
        args,
        tuple(spec(n, t, n in parameters, alignment) for n, t in tensors.items()),
        tuple(spec(f"out{i}", t) for i, t in enumerate(outputs)),
        mutates=mutates,
        output_alias=tuple(-1 for _ in outputs),
    )
    moved = sum(t.touched_bytes for t in (*key.tensors, *key.outputs)) + sum(
        key.tensors[m].touched_bytes for m in mutates
    )
    sample = CapturedCall(0, tuple(blob(t, blob_dir) for t in tensors.values()))
    return Card(key.digest(), key, 1, ("m",), (sample,), op_class, moved, flops)


def values(*shape: int, seed: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gelu(blob_dir: Path, rows: int = 128, columns: int = 1536, approximate: str = "tanh", **more: Any) -> Card:
    x = values(rows, columns)
    args = (Arg("self", "tensor", 0), Arg("approximate", "str", approximate))
    return card(blob_dir, "aten::gelu", args, {"self": x}, (torch.empty_like(x),), opclass.TRANSCENDENTAL, **more)


def softmax(blob_dir: Path, rows: int = 64, columns: int = 256) -> Card:
    x = values(rows, columns)
    args = (Arg("self", "tensor", 0), Arg("dim", "int", -1), Arg("dtype", "none"))
    return card(blob_dir, "aten::softmax.int", args, {"self": x}, (torch.empty_like(x),), opclass.SOFTMAX)


def relu_(blob_dir: Path, count: int = 1 << 16) -> Card:
    args = (Arg("self", "tensor", 0),)
    return card(blob_dir, "aten::relu_", args, {"self": values(count)}, (), opclass.EXACT, mutates=(0,))


def add_one(blob_dir: Path, count: int = 1 << 14) -> Card:
    """x + 1: the number takes a tensor's place."""
    x = values(count)
    args = (Arg("self", "tensor", 0), Arg("other", "number", ["int64", 1]), Arg("alpha", "int", 1))
    return card(blob_dir, "aten::add.Tensor", args, {"self": x}, (torch.empty_like(x),), opclass.ONE_ROUNDING)


def total(blob_dir: Path, rows: int = 64, columns: int = 512) -> Card:
    """Sum over rows."""
    x = values(rows, columns)
    args = (
        Arg("self", "tensor", 0),
        Arg("dim", "int_list", [1]),
        Arg("keepdim", "bool", False),
        Arg("dtype", "none"),
    )
    return card(blob_dir, "aten::sum.dim_IntList", args, {"self": x}, (torch.empty(rows),), opclass.REDUCTION_NORM)
