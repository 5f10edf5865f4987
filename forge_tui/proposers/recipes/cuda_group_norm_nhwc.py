"""group_norm of a channels-last input. Eager's CUDA kernel copies it to the contiguous layout first and answers in that
layout; here the input is read as it lies: sums of each channel run first, then tiles that turn pixels and channels round
in shared memory. A result in channels-last layout needs no turning and is written as it is read.
"""

from __future__ import annotations

from forge_tui.proposers.recipes import cuda_parts
from forge_tui.proposers.recipes.cuda_keys import DEVICE_TYPES, FLOATS, constants
from forge_tui.proposers.recipes.cuda_recipe import CudaRecipe, DeviceSource, kernel_step
from forge_tui.proposers.recipes.keys import contiguous, scalar, tensor
from forge_tui.proposers.recipes.recipe import Point, Space
from forge_tui.records.card import TensorSpec, VariantKey
from forge_tui.records.dtype import itemsize
from forge_tui.records.plan import PlanArg, Workspace

_SHARED = 48 * 1024  # static shared memory of a block
_PARTIAL = 12  # bytes of count, mean and squared deviations


def channels_last(spec: TensorSpec) -> bool:
    """Four dimensions, gapless, channels innermost."""
    if len(spec.dims) != 4:
        return False
    n, c, h, w = spec.sizes
    return n * c * h * w > 0 and spec.strides == (h * w * c, 1, w * c, c)


def _input(key: VariantKey) -> tuple[int, TensorSpec]:
    given = tensor(key, "input")
    if given is None:
        raise ValueError("no kernel for this key: no input")
    return given


def _refuses(key: VariantKey) -> str:
    given = tensor(key, "input")
    if key.mutates or len(key.outputs) != 1 or key.output_alias != (-1,) or given is None:
        return "does not write exactly one fresh output"
    if any(t.dtype not in FLOATS for t in (*key.tensors, *key.outputs)):
        return f"not all tensors are {', '.join(FLOATS)}"
    if contiguous(given[1]) or not channels_last(given[1]):
        return "the input is not channels-last"
    if given[1].dtype != key.outputs[0].dtype:
        return "the result has another dtype"
    if not contiguous(key.outputs[0]) and not channels_last(key.outputs[0]):
        return "the result is neither contiguous nor channels-last"
    channels, per = given[1].sizes[1], 16 // itemsize(given[1].dtype)
    if channels % per or given[1].alignment < 16:
        return f"{channels} channels are not made of aligned runs of 16 bytes"
    if channels > 4096:
        return "more than 4096 channels"
    for name in ("weight", "bias"):
        extra = tensor(key, name)
        if extra is not None and (extra[1].dims != given[1].dims[1:2] or not contiguous(extra[1])):
            return f"{name} is not one value per channel"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    return {
        "threads": (128, 256, 512),
        "blocks": (8, 16, 32, 64, 128, 256, 512),
        "tile": (32, 64, 128),
        "width": (16, 32, 64, 128),
        "load": ("plain", "streaming"),
        "store": ("plain", "streaming"),
    }


def _allowed(key: VariantKey, point: Point) -> bool:
    _, spec = _input(key)
    _, channels, high, wide = spec.sizes
    size, plane = itemsize(spec.dtype), high * wide
    per = 16 // size
    turned = (point["tile"] + 1) * point["width"] * 4
    return bool(
        point["blocks"] <= max(8, plane // 16)
        and channels % point["width"] == 0
        and point["width"] % per == 0
        and turned + 12 * point["width"] <= _SHARED
        and channels // per <= point["threads"] * 8
        and channels * _PARTIAL <= _SHARED // 2
    )


def _starts(key: VariantKey, threads: int) -> list[Point]:
    found = []
    for blocks, tile, width in ((256, 64, 64), (128, 64, 32), (256, 128, 32), (32, 64, 32), (8, 32, 16)):
        point = {"threads": 256, "blocks": blocks, "tile": tile, "width": width, "load": "plain", "store": "streaming"}
        if _allowed(key, point):
            found.append(point)
    return found[:3]


_KERNEL = """\
constexpr int RUNS = CHANNELS / N, OWN = CHANNELS / GROUPS;  // accesses of a pixel, channels of a group
constexpr int64_t PLANE = @PLANE@;
constexpr int SHARE = (int)((PLANE + BLOCKS - 1) / BLOCKS);              // pixels of a block
typedef raw_of<t, N> raw;

// Moments of each channel over a block's pixels, merged to groups: sums[sample][block][group].
extern "C" __global__ void __launch_bounds__(THREADS) channel_sums(const t* __restrict__ in, float* sums) {
  __shared__ float merged[3][CHANNELS];
  const int64_t sample = blockIdx.x / BLOCKS;
  const int block = blockIdx.x % BLOCKS;
  const int64_t from = (int64_t)block * SHARE, to = from + SHARE < PLANE ? from + SHARE : PLANE;
  const raw* x = (const raw*)(in + sample * PLANE * CHANNELS);
  asm volatile("griddepcontrol.launch_dependents;");
  for (int first = 0; first < RUNS; first += THREADS) {
    constexpr int AT_ONCE = RUNS < THREADS ? THREADS / RUNS : 1;
    const int run = RUNS < THREADS ? threadIdx.x % RUNS : first + threadIdx.x, part = RUNS < THREADS ? threadIdx.x / RUNS : 0;
    Acc<3> own[N];
    const bool busy = part < AT_ONCE && run < RUNS;
    float anchor[N] = {}, s[N] = {}, q[N] = {}, count = 0;
    if (busy && from + part < to) unpack<t, N>(x[(from + part) * RUNS + run], anchor);
    if (busy) {
#pragma unroll 4
      for (int64_t p = from + part; p < to; p += AT_ONCE) {
        float v[N];
        unpack<t, N>(load(x + p * RUNS + run), v);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float d = v[k] - anchor[k];
          s[k] += d;
          q[k] = fmaf(d, d, q[k]);
        }
        count += 1;
      }
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      Moments m{anchor[k]};
      m.s = s[k];
      m.q = q[k];
      m.n = count;
      own[k] = m.result();
    }
    // Threads of the same channels take turns, in order.
    for (int turn = 0; turn < AT_ONCE; ++turn) {
      if (busy && part == turn)
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const int c = run * N + k;
          const Acc<3> all = turn == 0 ? own[k] : Chan()(Acc<3>{{merged[0][c], merged[1][c], merged[2][c]}}, own[k]);
          merged[0][c] = all.v[0];
          merged[1][c] = all.v[1];
          merged[2][c] = all.v[2];
        }
      __syncthreads();
    }
  }
  for (int g = threadIdx.x; g < GROUPS; g += THREADS) {
    Acc<3> all{{0, 0, 0}};
    for (int c = g * OWN; c < (g + 1) * OWN; ++c) all = Chan()(all, Acc<3>{{merged[0][c], merged[1][c], merged[2][c]}});
    float* to_slot = sums + ((sample * GROUPS + g) * BLOCKS + block) * 3;
    to_slot[0] = all.v[0];
    to_slot[1] = all.v[1];
    to_slot[2] = all.v[2];
  }
}
// One warp a group: the blocks' moments to mean and scale.
extern "C" __global__ void __launch_bounds__(32) group_scales(const float* sums, float2* scales) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  Acc<3> a{{0, 0, 0}};
  for (int b = threadIdx.x; b < BLOCKS; b += 32) {
    const float* s = sums + ((int64_t)blockIdx.x * BLOCKS + b) * 3;
    a = Chan()(a, Acc<3>{{s[0], s[1], s[2]}});
  }
  a = lanes<32>(a, Chan());
  if (threadIdx.x == 0) scales[blockIdx.x] = make_float2(a.v[1], rsqrtf(a.v[2] / (PLANE * OWN) + EPSILON));
}
// Tiles of TILE pixels x WIDTH channels.
extern "C" __global__ void __launch_bounds__(THREADS)
tiles(const t* __restrict__ in, @PARAMETERS@t* __restrict__ out, const float2* scales) {
  __shared__ float turned[TURN ? WIDTH * (TILE + 1) : 1];
  __shared__ float factor[WIDTH], offset[WIDTH], mean[WIDTH];
  constexpr int64_t ACROSS = (PLANE + TILE - 1) / TILE;
  constexpr int BANDS = CHANNELS / WIDTH, WIDE = WIDTH / N;
  const int64_t sample = blockIdx.x / (ACROSS * BANDS);
  const int band = (int)(blockIdx.x / ACROSS % BANDS) * WIDTH;
  const int64_t pixel = blockIdx.x % ACROSS * TILE;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  for (int c = threadIdx.x; c < WIDTH; c += THREADS) {
    const float2 scale = scales[sample * GROUPS + (band + c) / OWN];
    mean[c] = scale.x;
    factor[c] = scale.y@WEIGHT@;
    offset[c] = @BIAS@;
  }
  __syncthreads();
  const t* from = in + (sample * PLANE + pixel) * CHANNELS + band;
#pragma unroll 4
  for (int i = threadIdx.x; i < TILE * WIDE; i += THREADS) {
    const int p = i / WIDE, c = i % WIDE * N;
    if (pixel + p < PLANE) {
      float v[N];
      unpack<t, N>(load((const raw*)(from + (int64_t)p * CHANNELS + c)), v);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        v[k] = fmaf(v[k] - mean[c + k], factor[c + k], offset[c + k]);
        if constexpr (TURN) turned[(c + k) * (TILE + 1) + p] = v[k];
      }
      if constexpr (!TURN) put<t, N>(out + (sample * PLANE + pixel + p) * CHANNELS + band + c, v);
    }
  }
  if constexpr (TURN) {
    __syncthreads();
    constexpr int LONG = PLANE % N == 0 ? N : 1;
#pragma unroll 4
    for (int i = threadIdx.x; i < WIDTH * TILE / LONG; i += THREADS) {
      const int c = i / (TILE / LONG), p = i % (TILE / LONG) * LONG;
      if (pixel + p < PLANE) {
        float v[LONG];
#pragma unroll
        for (int k = 0; k < LONG; ++k) v[k] = turned[c * (TILE + 1) + p + k];
        put<t, LONG>(out + (sample * CHANNELS + band + c) * PLANE + pixel + p, v);
      }
    }
  }
}
"""


def _source(key: VariantKey, point: Point) -> DeviceSource:
    index, spec = _input(key)
    samples, channels, high, wide = spec.sizes
    plane, groups = high * wide, int(scalar(key, "num_groups"))
    values: dict[str, object] = {
        "N": 16 // itemsize(spec.dtype), "CHANNELS": channels, "GROUPS": groups, "THREADS": point["threads"],
        "BLOCKS": point["blocks"], "TILE": point["tile"], "WIDTH": point["width"], "TURN": contiguous(key.outputs[0]),
        "EPSILON": float(scalar(key, "eps", 1e-5)),
    }  # fmt: skip
    given = [(name, tensor(key, name)) for name in ("weight", "bias")]
    tables = [(name, extra[0], DEVICE_TYPES[extra[1].dtype]) for name, extra in given if extra is not None]
    names = {name for name, _, _ in tables}
    kernel = _KERNEL
    for mark, text in (
        ("@PLANE@", str(plane)),
        ("@PARAMETERS@", "".join(f"const {kind}* __restrict__ {name}, " for name, _, kind in tables)),
        ("@WEIGHT@", " * f32(weight[band + c])" if "weight" in names else ""),
        ("@BIAS@", "f32(bias[band + c])" if "bias" in names else "0"),
    ):
        kernel = kernel.replace(mark, text)
    body = f"typedef {DEVICE_TYPES[spec.dtype]} t;\n" + constants(values) + kernel
    dtypes = [t.dtype for t in (*key.tensors, *key.outputs)]
    text = cuda_parts.assemble(dtypes, (cuda_parts.LANES, cuda_parts.MOMENTS), body, point["load"], point["store"])
    partial = samples * groups * point["blocks"] * _PARTIAL
    scales = -(-partial // 256) * 256
    at_scales = PlanArg("workspace", offset=str(scales))
    inputs = (PlanArg("input", index), *(PlanArg("input", at) for _, at, _ in tables))
    across = -(-plane // point["tile"]) * (channels // point["width"])
    steps = (
        kernel_step("channel_sums", samples * point["blocks"], point["threads"], (inputs[0], PlanArg("workspace"))),
        kernel_step("group_scales", samples * groups, 32, (PlanArg("workspace"), at_scales), dependent_launch=True),
        kernel_step(
            "tiles",
            samples * across,
            point["threads"],
            (*inputs, PlanArg("output", 0), at_scales),
            dependent_launch=True,
        ),
    )
    words = f"sums by channel in {point['blocks']} blocks, tiles of {point['tile']} pixels x {point['width']} channels"
    return DeviceSource(text, words, steps, Workspace(str(scales + samples * groups * 8)))


RECIPE = CudaRecipe(
    name="cuda group norm channels-last", ops=frozenset({"aten::group_norm"}), refuses=_refuses, space=_space,
    starts=_starts, source=_source, allowed=_allowed, target="the copy to the contiguous layout",
)  # fmt: skip
