"""Real operator calls as variant keys, and compiled drafts run on them through the C entry."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from forge_tui.records.card import Arg, Card, Dim, TensorSpec, VariantKey
from forge_tui.records.dtype import DTYPES

ABI = Path(__file__).parents[2] / "forge_tui" / "languages" / "forge_abi.h"
FLAGS = ("-O3", "-march=native", "-fopenmp", "-std=c++20", "-fno-math-errno", "-fPIC", "-w")


@dataclass(frozen=True)
class Call:
    """One operator call: its packet overload, positional arguments by schema, and its key."""

    op: str
    arguments: dict[str, Any]
    key: VariantKey

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [v for v in self.arguments.values() if isinstance(v, torch.Tensor)]

    def eager(self, double: bool = False) -> list[torch.Tensor]:
        """Eager's results for copies of the tensors, in float64 when `double`; the mutated input for an in-place op."""
        copies = {}
        for name, value in self.arguments.items():
            if isinstance(value, torch.Tensor):
                value = value.double() if double and value.is_floating_point() else value.clone()
            if double and isinstance(value, torch.dtype):
                value = torch.float64
            copies[name] = value
        with torch.no_grad():
            result = overload(self.op)(**copies)
        return [result] if isinstance(result, torch.Tensor) else list(result)


def overload(op: str) -> Any:
    """The torch.ops overload of "aten::softmax.int"."""
    name, _, end = op.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name), end or "default")


def spec_of(
    t: torch.Tensor, name: str = "", parameter: bool = False, ranged: dict[int, Dim] | None = None
) -> TensorSpec:
    layout = "contiguous" if t.is_contiguous() else "strided"
    dims = tuple((ranged or {}).get(d) or Dim(n, n) for d, n in enumerate(t.shape))
    return TensorSpec(name, dims, str(t.dtype).removeprefix("torch."), layout, tuple(t.stride()), parameter=parameter)


def call(op: str, **given: Any) -> Call:
    """A call with eager's outputs in its key. Arguments by schema name; the rest take the schema's defaults."""
    schema = overload(op)._schema
    arguments = {a.name: given.get(a.name, a.default_value) for a in schema.arguments}
    args, tensors = [], []
    for name, value in arguments.items():
        kind = kind_of(value)
        if kind == "tensor":
            if value.dim() == 0 and getattr(value, "wrapped", False):
                kind = "number"
            args.append(Arg(name, "tensor", len(tensors)))
            tensors.append(spec_of(value, name))
        elif kind == "dtype":
            args.append(Arg(name, kind, str(value).removeprefix("torch.")))
        else:
            args.append(Arg(name, kind, list(value) if kind.endswith("list") else value))
    passed = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    with torch.no_grad():
        result = overload(op)(**passed)
    inplace = schema.name.endswith("_")
    outputs = (
        ()
        if inplace
        else tuple(
            spec_of(r, f"out{i}") for i, r in enumerate([result] if isinstance(result, torch.Tensor) else result)
        )
    )
    key = VariantKey(op, tuple(args), tuple(tensors), outputs, (0,) if inplace else (), (-1,) * len(outputs))
    return Call(op, arguments, key)


def kind_of(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, torch.dtype):
        return "dtype"
    if isinstance(value, (list, tuple)):
        return "float_list" if any(isinstance(v, float) for v in value) else "int_list"
    return {bool: "bool", int: "int", float: "float", str: "str"}[type(value)]


def card(key: VariantKey) -> Card:
    return Card("c1", key, 1, ("layer",), (), "", 0)


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("ndim", ctypes.c_int32), ("dtype", ctypes.c_int32)]  # fmt: skip


class Args(ctypes.Structure):
    _fields_ = [("abi", ctypes.c_int32), ("n_inputs", ctypes.c_int32), ("n_outputs", ctypes.c_int32),
                ("n_scalars", ctypes.c_int32), ("inputs", ctypes.c_void_p), ("outputs", ctypes.c_void_p),
                ("scalars", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_int64),
                ("prepared", ctypes.c_void_p), ("prepared_bytes", ctypes.c_int64), ("stream", ctypes.c_void_p),
                ("threads", ctypes.c_int32), ("reserved", ctypes.c_int32)]  # fmt: skip


def describe(tensors: list[torch.Tensor]) -> tuple[Any, list[Any]]:
    """An array of forge_tensor and what must stay alive beside it."""
    keep: list[Any] = []
    array = (Tensor * max(1, len(tensors)))()
    for slot, t in zip(array, tensors, strict=False):
        sizes, strides = (ctypes.c_int64 * max(1, t.dim()))(*t.shape), (ctypes.c_int64 * max(1, t.dim()))(*t.stride())
        keep += [sizes, strides, t]
        slot.data, slot.ndim, slot.dtype = t.data_ptr(), t.dim(), DTYPES[str(t.dtype).removeprefix("torch.")][0]
        slot.sizes, slot.strides = ctypes.addressof(sizes), ctypes.addressof(strides)
    return array, keep


def pack(inputs: list[torch.Tensor], outputs: list[torch.Tensor], threads: int) -> tuple[Args, list[Any]]:
    """forge_args of a call. Recipes bake scalars from the key, so none are passed."""
    ins, keep_in = describe(inputs)
    outs, keep_out = describe(outputs)
    args = Args(
        1,
        len(inputs),
        len(outputs),
        0,
        ctypes.addressof(ins),
        ctypes.addressof(outs),
        None,
        None,
        0,
        None,
        0,
        None,
        threads,
        0,
    )
    return args, [ins, outs, *keep_in, *keep_out]


def compile_all(sources: list[str], folder: Path, workers: int = 2) -> list[ctypes.CDLL]:
    """Compile each source as the C++ language does and load it; binaries in `folder` are kept by content.

    A compiler error fails with its text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "card.h").write_text(ABI.read_text())

    def build(text: str) -> ctypes.CDLL:
        name = hashlib.sha256("\0".join((text, *FLAGS, ABI.read_text())).encode()).hexdigest()[:16]
        library = folder / f"{name}.so"
        if not library.exists():
            path = folder / f"{name}.cpp"
            path.write_text(text)
            fresh = folder / f"{name}.{os.getpid()}.tmp"
            command = ["g++", *FLAGS, "-shared", str(path), "-o", str(fresh)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise AssertionError(f"{path}: {done.stderr[:3000]}")
            fresh.replace(library)
        return ctypes.CDLL(str(library))

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(build, sources))


def run(library: ctypes.CDLL, made: Call, threads: int = 2) -> tuple[int, list[torch.Tensor]]:
    """(status, results) of the kernel on copies of the call's tensors; outputs start as poison."""
    inputs = [t.clone() for t in made.tensors]
    outputs = []
    for spec in made.key.outputs:
        out = torch.empty_strided(spec.sizes, spec.strides, dtype=getattr(torch, spec.dtype))
        outputs.append(out.fill_(-1234.5 if out.is_floating_point() else 77))
    args, keep = pack(inputs, outputs, threads)
    status = library.forge_launch(ctypes.byref(args))
    del keep
    return status, outputs if outputs else [inputs[k] for k in made.key.mutates]
