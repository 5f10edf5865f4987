"""linear with 1 to 8 rows: each weight is read once, in wide accesses, and multiplied with every row in float32.

A warp takes some outputs; several warps share the inner dimension of one output (split-K) and meet in shared memory.
"""

from __future__ import annotations

from forge_tui.proposers.recipes import cuda_parts
from forge_tui.proposers.recipes.cuda_keys import DEVICE_TYPES, FLOATS, access_bytes, constants
from forge_tui.proposers.recipes.cuda_recipe import REGISTERS, CudaRecipe, DeviceSource, kernel_step
from forge_tui.proposers.recipes.keys import not_plain, tensor
from forge_tui.proposers.recipes.recipe import Point, Space
from forge_tui.records.card import VariantKey
from forge_tui.records.dtype import itemsize
from forge_tui.records.plan import PlanArg

MOST_ROWS = 8


def shape(key: VariantKey) -> tuple[int, int, int]:
    """(rows, inner, outputs)."""
    given, weight = tensor(key, "input"), tensor(key, "weight")
    if given is None or weight is None:
        raise ValueError("no kernel for this key: no input or no weight")
    outputs, inner = weight[1].sizes
    return given[1].numel // inner, inner, outputs


def refuses(key: VariantKey) -> str:
    """Why a kernel for few rows can't serve the key, "" when it can."""
    reason = not_plain(key, FLOATS)
    if reason:
        return reason
    given, weight = tensor(key, "input"), tensor(key, "weight")
    if given is None or weight is None or len(weight[1].dims) != 2 or not given[1].dims:
        return "no input or no matrix of weights"
    if len({t.dtype for t in (*key.tensors, *key.outputs)}) != 1:
        return "mixed dtypes"
    rows, _, _ = shape(key)
    return f"{rows} rows; this kernel handles 1 to {MOST_ROWS}" if rows > MOST_ROWS else ""


def _space(key: VariantKey, threads: int) -> Space:
    _, inner, _ = shape(key)
    given, weight = tensor(key, "input"), tensor(key, "weight")
    specs = [t[1] for t in (given, weight) if t is not None]
    return {
        "outputs": (1, 2, 4, 8),
        "split": (1, 2, 4, 8, 16),
        "threads": (64, 128, 256, 512, 1024),
        "unroll": (1, 2, 4, 8, 16),
        "bytes": access_bytes(specs, inner)[:2],
        "load": ("plain", "streaming", "read-only"),
    }


def _allowed(key: VariantKey, point: Point) -> bool:
    rows, inner, outputs = shape(key)
    size = itemsize(key.tensors[0].dtype)
    accesses = inner * size // point["bytes"]
    warps = point["threads"] // 32
    steps = -(-accesses // (32 * point["split"]))
    words = max(1, point["bytes"] // 4)
    values = point["bytes"] // size
    registers = point["unroll"] * words * point["outputs"] + rows * point["outputs"] + rows * words + values + 28
    return bool(
        warps % point["split"] == 0
        and point["unroll"] <= max(1, steps)
        and (point["split"] == 1 or accesses >= 16 * point["split"])
        and outputs >= point["outputs"]
        and registers <= min(255, REGISTERS // point["threads"])
    )


def _starts(key: VariantKey, threads: int) -> list[Point]:
    space = _space(key, threads)
    rows, _, outputs = shape(key)
    width = space["bytes"][0]
    base = {"bytes": width, "load": "streaming"}
    found: list[Point] = []
    for columns, share, size, unroll in (
        (1, 1, 256, 8), (2, 1, 256, 4), (1, 2, 256, 4), (4, 1, 128, 2), (2, 4, 256, 4), (4, 2, 256, 2), (1, 8, 256, 2),
        (1, 4, 256, 1), (1, 1, 128, 1),
    ):  # fmt: skip
        point = {**base, "outputs": columns, "split": share, "threads": size, "unroll": unroll}
        if _allowed(key, point):
            found.append(point)
    # Enough warps to fill the device come first; with many rows, several outputs share each row that was read.
    found.sort(key=lambda p: (outputs * p["split"] // p["outputs"] < 132 * 16, rows > 2 and p["outputs"] == 1))
    return found[:4]


_KERNEL = """\
constexpr int WARPS = THREADS / 32, SETS = WARPS / SPLIT;  // sets of outputs of a block
constexpr int VECS = INNER / N, STRIDE = 32 * SPLIT;
typedef raw_of<t, N> raw;

extern "C" __global__ void __launch_bounds__(THREADS)
few_rows(const t* __restrict__ in, const t* __restrict__ weight, @BIAS_PARAMETER@t* __restrict__ out) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int set = warp / SPLIT, share = warp % SPLIT;
  const int64_t first = ((int64_t)blockIdx.x * SETS + set) * COLUMNS;
  const raw* w[COLUMNS];
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) w[c] = (const raw*)(weight + (first + c < OUTPUTS ? first + c : OUTPUTS - 1) * INNER);
  float sum[ROWS][COLUMNS] = {};
  for (int at = share * 32 + lane; at < VECS; at += UNROLL * STRIDE) {
    raw some[UNROLL][COLUMNS];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
        if (at + u * STRIDE < VECS) some[u][c] = load(w[c] + at + u * STRIDE);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (at + u * STRIDE < VECS) {
        raw given[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) given[r] = __ldg((const raw*)(in + (int64_t)r * INNER) + at + u * STRIDE);
        float a[COLUMNS][N];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) unpack<t, N>(some[u][c], a[c]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          float x[N];
          unpack<t, N>(given[r], x);
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int k = 0; k < N; ++k) sum[r][c] = fmaf(a[c][k], x[k], sum[r][c]);
        }
      }
  }
  __shared__ float part[SETS][SPLIT][ROWS * COLUMNS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const Acc<1> a = lanes<32>(Acc<1>{{sum[r][c]}}, Add());
      if (lane == (r * COLUMNS + c) % 32) part[set][share][r * COLUMNS + c] = a.v[0];
    }
  if constexpr (SPLIT > 1) __syncthreads(); else __syncwarp();
  if (share == 0)
    for (int i = lane; i < ROWS * COLUMNS; i += 32) {
      const int64_t o = first + i % COLUMNS;
      float s = 0;
#pragma unroll
      for (int k = 0; k < SPLIT; ++k) s += part[set][k][i];
      if (o < OUTPUTS) out[(int64_t)(i / COLUMNS) * OUTPUTS + o] = from_f32<t>(s@BIAS@);
    }
}
"""


def _source(key: VariantKey, point: Point) -> DeviceSource:
    rows, inner, outputs = shape(key)
    given, weight, bias = tensor(key, "input"), tensor(key, "weight"), tensor(key, "bias")
    if given is None or weight is None:
        raise ValueError("no kernel for this key: no input or no weight")
    values: dict[str, object] = {
        "ROWS": rows, "INNER": inner, "OUTPUTS": outputs, "N": point["bytes"] // itemsize(given[1].dtype),
        "COLUMNS": point["outputs"], "SPLIT": point["split"], "THREADS": point["threads"], "UNROLL": point["unroll"],
    }  # fmt: skip
    kernel = _KERNEL.replace("@BIAS_PARAMETER@", "const t* __restrict__ bias, " if bias else "")
    kernel = kernel.replace("@BIAS@", " + f32(bias[o])" if bias else "")
    body = f"typedef {DEVICE_TYPES[given[1].dtype]} t;\n" + constants(values) + kernel
    text = cuda_parts.assemble((given[1].dtype,), (cuda_parts.LANES,), body, point["load"], "plain")
    sets = point["threads"] // 32 // point["split"]
    grid = -(-outputs // (sets * point["outputs"]))
    inputs = [given[0], weight[0], *([bias[0]] if bias else [])]
    args = (*(PlanArg("input", i) for i in inputs), PlanArg("output", 0))
    step = kernel_step("few_rows", grid, point["threads"], args)
    words = f"{point['outputs']} output(s) a warp, inner dimension split {point['split']} ways, {point['unroll']} accesses in flight"
    return DeviceSource(text, words, (step,))


RECIPE = CudaRecipe(
    name="cuda linear few rows", ops=frozenset({"aten::linear"}), refuses=refuses, space=_space, starts=_starts,
    source=_source, allowed=_allowed, target="reading the weight at the memory's speed",
)  # fmt: skip
