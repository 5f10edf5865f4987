"""Keys of operator calls on a CUDA device, made without one: eager runs on meta tensors, which hold no data."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import torch
from recipe_calls import call

from forge_tui.languages.card_header import device_header
from forge_tui.languages.cuda import NVCC_FLAGS
from forge_tui.records.card import TensorSpec, VariantKey


def meta(*sizes: int, dtype: str = "bfloat16") -> torch.Tensor:
    return torch.empty(sizes, dtype=getattr(torch, dtype), device="meta")


def cuda_key(op: str, alignment: int = 16, **given: Any) -> VariantKey:
    """The key of a call with tensors on cuda:0."""
    key = call(op, **given).key
    layouts = [v for v in given.values() if isinstance(v, torch.Tensor)]
    tensors = tuple(
        dataclasses.replace(
            t,
            device="cuda:0",
            alignment=alignment,
            layout="channels_last" if _nhwc(v) else t.layout,
        )
        for t, v in zip(key.tensors, layouts, strict=True)
    )
    outputs = tuple(dataclasses.replace(t, device="cuda:0", alignment=16) for t in key.outputs)
    if key.base_op == "group_norm":  # eager on CUDA answers in the contiguous layout, whatever the input's
        outputs = tuple(_contiguous(t) for t in outputs)
    return dataclasses.replace(key, tensors=tensors, outputs=outputs)


def _contiguous(spec: TensorSpec) -> TensorSpec:
    strides, step = [], 1
    for size in reversed(spec.sizes):
        strides.insert(0, step)
        step *= size
    return dataclasses.replace(spec, layout="contiguous", strides=tuple(strides))


def _nhwc(t: torch.Tensor) -> bool:
    return t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)


def compile_cubin(
    source: str, key: VariantKey, folder: Path, nvcc: str = "nvcc", arch: str = "sm_90"
) -> tuple[bytes, str]:
    """(cubin, compiler's log) with the flags that candidates get. A compiler error fails with its text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source.cu").write_text(source)
    (folder / "card.h").write_text(device_header(key))
    command = [nvcc, *NVCC_FLAGS, f"-arch={arch}", "source.cu", "-o", "candidate.cubin"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{folder}: {done.stderr[:3000]}")
    return (folder / "candidate.cubin").read_bytes(), done.stderr
