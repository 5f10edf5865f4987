"""Element by element on a CUDA device: activations and arithmetic, in place or not, with an operand that is broadcast over
one run of dimensions. Arithmetic in float32, 16-byte accesses, several in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_tui.proposers.recipes import cuda_parts
from forge_tui.proposers.recipes.cuda_keys import DEVICE_TYPES, FLOATS, constants
from forge_tui.proposers.recipes.cuda_recipe import CudaRecipe, DeviceSource, kernel_step
from forge_tui.proposers.recipes.keys import argument, contiguous, number, scalar
from forge_tui.proposers.recipes.recipe import Point, Space
from forge_tui.records.card import TensorSpec, VariantKey
from forge_tui.records.dtype import itemsize
from forge_tui.records.plan import PlanArg

UNARY = ("relu", "silu", "sigmoid", "tanh", "gelu")
BINARY = ("add", "sub", "mul")
OPS = frozenset(
    {f"aten::{op}{end}" for op in UNARY for end in ("", "_")}
    | {f"aten::{op}{end}.Tensor" for op in BINARY for end in ("", "_")}
)


@dataclass(frozen=True)
class _Operand:
    """index: input tensor, or -1 for the number `value`. Element i of the output meets element (i / inner) % count."""

    index: int
    value: float = 0.0
    inner: int = 1
    count: int = 0  # 0: as large as the output


@dataclass(frozen=True)
class _Call:
    out: TensorSpec
    written: PlanArg
    operands: tuple[_Operand, ...]


def _call(key: VariantKey) -> _Call | str:
    """How to walk the call, or why it can't be walked."""
    if key.mutates:
        if len(key.mutates) != 1 or key.writes or any(t.shares >= 0 for t in key.tensors):
            return "writes more than its first argument, or arguments share memory"
        out, written = key.tensors[key.mutates[0]], PlanArg("input", key.mutates[0])
    elif len(key.outputs) != 1 or any(a >= 0 for a in key.output_alias):
        return "does not write exactly one fresh output"
    else:
        out, written = key.outputs[0], PlanArg("output", 0)
    if out.numel == 0:
        return "an empty tensor"
    if out.window != out.numel or 0 in out.strides:
        return "the output has gaps"
    operands = []
    for name in ("self", "other") if key.base_op.rstrip("_") in BINARY else ("self",):
        arg = argument(key, name)
        if arg is None or arg.kind not in ("tensor", "number", "int", "float"):
            return f"argument {name} is not a tensor or a number"
        if arg.kind != "tensor":
            operands.append(_Operand(-1, float(scalar(key, name))))
            continue
        spec = key.tensors[arg.value]
        if spec.dtype not in FLOATS or spec.dtype != out.dtype:
            return f"{name} is {spec.dtype}, the result {out.dtype}; this kernel handles one of {', '.join(FLOATS)}"
        walk = _walk(out, spec)
        if walk is None:
            return f"{name} is broadcast over separate dimensions or lies in another order"
        operands.append(_Operand(arg.value, 0.0, *walk))
    return _Call(out, written, tuple(operands))


def _walk(out: TensorSpec, spec: TensorSpec) -> tuple[int, int] | None:
    """(inner, count) of an operand, (1, 0) for one like the output, None when it can't be walked."""
    if spec.sizes == out.sizes and (spec.strides == out.strides or (contiguous(spec) and contiguous(out))):
        return (1, 0) if spec.window == spec.numel and 0 not in spec.strides else None
    if not contiguous(spec) or not contiguous(out):
        return None
    sizes = (1,) * (len(out.dims) - len(spec.dims)) + spec.sizes
    real = [d for d, (own, full) in enumerate(zip(sizes, out.sizes, strict=True)) if own == full and full > 1]
    if not real:
        return out.numel, 1
    if any(out.sizes[d] > 1 and d not in real for d in range(real[0], real[-1])):
        return None
    inner = 1
    for d in range(real[-1] + 1, len(sizes)):
        inner *= out.sizes[d]
    return inner, spec.numel


def _refuses(key: VariantKey) -> str:
    walked = _call(key)
    if isinstance(walked, str):
        return walked
    if walked.out.dtype not in FLOATS:
        return f"the result is {walked.out.dtype}; this kernel handles {', '.join(FLOATS)}"
    return ""


def _made(key: VariantKey) -> _Call:
    walked = _call(key)
    if isinstance(walked, str):
        raise ValueError(f"no kernel for this key: {walked}")
    return walked


def _widths(key: VariantKey) -> tuple[int, ...]:
    made = _made(key)
    full = [made.out, *(key.tensors[o.index] for o in made.operands if o.index >= 0 and not o.count)]
    least = min(s.alignment for s in full)
    return tuple(w for w in (16, 8, 4, 2) if w <= least and w >= itemsize(made.out.dtype))[:2]


def _space(key: VariantKey, threads: int) -> Space:
    exact = key.base_op.rstrip("_") in ("relu", *BINARY) or _made(key).out.dtype == "float32"
    return {
        "functions": ("accurate",) if exact else ("fast", "accurate"),
        "threads": (128, 256, 512, 1024),
        "accesses": (1, 2, 4, 8),
        "bytes": _widths(key),
        "load": ("plain", "streaming"),
        "store": ("plain", "streaming"),
    }


def _starts(key: VariantKey, threads: int) -> list[Point]:
    space = _space(key, threads)
    functions, width = space["functions"][0], space["bytes"][0]
    return [
        {"functions": functions, "threads": size, "accesses": many, "bytes": width, "load": hint, "store": hint}
        for size, many, hint in ((256, 2, "plain"), (256, 4, "streaming"), (512, 1, "streaming"), (128, 8, "plain"))
    ]


# Sources: eager's formulas for float32 (ATen/native/cuda/Activation*.cu); the fast ones for 16-bit results are built on
# ex2.approx and rcp.approx (1 to 2 ulp of float32) and, for erf, on Abramowitz and Stegun 7.1.26 (1.5e-7).
_FUNCTIONS = """\
DEV float exp2_fast(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float inverse(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float logistic(float x) {
  return FAST ? inverse(1.0f + exp2_fast(x * -1.4426950408889634f)) : 1.0f / (1.0f + expf(-x));
}
DEV float relu(float x) { return x > 0 || x != x ? x : 0.0f; }  // -0 becomes 0, as in eager
DEV float silu(float x) { return FAST ? x * logistic(x) : x / (1.0f + expf(-x)); }
DEV float tanh_of(float x) {
  if (!FAST) return tanhf(x);
  const float far = 1.0f - 2.0f * logistic(-2.0f * fabsf(x)), near = x * x;  // near 0 the series has no cancellation
  const float series = fabsf(x) * (1.0f + near * (-0.33333333f + near * (0.13333333f - near * 0.053968254f)));
  return copysignf(near < 0.09f ? series : far, x);
}
DEV float gelu_tanh(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return FAST ? x * logistic(2.0f * u) : 0.5f * x * (1.0f + tanhf(u));
}
DEV float gelu_erf(float x) {
  if (!FAST) return x * 0.5f * (1.0f + erff(x * 0.7071067811865476f));
  const float z = fabsf(x) * 0.7071067811865476f, t = inverse(fmaf(0.3275911f, z, 1.0f));
  const float p = t * fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f), 0.254829592f);
  const float half = 0.5f * p * exp2_fast(z * z * -1.4426950408889634f);
  return x * (x < 0 ? half : 1.0f - half);
}
"""
_KERNEL = """\
typedef raw_of<t, N> raw;
constexpr int64_t VECS = COUNT / N;

DEV float value(@VALUES@) { return @EXPRESSION@; }

extern "C" __global__ void __launch_bounds__(THREADS) pointwise(@PARAMETERS@) {
  const int64_t first = (int64_t)blockIdx.x * THREADS * ACCESSES + threadIdx.x;
@DECLARE@#pragma unroll
  for (int u = 0; u < ACCESSES; ++u)
    if (first + u * THREADS < VECS) {
@LOAD@    }
#pragma unroll
  for (int u = 0; u < ACCESSES; ++u)
    if (first + u * THREADS < VECS) {
      const int64_t at = (first + u * THREADS) * N;
      float @FLOATS@, result[N];
@UNPACK@#pragma unroll
      for (int k = 0; k < N; ++k) result[k] = value(@ELEMENTS@);
      put<t, N>(out + at, result);
    }
  if (COUNT % N != 0 && blockIdx.x == 0 && threadIdx.x < COUNT % N) {
    const int64_t at = VECS * N + threadIdx.x;
    out[at] = from_f32<t>(value(@TAIL@));
  }
}
"""


def _expression(key: VariantKey, made: _Call) -> str:
    op = key.base_op.rstrip("_")
    if op in BINARY:
        sign = {"add": "+", "sub": "-", "mul": "*"}[op]
        alpha = float(scalar(key, "alpha", 1))
        second = "y" if alpha == 1 else f"(float)({number(alpha)}) * y"
        return f"x {sign} {second}"
    if op == "gelu":
        return "gelu_tanh(x)" if scalar(key, "approximate") == "tanh" else "gelu_erf(x)"
    return {"tanh": "tanh_of(x)", "sigmoid": "logistic(x)"}.get(op, f"{op}(x)")


def _source(key: VariantKey, point: Point) -> DeviceSource:
    made = _made(key)
    size = itemsize(made.out.dtype)
    per = point["bytes"] // size
    text: dict[str, list[str]] = {
        k: [] for k in ("parameters", "declare", "load", "unpack", "elements", "tail", "floats")
    }
    args = []
    for name, o in zip("xy", made.operands, strict=False):
        text["floats"].append(f"{name}[N]")
        text["elements"].append(f"{name}[k]")
        if o.index < 0:
            value = f"(float)({number(o.value)})"
            text["unpack"].append(f"      for (int k = 0; k < N; ++k) {name}[k] = {value};\n")
            text["tail"].append(value)
            continue
        inplace = made.written == PlanArg("input", o.index)
        place = "out" if inplace else f"in_{name}"
        if not inplace:
            text["parameters"].append(f"const t* __restrict__ {place}")
            args.append(PlanArg("input", o.index))
        if not o.count:
            text["declare"].append(f"  raw {name}_raw[ACCESSES];\n")
            text["load"].append(f"      {name}_raw[u] = load((const raw*){place} + first + u * THREADS);\n")
            text["unpack"].append(f"      unpack<t, N>({name}_raw[u], {name});\n")
            text["tail"].append(f"f32({place}[at])")
            continue
        where = f"/ {o.inner} % {o.count}"
        if o.inner % per == 0:
            text["unpack"].append(f"      {name}[0] = f32({place}[at {where}]);\n")
            text["unpack"].append(f"      for (int k = 1; k < N; ++k) {name}[k] = {name}[0];\n")
        else:
            text["unpack"].append(f"      for (int k = 0; k < N; ++k) {name}[k] = f32({place}[(at + k) {where}]);\n")
        text["tail"].append(f"f32({place}[at {where}])")
    out_mark = "" if made.written.kind == "input" else "__restrict__ "
    text["parameters"].append(f"t* {out_mark}out")
    args.append(made.written)
    names = [name for name, _ in zip("xy", made.operands, strict=False)]
    kernel = _KERNEL
    for mark, new in (
        ("@VALUES@", ", ".join(f"float {n}" for n in names)), ("@EXPRESSION@", _expression(key, made)),
        ("@PARAMETERS@", ", ".join(text["parameters"])), ("@DECLARE@", "".join(text["declare"])),
        ("@LOAD@", "".join(text["load"])), ("@UNPACK@", "".join(text["unpack"])), ("@ELEMENTS@", ", ".join(text["elements"])),
        ("@TAIL@", ", ".join(text["tail"])), ("@FLOATS@", ", ".join(text["floats"])),
    ):  # fmt: skip
        kernel = kernel.replace(mark, new)
    count = made.out.numel
    values: dict[str, object] = {
        "COUNT": count, "N": per, "THREADS": point["threads"], "ACCESSES": point["accesses"], "FAST": point["functions"] == "fast",
    }  # fmt: skip
    functions = "" if key.base_op.rstrip("_") in BINARY else _FUNCTIONS
    body = f"typedef {DEVICE_TYPES[made.out.dtype]} t;\n" + constants(values) + functions + kernel
    source = cuda_parts.assemble((made.out.dtype,), (), body, point["load"], point["store"])
    grid = max(1, -(-(count // per) // (point["threads"] * point["accesses"])))
    step = kernel_step("pointwise", grid, point["threads"], tuple(args))
    words = f"{point['accesses']} x {point['bytes']} bytes a thread, {point['load']} loads, {point['store']} stores, {point['functions']} functions"
    return DeviceSource(source, words, (step,))


RECIPE = CudaRecipe(
    name="cuda pointwise", ops=OPS, refuses=_refuses, space=_space, starts=_starts, source=_source,
    target="narrow accesses, too few of them in flight",
)  # fmt: skip
