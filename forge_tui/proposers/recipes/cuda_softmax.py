"""softmax over the last dimension, any length: one read, one write, the row stays on the chip in between.

"online": each thread's maximum and sum, merged in one reduction, exponentials computed twice. "kept": two reductions,
exponentials computed once and kept as float32. "two kernels": for few long rows, which the second kernel finds in the
second-level cache.
"""

from __future__ import annotations

from dataclasses import replace

from forge_tui.proposers.recipes import cuda_parts, cuda_rows
from forge_tui.proposers.recipes.cuda_keys import DEVICE_TYPES, FLOATS, access_bytes, constants, powers
from forge_tui.proposers.recipes.cuda_recipe import (
    MULTIPROCESSORS,
    REGISTERS,
    CudaRecipe,
    DeviceSource,
    kernel_step,
)
from forge_tui.proposers.recipes.keys import not_plain, scalar
from forge_tui.proposers.recipes.recipe import Point, Space
from forge_tui.records.card import VariantKey
from forge_tui.records.dtype import itemsize
from forge_tui.records.plan import PlanArg, Workspace

OPS = frozenset({"aten::softmax.int", "aten::_softmax"})


def _shape(key: VariantKey) -> tuple[int, int]:
    """(rows, length of a row)."""
    spec = key.tensors[0]
    return spec.numel // spec.sizes[-1], spec.sizes[-1]


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key, FLOATS)
    if reason:
        return reason
    rank = len(key.tensors[0].dims)
    if rank == 0 or scalar(key, "dim", 0) % rank != rank - 1:
        return "not over the last dimension"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    _, length = _shape(key)
    size = itemsize(key.tensors[0].dtype)
    widths = access_bytes((*key.tensors, *key.outputs), length)[:2]
    return {
        "method": ("kept", "online", *(("two kernels",) if length * size > 32_768 else ())),
        "team": cuda_rows.teams(length, size, widths[0]),
        "rows": powers(1, 128),
        "blocks": (1, 2, 4, 8, 16, 32, 64) if length * size > 32_768 else (1,),
        "bytes": widths,
        "resident": (1, 2, 4),
        "load": ("plain", "streaming"),
        "store": ("plain", "streaming"),
    }


def _split(key: VariantKey, point: Point) -> cuda_rows.Split:
    s = cuda_rows.split(_shape(key)[1], point, itemsize(key.tensors[0].dtype))
    if point["method"] == "two kernels" and s.steps > 8:
        return replace(s, held=0)  # read again for each use
    return s


def _allowed(key: VariantKey, point: Point) -> bool:
    rows, length = _shape(key)
    size = itemsize(key.tensors[0].dtype)
    kept = point["method"] == "kept"
    threads = point["team"] * point["rows"]
    if not 32 <= threads <= 1024 or threads * point["resident"] > 2048:
        return False
    if point["method"] == "two kernels":
        s = _split(key, point)
        together, accesses = threads * point["resident"], length * size // point["bytes"]
        words = max(1, point["bytes"] // 4) * (s.held or 8)
        return bool(
            point["rows"] == 1
            and point["blocks"] > 1
            and s.steps * s.threads * s.blocks < 2 * accesses
            and words + cuda_rows.OTHER_REGISTERS <= REGISTERS // together
        )
    if not cuda_rows.fits_chip(rows, length, point, size, kept):
        return False
    s = cuda_rows.split(length, point, size)
    need = s.held * (point["bytes"] // size if kept else max(1, point["bytes"] // 4)) + cuda_rows.OTHER_REGISTERS
    return bool(need <= REGISTERS // (threads * point["resident"]))


def _starts(key: VariantKey, threads: int) -> list[Point]:
    space = _space(key, threads)
    found = []
    for method in ("kept", "online"):
        for steps in (1, 2, 4, 8):
            point = _guess(key, space, method, "streaming", steps)
            if point is not None and point not in found:
                found.append(point)
    found.sort(key=lambda p: _distance(key, p))
    twice = [_twice(key, space, wave) for wave in (2 * MULTIPROCESSORS, 4 * MULTIPROCESSORS)]
    split_rows = [p for i, p in enumerate(twice) if p is not None and p not in twice[:i]]
    return [*split_rows, *found[: 5 - len(split_rows)], *({**p, "load": "plain", "store": "plain"} for p in found[:1])]


def _twice(key: VariantKey, space: Space, wave: int) -> Point | None:
    """Two kernels with at most `wave` blocks, none when rows are short or many."""
    rows, _ = _shape(key)
    for blocks in reversed(space["blocks"]):
        for threads in (512, 256, 1024, 128):
            point = {
                "method": "two kernels", "team": threads, "rows": 1, "blocks": blocks, "bytes": space["bytes"][0],
                "resident": 2, "load": "plain", "store": "streaming",
            }  # fmt: skip
            if "two kernels" in space["method"] and rows * blocks <= wave and _allowed(key, point):
                return point
    return None


def _guess(key: VariantKey, space: Space, method: str, hint: str, steps: int) -> Point | None:
    """The smallest team (then cluster) that holds a row in `steps` accesses a thread."""
    _, length = _shape(key)
    width = space["bytes"][0]
    accesses = length * itemsize(key.tensors[0].dtype) // width
    for blocks in space["blocks"]:
        for team in space["team"]:
            if team * blocks * steps >= accesses and (blocks == 1 or team >= 256):
                for threads in (256, 512, 128, 1024, 64, 32):
                    for resident in (4, 2, 1):
                        point = {
                            "method": method, "team": team, "rows": max(1, threads // team), "blocks": blocks,
                            "bytes": width, "resident": resident, "load": hint, "store": hint,
                        }  # fmt: skip
                        if (blocks == 1 or point["rows"] == 1) and _allowed(key, point):
                            return point
    return None


def _distance(key: VariantKey, point: Point) -> float:
    """Guess of quality: enough independent accesses in flight on every multiprocessor, few reductions across blocks."""
    rows, length = _shape(key)
    s = cuda_rows.split(length, point, itemsize(key.tensors[0].dtype))
    blocks = s.grid(rows)
    idle = max(0, 132 - blocks)
    return float(idle / 16 + abs(s.steps - 4) + 2 * (s.blocks > 1) + (point["method"] == "online" and s.steps <= 4))


_FUNCTIONS = """\
constexpr float LOG2E = 1.4426950408889634f;
// 16-bit results need no more than ex2.approx (2 ulp of float32); float32 results take the accurate exponential.
DEV float ex2(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The difference is taken first: a product that is rounded before it would not cancel between different maxima.
DEV float power(float x, float most) { return ACCURATE ? expf(x - most) : ex2((x - most) * LOG2E); }
struct Max {
  __device__ __forceinline__ Acc<1> operator()(const Acc<1>& a, const Acc<1>& b) const { return {{fmaxf(a.v[0], b.v[0])}}; }
};
// A row without a finite value has the maximum -inf; its exponents would be NaN where the sum must only be 0.
DEV float finite(float most) { return most == -INF ? 0.0f : most; }
struct Online {  // maximum, sum of exponentials relative to it
  __device__ __forceinline__ Acc<2> operator()(const Acc<2>& a, const Acc<2>& b) const {
    const float most = fmaxf(a.v[0], b.v[0]), base = finite(most);
    return {{most, a.v[1] * power(a.v[0], base) + b.v[1] * power(b.v[0], base)}};
  }
};
"""
_ONE = """\
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) row_softmax(const in_t* __restrict__ in, out_t* __restrict__ out) {
  int64_t row = (int64_t)blockIdx.x * PER + threadIdx.x / TEAM;
  int rank = 0;
  if constexpr (BLOCKS > 1) {
    cluster_arrive();
    row = blockIdx.x / BLOCKS;
    rank = (int)cluster_rank();
  }
  const Part part(in + row * LENGTH, rank, row < ROWS);
  out_t* to = out + row * LENGTH + (int64_t)rank * CHUNK * N;
  if constexpr (KEPT) {
    float e[STEPS][N];
    float most = -INF, sum = 0;
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
      if (part.has(s)) {
        unpack<in_t, N>(part.held[s], e[s]);
#pragma unroll
        for (int k = 0; k < N; ++k) most = fmaxf(most, e[s][k]);
      }
    Acc<1> m = team<0, TEAM, PER>(Acc<1>{{most}}, Max());
    if constexpr (BLOCKS > 1) m = blocks<0, BLOCKS, true>(m, Max());
    most = m.v[0];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
      if (part.has(s)) {
#pragma unroll
        for (int k = 0; k < N; ++k) e[s][k] = power(e[s][k], most);
        sum += pairwise(e[s]);
      }
    Acc<1> total = team<1, TEAM, PER>(Acc<1>{{sum}}, Add());
    if constexpr (BLOCKS > 1) total = blocks<1, BLOCKS, false>(total, Add());
    const float scale = 1.0f / total.v[0];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
      if (part.has(s)) {
#pragma unroll
        for (int k = 0; k < N; ++k) e[s][k] = ACCURATE ? e[s][k] / total.v[0] : e[s][k] * scale;
        put<out_t, N>(to + (int64_t)(s * TEAM + part.t) * N, e[s]);
      }
  } else {
    float most = -INF, sum = 0;
    part.each([&](const float (&v)[N], int) {
#pragma unroll
      for (int k = 0; k < N; ++k) most = fmaxf(most, v[k]);
    });
    const float base = finite(most);
    part.each([&](const float (&v)[N], int) {
      float e[N];
#pragma unroll
      for (int k = 0; k < N; ++k) e[k] = power(v[k], base);
      sum += pairwise(e);
    });
    Acc<2> a = team<0, TEAM, PER>(Acc<2>{{most, sum}}, Online());
    if constexpr (BLOCKS > 1) a = blocks<0, BLOCKS, true>(a, Online());
    const float all = a.v[0], scale = 1.0f / a.v[1];
    part.each([&](float (&v)[N], int i) {
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = ACCURATE ? power(v[k], all) / a.v[1] : power(v[k], all) * scale;
      put<out_t, N>(to + (int64_t)i * N, v);
    });
  }
}
"""
_TWO = """\
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) row_sums(const in_t* __restrict__ in, float* sums) {
  asm volatile("griddepcontrol.launch_dependents;");
  const int64_t row = blockIdx.x / BLOCKS;
  const int rank = blockIdx.x % BLOCKS;
  const Part part(in + row * LENGTH, rank, true);
  float most = -INF, sum = 0;
  part.each([&](const float (&v)[N], int) {
    float high = most;
#pragma unroll
    for (int k = 0; k < N; ++k) high = fmaxf(high, v[k]);
    const float base = finite(high);
    if (high > most) sum *= power(most, base);
    most = high;
    float e[N];
#pragma unroll
    for (int k = 0; k < N; ++k) e[k] = power(v[k], base);
    sum += pairwise(e);
  });
  const Acc<2> a = team<0, TEAM, PER>(Acc<2>{{most, sum}}, Online());
  if (threadIdx.x < 2) sums[(row * BLOCKS + rank) * 2 + threadIdx.x] = threadIdx.x == 0 ? a.v[0] : a.v[1];
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
row_values(const in_t* __restrict__ in, out_t* __restrict__ out, const float* sums) {
  const int64_t row = blockIdx.x / BLOCKS;
  const int rank = blockIdx.x % BLOCKS;
  const Part part(in + row * LENGTH, rank, true);  // the input does not depend on the first kernel
  out_t* to = out + row * LENGTH + (int64_t)rank * CHUNK * N;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  Acc<2> a{{-INF, 0}};
  for (int b = threadIdx.x % 32; b < BLOCKS; b += 32) {
    const float* s = sums + (row * BLOCKS + b) * 2;
    a = Online()(a, Acc<2>{{s[0], s[1]}});
  }
  a = lanes<32>(a, Online());
  const float all = a.v[0], scale = 1.0f / a.v[1];
  part.each([&](float (&v)[N], int i) {
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = ACCURATE ? power(v[k], all) / a.v[1] : power(v[k], all) * scale;
    put<out_t, N>(to + (int64_t)i * N, v);
  });
}
"""


def _source(key: VariantKey, point: Point) -> DeviceSource:
    rows, length = _shape(key)
    given, result = key.tensors[0], key.outputs[0]
    size = itemsize(given.dtype)
    s = _split(key, point)
    twice = point["method"] == "two kernels"
    values: dict[str, object] = {
        "ROWS": rows, "LENGTH": length, "N": point["bytes"] // size, "RESIDENT": point["resident"],
        "KEPT": point["method"] == "kept", "ACCURATE": result.dtype == "float32",
    }  # fmt: skip
    types = f"typedef {DEVICE_TYPES[given.dtype]} in_t;\ntypedef {DEVICE_TYPES[result.dtype]} out_t;\n"
    body = types + constants(values) + s.constants() + cuda_rows.FRAME + _FUNCTIONS + (_TWO if twice else _ONE)
    pieces = (cuda_parts.LANES, cuda_parts.CLUSTER, cuda_parts.MOMENTS)
    text = cuda_parts.assemble((given.dtype, result.dtype), pieces, body, point["load"], point["store"])
    args = (PlanArg("input", 0), PlanArg("output", 0))
    if twice:
        grid = rows * s.blocks
        first = kernel_step("row_sums", grid, s.threads, (PlanArg("input", 0), PlanArg("workspace")))
        second = kernel_step("row_values", grid, s.threads, (*args, PlanArg("workspace")), dependent_launch=True)
        words = f"sums, then values, {s.blocks} blocks of {s.threads} threads a row"
        return DeviceSource(text, words, (first, second), Workspace(str(grid * 8)))
    step = kernel_step("row_softmax", s.grid(rows), s.threads, args, cluster=s.blocks)
    words = f"row on the chip, {s.blocks} block(s) of {s.team} threads a row, {s.per} row(s) a block, {point['method']}"
    return DeviceSource(text, words, (step,))


RECIPE = CudaRecipe(
    name="cuda softmax", ops=OPS, refuses=_refuses, space=_space, starts=_starts, source=_source, allowed=_allowed,
    target="passes over the row",
)  # fmt: skip
