"""Handmade cards and casts for the tests: keys recorded from live calls, kernels compiled with the machine's g++."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from forge_tui.cast.keys import operator, schema_of
from forge_tui.cast.package import write_cast
from forge_tui.records.card import Arg, Dim, TensorSpec, VariantKey
from forge_tui.records.manifest import CastBinary, CastEntry, CastManifest, Evidence
from forge_tui.records.plan import Plan, host_plan

HEADER = Path(__file__).resolve().parents[2] / "forge_tui" / "languages"
HEAD = '#include "forge_abi.h"\n#include <cmath>\n#include <cstring>\n'
LOOP = "int64_t n=1; for(int d=0;d<a->inputs[0].ndim;++d) n*=a->inputs[0].sizes[d]; const float* x=(const float*)a->inputs[0].data;"

RELU = HEAD + (
    f'extern "C" int forge_launch(const forge_args* a){{ {LOOP} float* y=(float*)a->outputs[0].data;'
    "for(int64_t i=0;i<n;++i) y[i]=x[i]>0?x[i]:0; return 0; }"
)
RELU_INPLACE = HEAD + (
    f'extern "C" int forge_launch(const forge_args* a){{ {LOOP} float* y=(float*)a->inputs[0].data;'
    "for(int64_t i=0;i<n;++i) y[i]=x[i]>0?x[i]:0; return 0; }"
)
GELU = HEAD + (
    f'extern "C" int forge_launch(const forge_args* a){{ {LOOP} float* y=(float*)a->outputs[0].data;'
    "for(int64_t i=0;i<n;++i) y[i]=0.5f*x[i]*(1+erff(x[i]*0.70710678f)); return 0; }"
)
ADD_INPLACE = HEAD + (
    f'extern "C" int forge_launch(const forge_args* a){{ {LOOP} float* y=(float*)a->inputs[0].data;'
    "const float* z=(const float*)a->inputs[1].data; for(int64_t i=0;i<n;++i) y[i]=x[i]+z[i]; return 0; }"
)
ADD = HEAD + (
    f'extern "C" int forge_launch(const forge_args* a){{ {LOOP} float* y=(float*)a->outputs[0].data;'
    "const float* z=(const float*)a->inputs[1].data; for(int64_t i=0;i<n;++i) y[i]=x[i]+z[i]; return 0; }"
)
ADD_NUMBER = HEAD + (
    f'extern "C" int forge_launch(const forge_args* a){{ {LOOP} float* y=(float*)a->outputs[0].data;'
    "float z=(float)(a->scalars[0].kind==FORGE_INT?(double)a->scalars[0].v.i:a->scalars[0].v.d);"
    "for(int64_t i=0;i<n;++i) y[i]=x[i]+z; return 0; }"
)
SOFTMAX = (
    HEAD
    + """
extern "C" int forge_launch(const forge_args* a) {
  const forge_tensor& t = a->inputs[0];
  int64_t cols = t.sizes[t.ndim - 1], rows = 1;
  for (int d = 0; d < t.ndim - 1; ++d) rows *= t.sizes[d];
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = (const float*)t.data + r * cols;
    float* y = (float*)a->outputs[0].data + r * cols;
    float top = x[0], sum = 0;
    for (int64_t c = 1; c < cols; ++c) top = x[c] > top ? x[c] : top;
    for (int64_t c = 0; c < cols; ++c) { y[c] = expf(x[c] - top); sum += y[c]; }
    for (int64_t c = 0; c < cols; ++c) y[c] /= sum;
  }
  return 0;
}
"""
)
LINEAR = (
    HEAD
    + """
extern "C" int forge_launch(const forge_args* a) {
  const float *x = (const float*)a->inputs[0].data, *w = (const float*)a->inputs[1].data;
  const float* b = a->n_inputs > 2 ? (const float*)a->inputs[2].data : nullptr;
  int64_t in = a->inputs[1].sizes[1], out = a->inputs[1].sizes[0], rows = 1;
  for (int d = 0; d < a->inputs[0].ndim - 1; ++d) rows *= a->inputs[0].sizes[d];
  float* y = (float*)a->outputs[0].data;
  for (int64_t r = 0; r < rows; ++r) for (int64_t o = 0; o < out; ++o) {
    double s = b ? b[o] : 0;
    for (int64_t k = 0; k < in; ++k) s += (double)x[r * in + k] * w[o * in + k];
    y[r * out + o] = (float)s;
  }
  return 0;
}
"""
)


@functools.cache
def compiled(source: str) -> bytes:
    """The shared library of a kernel, as bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "kernel.cpp"
        path.write_text(source)
        output = Path(scratch) / "kernel.so"
        subprocess.run(
            ["g++", "-O2", "-fPIC", "-shared", f"-I{HEADER}", str(path), "-o", str(output)], check=True, timeout=60
        )
        return output.read_bytes()


def spec_of(tensor: torch.Tensor, name: str = "", alignment: int = 0, shares: int = -1) -> TensorSpec:
    """The exact spec of a live tensor."""
    if tensor.is_contiguous():
        layout = "contiguous"
    elif tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        layout = "channels_last"
    else:
        layout = "strided"
    dims = tuple(Dim(s, s) for s in tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(
        name, dims, dtype, layout, tuple(tensor.stride()), "cpu", alignment or tensor.element_size(), False, shares
    )


def _tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], torch.Tensor)


def key_of(op: str, *args: Any, **kwargs: Any) -> VariantKey:
    """Record the key of a call. Mutated tensors are taken from the schema; those are cloned."""
    overload = operator(op)
    schema, _ = schema_of(overload)
    made, tensors, mutates = [], [], []
    for k, parameter in enumerate(schema):
        value = args[k] if k < len(args) else kwargs.get(parameter.name, parameter.default)
        info = overload._schema.arguments[k].alias_info
        if isinstance(value, torch.Tensor):
            if info is not None and info.is_write:
                mutates.append(len(tensors))
            made.append(Arg(parameter.name, "tensor", len(tensors)))
            tensors.append(value)
        elif _tensors(value):
            made.append(Arg(parameter.name, "tensor_list", list(range(len(tensors), len(tensors) + len(value)))))
            tensors += value
        elif value is None:
            made.append(Arg(parameter.name, "none"))
        elif parameter.takes_tensor:
            dtype = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float64"
            made.append(Arg(parameter.name, "number", [dtype, value]))
        elif isinstance(value, torch.dtype):
            made.append(Arg(parameter.name, "dtype", str(value).removeprefix("torch.")))
        elif isinstance(value, (list, tuple)):
            kind = (
                "float_list" if "float" in parameter.type else "bool_list" if "bool" in parameter.type else "int_list"
            )
            made.append(Arg(parameter.name, kind, list(value)))
        else:
            made.append(Arg(parameter.name, type(value).__name__, value))
    written = {id(tensors[k]): tensors[k].clone() for k in mutates}
    with torch.no_grad():
        result = overload(*[written.get(id(a), a) for a in args], **kwargs)
    results = result if isinstance(result, (tuple, list)) else (result,)
    outputs = () if mutates else tuple(spec_of(r) for r in results)
    specs = tuple(spec_of(t, f"x{k}") for k, t in enumerate(tensors))
    return VariantKey(op, tuple(made), specs, outputs, tuple(mutates), tuple(-1 for _ in outputs))


def entry_of(
    card_id: str, key: VariantKey, source: str, plan: Plan | None = None, target: str = "x86-64", gain_us: float = 50.0
) -> tuple[CastEntry, dict[str, bytes]]:
    """A manifest entry with its members."""
    text, binary = source.encode(), compiled(source)
    names = f"sources/{card_id}/kernel.cpp", f"binaries/{card_id}.so"
    digests = hashlib.sha256(text).hexdigest(), hashlib.sha256(binary).hexdigest()
    made = CastBinary(names[1], digests[1], "cpp", target, ("-O2", "-fPIC", "-shared"), "g++")
    evidence = Evidence(
        1.5,
        1.4,
        1.6,
        100.0,
        100.0 - gain_us,
        1.3,
        1.0,
        "n1",
        "recipe",
        "custom kernel",
        False,
        {"torch": "2.13"},
        {"error": "passed"},
    )
    entry = CastEntry(card_id, key, plan or host_plan(), names[0], digests[0], (made,), evidence, 1, ("",), "T3")
    return entry, {names[0]: text, names[1]: binary}


def cast_file(path: Path, *made: tuple[CastEntry, dict[str, bytes]], torch_version: str = torch.__version__) -> str:
    """Write a cast of these entries."""
    members = {name: data for _, m in made for name, data in m.items()}
    manifest = CastManifest(1, path.stem, "test model", 0.0, torch_version, "cpu", tuple(e for e, _ in made), False)
    write_cast(str(path), manifest, members)
    return str(path)
