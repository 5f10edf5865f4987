"""Captured inputs back from the blob store, as tensors with the sizes, strides and sharing they were captured with.

Invariants: bytes are checked against their content address before use; a tensor whose bytes were not kept
is made up from its statistics and named in `Sample.synthetic`, never passed off as captured.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from forge_tui.records.card import Card, TensorBlob, VariantKey
from forge_tui.records.dtype import DTYPES, FLOATING
from forge_tui.records.problem import HarnessProblem


@dataclass(frozen=True)
class Sample:
    """One recorded call. tensors: in the order of VariantKey.tensors. synthetic: names of made-up tensors."""

    index: int
    tensors: tuple[torch.Tensor, ...]
    synthetic: tuple[str, ...] = ()


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype for a name of records.dtype. Raises HarnessProblem for one this torch doesn't have."""
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if name.removeprefix("torch.") not in DTYPES or not isinstance(dtype, torch.dtype):
        raise HarnessProblem(f"torch {torch.__version__} here has no element type {name!r}")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a torch dtype in records.dtype: "float32"."""
    return str(dtype).removeprefix("torch.")


def generator(seed: str, *what: object) -> torch.Generator:
    """A CPU generator that depends on the secret seed and on what it is for, on nothing else."""
    digest = hashlib.sha256("\0".join((seed, *(str(w) for w in what))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """View of a tensor's distinct elements: every stride-0 dimension shrunk to size 1."""
    sizes = [
        1 if stride == 0 and size > 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return tensor.as_strided(sizes, tensor.stride(), tensor.storage_offset())


def window_length(tensor: torch.Tensor) -> int:
    """Elements between the first and one past the last element touched; 0 for an empty tensor."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum(int((size - 1) * stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def like(template: torch.Tensor, values: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Fresh memory with the template's sizes and strides (and dtype); `values` has the shape of compact(template)."""
    window = torch.zeros(window_length(template), dtype=dtype or template.dtype, device=template.device)
    out = window.as_strided(template.shape, template.stride())
    if template.numel():
        compact(out).copy_(values)
    return out


def load_samples(card: Card, blob_dir: Path, seed: str, device: str = "cpu") -> tuple[Sample, ...]:
    """Every recorded call of a card. Raises HarnessProblem when stored bytes are missing or damaged."""
    return tuple(_load_call(card.key, call.index, call.tensors, blob_dir, seed, device) for call in card.samples)


def _load_call(
    key: VariantKey, index: int, blobs: tuple[TensorBlob, ...], blob_dir: Path, seed: str, device: str
) -> Sample:
    if len(blobs) != len(key.tensors):
        raise HarnessProblem(f"call {index} recorded {len(blobs)} tensors, its key lists {len(key.tensors)}")
    tensors: list[torch.Tensor] = []
    synthetic = []
    windows: dict[str, torch.Tensor] = {}
    for number, (blob, spec) in enumerate(zip(blobs, key.tensors, strict=True)):
        dtype = torch_dtype(blob.dtype)
        length = _window(blob)
        shared = windows.get(blob.blob) if spec.shares >= 0 and blob.blob else None
        if shared is not None and shared.dtype == dtype and shared.numel() >= length:
            # The same storage window seen twice (x @ x.t()): the two stay one memory in every trial.
            window = shared
        elif blob.blob or length == 0:
            window = _read(blob, blob_dir, dtype, length).to(device)
        else:
            synthetic.append(spec.name)
            window = made_up(blob, length, dtype, generator(seed, "made up", index, number)).to(device)
        if blob.blob:
            windows[blob.blob] = window
        tensors.append(window.as_strided(blob.sizes, blob.strides))
    return Sample(index, tuple(tensors), tuple(synthetic))


def _window(blob: TensorBlob) -> int:
    if any(size == 0 for size in blob.sizes):
        return 0
    if len(blob.sizes) != len(blob.strides) or any(n < 0 for n in (*blob.sizes, *blob.strides)):
        raise HarnessProblem("a recorded tensor has sizes and strides that don't fit together")
    return 1 + sum((size - 1) * stride for size, stride in zip(blob.sizes, blob.strides, strict=True))


def _read(blob: TensorBlob, blob_dir: Path, dtype: torch.dtype, length: int) -> torch.Tensor:
    if length == 0:
        return torch.empty(0, dtype=dtype)
    path = blob_dir / blob.blob[:2] / blob.blob
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise HarnessProblem(f"captured tensor {blob.blob[:12]} can't be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != blob.blob:
        raise HarnessProblem(f"captured tensor {blob.blob[:12]} is damaged: its bytes don't match its name")
    if len(data) < length * dtype.itemsize:
        raise HarnessProblem(f"captured tensor {blob.blob[:12]} holds {len(data)} bytes, its layout needs more")
    return torch.frombuffer(data, dtype=dtype, count=length)


def made_up(blob: TensorBlob, length: int, dtype: torch.dtype, source: torch.Generator) -> torch.Tensor:
    """Values with the recorded mean, deviation and range; standard normal (integers: all zero) when none were kept."""
    mean, std, low, high = blob.stats if len(blob.stats) == 4 else (0.0, 1.0, -math.inf, math.inf)
    if dtype == torch.bool:
        return torch.rand(length, generator=source) < min(max(mean, 0.05), 0.95)
    if blob.dtype in FLOATING:
        return (torch.randn(length, generator=source) * std + mean).clamp(low, high).to(dtype)
    if dtype.is_complex:
        return torch.randn(length, generator=source, dtype=dtype)
    if len(blob.stats) != 4:
        # Zero is the one index that is legal wherever any is.
        return torch.zeros(length, dtype=dtype)
    return torch.randint(int(low), int(high) + 1, (length,), generator=source).to(dtype)
