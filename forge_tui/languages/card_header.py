"""card.h: what a kernel knows at compile time about its card, generated from the variant key.

Everything of the card lives in `namespace card`: exact sizes, strides and scalars are constants; what a shape family
leaves open is a function of the call (`card::in0_size1(a)`) on the CPU, and a kernel parameter on a GPU. Names are
those of the plan's symbols (records.plan.symbols_of). The text is self-contained: the C ABI is part of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forge_tui.records.card import Arg, TensorSpec, VariantKey
from forge_tui.records.dtype import DTYPES, SHORT

HOST_TYPES = {
    "bool": "bool", "uint8": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "float16": "forge_f16", "bfloat16": "forge_bf16", "float32": "float", "float64": "double",
    "float8_e4m3fn": "uint8_t", "float8_e5m2": "uint8_t", "complex64": "forge_c64", "complex128": "forge_c128",
}  # fmt: skip
DEVICE_TYPES = HOST_TYPES | {
    "float16": "__half", "bfloat16": "__nv_bfloat16", "float8_e4m3fn": "__nv_fp8_e4m3", "float8_e5m2": "__nv_fp8_e5m2",
    "complex64": "float2", "complex128": "double2",
}  # fmt: skip
ABI_DTYPES = {
    "bool": "FORGE_BOOL", "uint8": "FORGE_U8", "int8": "FORGE_I8", "int16": "FORGE_I16", "int32": "FORGE_I32",
    "int64": "FORGE_I64", "float16": "FORGE_F16", "bfloat16": "FORGE_BF16", "float32": "FORGE_F32",
    "float64": "FORGE_F64", "float8_e4m3fn": "FORGE_F8_E4M3", "float8_e5m2": "FORGE_F8_E5M2",
    "complex64": "FORGE_C64", "complex128": "FORGE_C128",
}  # fmt: skip

_ENTRY = """\
#define FORGE_EXPORT __attribute__((visibility("default")))
#ifdef __cplusplus
extern "C" {
#endif
FORGE_EXPORT int forge_launch(const forge_args*);
FORGE_EXPORT int forge_prepare(const forge_args*, void*);
#ifdef __cplusplus
}
#endif
"""

# 16-bit floats on the CPU, rounding to nearest even; a NaN stays a NaN (made quiet).
_HALVES = """\
typedef struct { uint16_t bits; } forge_f16;
typedef struct { uint16_t bits; } forge_bf16;
typedef struct { float re, im; } forge_c64;
typedef struct { double re, im; } forge_c128;
static inline float forge_from_bits(uint32_t u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
static inline uint32_t forge_to_bits(float f) { uint32_t u; __builtin_memcpy(&u, &f, 4); return u; }
static inline float forge_float(forge_bf16 x) { return forge_from_bits((uint32_t)x.bits << 16); }
static inline forge_bf16 forge_to_bf16(float f) {
  const uint32_t u = forge_to_bits(f);
  const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  forge_bf16 r;
  r.bits = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
  return r;
}
static inline float forge_float(forge_f16 x) {
  const uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
  const float scaled = forge_from_bits(rest << 13) * 0x1p112f; /* exact, subnormals too */
  const uint32_t u = rest >= 0x7c00 ? 0x7f800000 | ((rest & 0x3ff) << 13) : forge_to_bits(scaled);
  return forge_from_bits(sign | u);
}
static inline forge_f16 forge_to_f16(float f) {
  const uint32_t all = forge_to_bits(f), sign = (all >> 16) & 0x8000, u = all & 0x7fffffff;
  uint32_t h;
  if (u > 0x7f800000) h = 0x7e00;
  else if (u >= 0x477ff000) h = 0x7c00; /* 65520 and above round to infinity */
  else if (u < 0x38800000) h = forge_to_bits(forge_from_bits(u) + 0.5f) - 0x3f000000; /* subnormal: ulp of 0.5 is 2^-24 */
  else h = (u + 0xfff + ((u >> 13) & 1) - 0x38000000) >> 13;
  forge_f16 r;
  r.bits = (uint16_t)(sign | h);
  return r;
}
"""

_DEVICE_START = """\
#pragma once
#ifdef __CUDACC_RTC__
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t; typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
"""


def host_header(key: VariantKey) -> str:
    """Text of card.h for C++ on the CPU."""
    return "\n".join((_abi(), _ENTRY, _HALVES, *_card(key, HOST_TYPES, device=False))) + "\n"


def device_header(key: VariantKey) -> str:
    """Text of card.h for CUDA: no host ABI, CUDA's own 16- and 8-bit types, included only where the card has them."""
    dtypes = {t.dtype for t in (*key.tensors, *key.outputs)}
    includes = [
        f"#include <{name}>"
        for name, wanted in (
            ("cuda_fp16.h", {"float16"}),
            ("cuda_bf16.h", {"bfloat16"}),
            ("cuda_fp8.h", {"float8_e4m3fn", "float8_e5m2"}),
        )
        if dtypes & wanted
    ]
    return "\n".join((_DEVICE_START, *includes, *_card(key, DEVICE_TYPES, device=True))) + "\n"


@functools.cache
def _abi() -> str:
    return Path(__file__).with_name("forge_abi.h").read_text(encoding="utf-8")


def _card(key: VariantKey, types: dict[str, str], device: bool) -> Iterator[str]:
    yield f"/* Card: {_comment(key.op)}" + (f", autocast {_comment(key.autocast)}" if key.autocast else "") + " */"
    yield "namespace card {"
    names: set[str] = set()
    for prefix, specs in (("in", key.tensors), ("out", key.outputs)):
        for k, spec in enumerate(specs):
            yield from _tensor(prefix, k, spec, types, device, names)
    if key.mutates:
        yield f"/* written in place: inputs {', '.join(map(str, key.mutates))} */"
    for position, alias in enumerate(key.output_alias):
        if alias >= 0:
            yield f"/* output {position} is a view of input {alias}: nothing to write */"
    yield f"constexpr int n_inputs = {len(key.tensors)}, n_outputs = {len(key.outputs)}, n_scalars = {len(key.scalars)};"
    for position, arg in enumerate(key.scalars):
        yield from _scalar(position, arg, device)
    yield "}  // namespace card"


def _tensor(
    prefix: str, k: int, spec: TensorSpec, types: dict[str, str], device: bool, names: set[str]
) -> Iterator[str]:
    me = f"{prefix}{k}"
    array = f"a->{prefix}puts[{k}]" if prefix == "in" else f"a->outputs[{k}]"
    shape = ", ".join(str(d.lo) if d.exact else f"{d.symbol}={d.lo}..{d.hi} step {d.multiple}" for d in spec.dims)
    role = ("input" if prefix == "in" else "output") + f" {k}"
    marks = [spec.layout, f"aligned to {spec.alignment} bytes"]
    marks += ["parameter"] if spec.parameter else []
    marks += [f"overlaps input {spec.shares}"] if spec.shares >= 0 else []
    yield f"/* {role} {_comment(spec.name)}: {SHORT[spec.dtype]} [{shape}] strides {list(spec.strides)}, {', '.join(marks)} */"
    code = "" if device else f" constexpr int {me}_dtype = {ABI_DTYPES[spec.dtype]};"
    yield f"typedef {types[spec.dtype]} {me}_t;{code}"
    yield f"constexpr int {me}_ndim = {len(spec.dims)}, {me}_alignment = {spec.alignment};"
    fixed_strides = spec.layout == "strided" or all(d.exact for d in spec.dims)
    for d, dim in enumerate(spec.dims):
        yield from _value(f"{me}_size{d}", dim.lo if dim.exact else None, f"{array}.sizes[{d}]", device)
        stride = spec.strides[d] if fixed_strides else None
        yield from _value(f"{me}_stride{d}", stride, f"{array}.strides[{d}]", device)
        if not dim.exact and dim.symbol not in names:
            names.add(dim.symbol)
            yield from _value(dim.symbol, None, f"{array}.sizes[{d}]", device)
    exact = all(d.exact for d in spec.dims)
    product = " * ".join(f"{array}.sizes[{d}]" for d in range(len(spec.dims))) or "1"
    yield from _value(f"{me}_numel", spec.numel if exact else None, product, device)


def _value(name: str, value: int | None, run_time: str, device: bool) -> Iterator[str]:
    if value is not None:
        yield f"constexpr int64_t {name} = {value};"
    elif device:
        yield f'/* {name} varies: pass it to the kernel as a scalar with value "{name}" */'
    else:
        yield f"static inline int64_t {name}(const forge_args* a) {{ return {run_time}; }}"


def _scalar(position: int, arg: Arg, device: bool) -> Iterator[str]:
    """`arg_<name>`: the value of a non-tensor argument; a list is an array with `arg_<name>_count`."""
    name = f"arg_{arg.name}" if arg.name.isidentifier() and arg.name.isascii() else f"arg_{position}"
    where = f"scalar {position}"
    value: Any = arg.value[1] if arg.kind == "number" else arg.value
    space = "__device__ " if device else "static "
    if arg.kind == "none" or value is None:
        yield f"constexpr bool {name}_is_none = true;  /* {where}: None */"
    elif arg.kind.endswith("_list"):
        element = {"int_list": "int64_t", "float_list": "double", "bool_list": "bool"}[arg.kind]
        items = ", ".join(_literal(v) for v in value)
        yield f"constexpr int {name}_count = {len(value)};  /* {where} */"
        if value:
            yield f"{space}constexpr {element} {name}[] = {{{items}}};"
    elif isinstance(value, bool):
        yield f"constexpr bool {name} = {_literal(value)};  /* {where} */"
    elif isinstance(value, int):
        yield f"constexpr int64_t {name} = {_literal(value)};  /* {where} */"
    elif isinstance(value, float):
        yield f"constexpr double {name} = {_literal(value)};  /* {where} */"
    elif arg.kind == "dtype" and value in DTYPES and not device:
        yield f"constexpr int {name} = {ABI_DTYPES[value]};  /* {where} */"
    else:
        yield f"/* {where} {_comment(arg.name)} = {_comment(str(value))} */"


def _literal(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return (
            "(-9223372036854775807LL - 1)" if value == -(1 << 63) else f"{value}LL" if abs(value) >> 31 else str(value)
        )
    if math.isnan(value):
        return '__builtin_nan("")'
    if math.isinf(value):
        return ("-" if value < 0 else "") + "__builtin_inf()"
    return repr(value)


def _comment(text: str) -> str:
    """Text from the outside as part of a comment: it can't end it, nor bring control characters."""
    return "".join(c if c.isprintable() and c not in "*/\\?" else "_" for c in text)[:80]
