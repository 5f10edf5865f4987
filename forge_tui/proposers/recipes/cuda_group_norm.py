"""group_norm on contiguous tensors. A group is one contiguous row, of any size; several blocks share a large one.

"cluster": the group stays on the chip of up to 16 neighbouring blocks. "resident": as many blocks as the device holds work
on a few groups at a time and meet through counters in memory; what does not fit on the chip is read again while the
second-level cache still has it. "two kernels": sums, then values, in the order that finds the last groups in the cache.
"""

from __future__ import annotations

from dataclasses import replace

from forge_tui.proposers.recipes import cuda_parts, cuda_rows
from forge_tui.proposers.recipes.cuda_keys import DEVICE_TYPES, FLOATS, access_bytes, constants
from forge_tui.proposers.recipes.cuda_recipe import (
    MULTIPROCESSORS,
    REGISTERS,
    SHARED_BYTES,
    CudaRecipe,
    DeviceSource,
    kernel_step,
)
from forge_tui.proposers.recipes.keys import example_extent, not_plain, scalar, tensor
from forge_tui.proposers.recipes.recipe import Point, Space
from forge_tui.records.card import TensorSpec, VariantKey
from forge_tui.records.dtype import itemsize
from forge_tui.records.plan import PlanArg, Step, Workspace

_PARTIAL = 12  # bytes of a block's count, mean and squared deviations


def _input(key: VariantKey) -> tuple[int, TensorSpec]:
    given = tensor(key, "input")
    if given is None:
        raise ValueError("no kernel for this key: no input")
    return given


def _shape(key: VariantKey) -> tuple[int, int, int]:
    """(rows = samples x groups, channels of a group, elements of a channel)."""
    _, spec = _input(key)
    groups = scalar(key, "num_groups")
    return spec.sizes[0] * groups, spec.sizes[1] // groups, example_extent(spec, range(2, len(spec.dims)))


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key, FLOATS)
    if reason:
        return reason
    given = tensor(key, "input")
    if given is None or len(given[1].dims) < 2:
        return "no channels"
    if given[1].sizes[1] // scalar(key, "num_groups") > 2048:
        return "more than 2048 channels in a group"
    for name in ("weight", "bias"):
        extra = tensor(key, name)
        if extra is not None and extra[1].dims != given[1].dims[1:2]:
            return f"{name} is not one value per channel"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    _, channels, plane = _shape(key)
    size = itemsize(_input(key)[1].dtype)
    length = channels * plane
    large = length * size > 32_768
    big = length * size > 262_144
    # Whole accesses of one channel when the plane allows, else accesses of the group with a channel per element.
    specs = (_input(key)[1], key.outputs[0])
    of_plane, of_group = access_bytes(specs, plane), access_bytes(specs, length)
    widths = of_plane if of_plane[:1] == of_group[:1] else of_group
    return {
        "method": ("cluster", *(("resident", "two kernels") if large else ())),
        "threads": (32, 64, 128, 256, 512, 1024) if not large else (128, 256, 512, 1024),
        "blocks": (1, 2, 4, 8, 16, *((32, 33, 64, 66, 128) if big else ())) if large else (1,),
        "shelf": (0, 4, 8, 10, 12) if big else (0,),
        "held": (0, 4, 6, 8) if big else (0,),
        "bytes": widths[:2],
        "resident": (1, 2, 4),
        "order": ("forward", "backward") if large else ("forward",),
        "load": ("plain", "streaming"),
        "store": ("plain", "streaming"),
    }


def _split(key: VariantKey, point: Point) -> cuda_rows.Split:
    _, channels, plane = _shape(key)
    size = itemsize(_input(key)[1].dtype)
    if point["method"] == "cluster":
        return cuda_rows.split(channels * plane, {**point, "team": point["threads"], "rows": 1}, size)
    accesses = channels * plane * size // point["bytes"]
    steps = cuda_rows.rounded_up(cuda_rows.rounded_up(accesses, point["blocks"]), point["threads"])
    held = min(point["held"], steps)
    return cuda_rows.Split(point["threads"], 1, point["blocks"], steps, held, min(point["shelf"], steps - held))


def _allowed(key: VariantKey, point: Point) -> bool:
    rows, channels, plane = _shape(key)
    size = itemsize(_input(key)[1].dtype)
    length = channels * plane
    s = _split(key, point)
    together = s.threads * point["resident"]
    if together > 2048 or (s.shared_bytes + 4096 + 8 * channels) * point["resident"] > SHARED_BYTES:
        return False
    if point["method"] == "cluster":
        wide = {**point, "team": point["threads"], "rows": 1}
        words = max(1, point["bytes"] // 4)
        return bool(
            point["held"] == 0
            and point["order"] == "forward"
            and point["shelf"] <= s.steps
            and cuda_rows.fits_chip(rows, length, wide, size)
            and s.held * words + cuda_rows.OTHER_REGISTERS <= REGISTERS // together
        )
    accesses = length * size // point["bytes"]
    if s.steps * s.threads * s.blocks >= 2 * accesses or (point["bytes"] < 16 and point["shelf"]):
        return False
    if point["method"] == "two kernels":
        return bool(point["held"] == 0 and point["shelf"] == 0 and point["blocks"] > 1)
    kept = s.held * max(1, point["bytes"] // 4)
    batch = 32 if s.held + s.shelf < s.steps else 0  # registers of the accesses that are read again
    return bool(
        point["order"] == "forward"
        and point["blocks"] >= 8
        and s.held == point["held"]
        and s.shelf == point["shelf"]
        and _at_once(rows, point) > 0
        and kept + batch + cuda_rows.OTHER_REGISTERS <= REGISTERS // together
    )


def _at_once(rows: int, point: Point) -> int:
    """Groups that all resident blocks of the device together can work on."""
    return min(rows, int(MULTIPROCESSORS * point["resident"] // point["blocks"]))


_CLUSTERS = ((1024, 0, 2), (512, 0, 2), (256, 0, 4), (128, 0, 4), (64, 0, 4), (32, 0, 4), (1024, 0, 1), (512, 0, 1), (1024, 8, 1), (1024, 12, 1))  # fmt: skip
_RESIDENTS = ((32, 512, 8, 8, 2), (32, 512, 10, 8, 1), (16, 512, 10, 6, 2), (16, 512, 10, 6, 1), (8, 512, 0, 8, 2))


def _starts(key: VariantKey, threads: int) -> list[Point]:
    space = _space(key, threads)
    rows, channels, plane = _shape(key)
    nbytes = channels * plane * itemsize(_input(key)[1].dtype)
    found: list[Point] = []
    base = {
        "method": "cluster", "threads": 512, "blocks": 1, "shelf": 0, "held": 0,
        "bytes": space["bytes"][0], "resident": 1, "order": "forward", "load": "plain", "store": "streaming",
    }  # fmt: skip
    # Large enough clusters that every multiprocessor has work, then the smallest that hold a group.
    wanted = [b for b in space["blocks"] if b <= 16]
    wanted.sort(key=lambda b: (b * rows < MULTIPROCESSORS - 8, b))
    for blocks in wanted:
        for size, shelf, resident in _CLUSTERS:
            point = {**base, "threads": size, "blocks": blocks, "shelf": shelf, "resident": resident}
            if len(found) < 3 and _allowed(key, point):
                found.append(point)
                break
    if nbytes > 262_144:
        for blocks, size, shelf, held, resident in _RESIDENTS:
            point = {**base, "method": "resident", "threads": size, "blocks": blocks, "shelf": shelf, "held": held}
            point["resident"] = resident
            if _allowed(key, point):
                found.append(point)
    if "two kernels" in space["method"]:
        for blocks in (max([b for b in space["blocks"] if rows * b <= 2 * MULTIPROCESSORS] or [2]), 64):
            point = {**base, "method": "two kernels", "blocks": blocks, "order": "backward", "resident": 2}
            if nbytes * rows < 32 << 20:
                point["order"] = "forward"
            if point not in found and blocks in space["blocks"] and _allowed(key, point):
                found.append(point)
    if nbytes > 1 << 20:  # too large for clusters to keep the memory busy
        found.sort(key=lambda p: p["method"] == "cluster")
    return found[:8]


_AFFINE = """\
constexpr int64_t PLANE = @PLANE@;
constexpr int CHANNELS = @CHANNELS@, GROUPS = @GROUPS@;  // channels of a group, groups of a sample
__shared__ float factor[CHANNELS], offset[CHANNELS];

// The group's factors and offsets per channel; they hold until the next call of this function.
DEV void prepare(int64_t row, float scale@TABLE_PARAMETERS@) {
  const int first = (int)(row % GROUPS) * CHANNELS;
  for (int c = threadIdx.x; c < CHANNELS; c += THREADS) {
    factor[c] = scale@WEIGHT@;
    offset[c] = @BIAS@;
  }
  __syncthreads();
}
DEV void normalise(float (&v)[N], int64_t at, float mean) {  // at: index of the first element in the group
  if constexpr (PLANE % N == 0) {
    const int c = (int)(at / PLANE);
    const float f = factor[c], o = offset[c];
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = fmaf(v[k] - mean, f, o);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int c = (int)((at + k) / PLANE);
      v[k] = fmaf(v[k] - mean, factor[c], offset[c]);
    }
  }
}
"""
_CLUSTER = """\
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
group_norm(const in_t* __restrict__ in, @PARAMETERS@out_t* __restrict__ out) {
  if constexpr (BLOCKS > 1) cluster_arrive();
  const int64_t row = blockIdx.x / BLOCKS;
  const int rank = BLOCKS > 1 ? (int)cluster_rank() : 0;
  const Part part(in + row * LENGTH, rank, true);
  Moments moments{part.anchor()};
  part.arrive();
  part.each([&](const float (&v)[N], int) { moments.add(v); });
  Acc<3> a = team<0, TEAM, PER>(moments.result(), Chan());
  if constexpr (BLOCKS > 1) a = blocks<0, BLOCKS, true>(a, Chan());
  prepare(row, rsqrtf(a.v[2] / LENGTH + EPSILON)@TABLES@);
  const int64_t first = (int64_t)rank * CHUNK * N;
  out_t* to = out + row * LENGTH + first;
  part.each([&](float (&v)[N], int i) {
    normalise(v, first + (int64_t)i * N, a.v[1]);
    put<out_t, N>(to + (int64_t)i * N, v);
  });
}
"""
_RESIDENT = """\
// Blocks of a group leave their sums in memory, count themselves in, and wait for each other. All blocks of the grid are
// resident (cooperative launch), so the wait ends.
DEV Acc<3> meet(Acc<3> a, float* sums, unsigned* arrived, int64_t row, int rank) {
  float* slots = sums + row * BLOCKS * 3;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int k = 0; k < 3; ++k) __stcg(slots + rank * 3 + k, a.v[k]);
    unsigned seen;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived + row) : "memory");
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived + row) : "memory");
    while (seen < BLOCKS);
  }
  __syncthreads();
  a = {{0, 0, 0}};
  for (int b = threadIdx.x % 32; b < BLOCKS; b += 32) {
    Acc<3> other;
#pragma unroll
    for (int k = 0; k < 3; ++k) other.v[k] = __ldcg(slots + b * 3 + k);
    a = Chan()(a, other);
  }
  return lanes<32>(a, Chan());
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
group_norm(const in_t* __restrict__ in, @PARAMETERS@out_t* __restrict__ out, unsigned* arrived, float* sums) {
  const int rank = blockIdx.x % BLOCKS;
  for (int64_t row = blockIdx.x / BLOCKS; row < ROWS; row += AT_ONCE) {
    const Part part(in + row * LENGTH, rank, true);
    Moments moments{part.anchor()};
    part.arrive();
    part.each([&](const float (&v)[N], int) { moments.add(v); });
    const Acc<3> a = meet(team<0, TEAM, PER>(moments.result(), Chan()), sums, arrived, row, rank);
    prepare(row, rsqrtf(a.v[2] / LENGTH + EPSILON)@TABLES@);
    const int64_t first = (int64_t)rank * CHUNK * N;
    out_t* to = out + row * LENGTH + first;
    part.each([&](float (&v)[N], int i) {
      normalise(v, first + (int64_t)i * N, a.v[1]);
      put<out_t, N>(to + (int64_t)i * N, v);
    });
    __syncthreads();
  }
}
"""
_TWO = """\
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) group_sums(const in_t* __restrict__ in, float* sums) {
  const int64_t row = blockIdx.x / BLOCKS;
  const int rank = blockIdx.x % BLOCKS;
  asm volatile("griddepcontrol.launch_dependents;");
  const Part part(in + row * LENGTH, rank, true);
  Moments moments{part.anchor()};
  part.each([&](const float (&v)[N], int) { moments.add(v); });
  const Acc<3> a = team<0, TEAM, PER>(moments.result(), Chan());
  if (threadIdx.x < 3) sums[(row * BLOCKS + rank) * 3 + threadIdx.x] = threadIdx.x == 0 ? a.v[0] : threadIdx.x == 1 ? a.v[1] : a.v[2];
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
group_values(const in_t* __restrict__ in, @PARAMETERS@out_t* __restrict__ out, const float* sums) {
  const int block = BACKWARD ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const int64_t row = block / BLOCKS;
  const int rank = block % BLOCKS;
  const Part part(in + row * LENGTH, rank, true);  // the input does not depend on the first kernel
  asm volatile("griddepcontrol.wait;" ::: "memory");
  Acc<3> a = {{0, 0, 0}};
  for (int b = threadIdx.x % 32; b < BLOCKS; b += 32) {
    const float* s = sums + (row * BLOCKS + b) * 3;
    a = Chan()(a, Acc<3>{{s[0], s[1], s[2]}});
  }
  a = lanes<32>(a, Chan());
  prepare(row, rsqrtf(a.v[2] / LENGTH + EPSILON)@TABLES@);
  const int64_t first = (int64_t)rank * CHUNK * N;
  out_t* to = out + row * LENGTH + first;
  part.each([&](float (&v)[N], int i) {
    normalise(v, first + (int64_t)i * N, a.v[1]);
    put<out_t, N>(to + (int64_t)i * N, v);
  });
}
"""


def _source(key: VariantKey, point: Point) -> DeviceSource:
    index, spec = _input(key)
    rows, channels, plane = _shape(key)
    s = _split(key, point)
    if point["method"] == "two kernels":
        s = replace(s, held=s.steps if s.steps <= 8 else 0, shelf=0)
    values: dict[str, object] = {
        "ROWS": rows, "LENGTH": channels * plane, "N": point["bytes"] // itemsize(spec.dtype), "RESIDENT": point["resident"],
        "EPSILON": float(scalar(key, "eps", 1e-5)), "AT_ONCE": max(1, _at_once(rows, point)), "BACKWARD": point["order"] == "backward",
    }  # fmt: skip
    given = [(name, tensor(key, name)) for name in ("weight", "bias")]
    tables = [(name, extra[0], DEVICE_TYPES[extra[1].dtype]) for name, extra in given if extra is not None]
    names = {name for name, _, _ in tables}
    marks = {
        "@PLANE@": str(plane), "@CHANNELS@": str(channels), "@GROUPS@": str(scalar(key, "num_groups")),
        "@TABLE_PARAMETERS@": "".join(f", const {kind}* {name}" for name, _, kind in tables),
        "@WEIGHT@": " * f32(weight[first + c])" if "weight" in names else "",
        "@BIAS@": "f32(bias[first + c])" if "bias" in names else "0",
        "@PARAMETERS@": "".join(f"const {kind}* __restrict__ {name}, " for name, _, kind in tables),
        "@TABLES@": "".join(f", {name}" for name, _, _ in tables),
    }  # fmt: skip
    kernel = _AFFINE + {"cluster": _CLUSTER, "resident": _RESIDENT, "two kernels": _TWO}[point["method"]]
    for mark, text in marks.items():
        kernel = kernel.replace(mark, text)
    types = f"typedef {DEVICE_TYPES[spec.dtype]} in_t;\ntypedef {DEVICE_TYPES[key.outputs[0].dtype]} out_t;\n"
    body = types + constants(values) + s.constants() + cuda_rows.FRAME + kernel
    pieces = (cuda_parts.LANES, cuda_parts.CLUSTER, cuda_parts.MOMENTS)
    dtypes = [t.dtype for t in (*key.tensors, *key.outputs)]
    text = cuda_parts.assemble(dtypes, pieces, body, point["load"], point["store"])
    inputs = (PlanArg("input", index), *(PlanArg("input", at) for _, at, _ in tables))
    steps, workspace = _steps(rows, s, point, inputs)
    words = {
        "cluster": f"group on the chip of {s.blocks} block(s) of {s.threads} threads, {s.shelf} of {s.steps} accesses in shared memory",
        "resident": f"{_at_once(rows, point)} groups at a time by {s.blocks} resident blocks each, {s.held}+{s.shelf} of {s.steps} accesses kept",
        "two kernels": f"sums, then values {point['order']}, {s.blocks} blocks a group",
    }[point["method"]]
    return DeviceSource(text, words, steps, workspace)


def _steps(
    rows: int, s: cuda_rows.Split, point: Point, inputs: tuple[PlanArg, ...]
) -> tuple[tuple[Step, ...], Workspace]:
    out = PlanArg("output", 0)
    if point["method"] == "cluster":
        shared = s.shared_bytes
        step = kernel_step("group_norm", s.grid(rows), s.threads, (*inputs, out), cluster=s.blocks, shared_bytes=shared)
        return (step,), Workspace()
    sums = rows * s.blocks * _PARTIAL
    if point["method"] == "two kernels":
        first = kernel_step("group_sums", rows * s.blocks, s.threads, (inputs[0], PlanArg("workspace")))
        second = kernel_step(
            "group_values", rows * s.blocks, s.threads, (*inputs, out, PlanArg("workspace")), dependent_launch=True
        )
        return (first, second), Workspace(str(sums))
    counters = -(-rows * 4 // 256) * 256
    args = (*inputs, out, PlanArg("workspace"), PlanArg("workspace", offset=str(counters)))
    step = kernel_step(
        "group_norm", _at_once(rows, point) * s.blocks, s.threads, args, shared_bytes=s.shared_bytes, cooperative=True
    )
    return (Step("memset", offset="0", bytes=str(counters)), step), Workspace(str(counters + sums))


RECIPE = CudaRecipe(
    name="cuda group norm", ops=frozenset({"aten::group_norm"}), refuses=_refuses, space=_space, starts=_starts,
    source=_source, allowed=_allowed, target="passes over each group",
)  # fmt: skip
