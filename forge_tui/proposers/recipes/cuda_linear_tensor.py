"""linear with 1 to 8 rows on the tensor cores, for 16-bit weights: products of 16 outputs with 8 rows, sums in float32.

Each thread reads 16 bytes of consecutive inner elements. The instruction's own order of inner elements would need narrow
accesses; weights and rows are given in the same other order instead, which leaves every sum the same.
"""

from __future__ import annotations

from forge_tui.proposers.recipes import cuda_linear, cuda_parts
from forge_tui.proposers.recipes.cuda_keys import DEVICE_TYPES, access_bytes, constants
from forge_tui.proposers.recipes.cuda_recipe import CudaRecipe, DeviceSource, kernel_step
from forge_tui.proposers.recipes.keys import tensor
from forge_tui.proposers.recipes.recipe import Point, Space
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import PlanArg

CHUNK = 32  # inner elements of two instructions: 8 of each of 4 threads
OUTPUTS = 16  # of one instruction (m16n8k16)
_NAMES = {"bfloat16": "bf16", "float16": "f16"}


def _refuses(key: VariantKey) -> str:
    reason = cuda_linear.refuses(key)
    if reason:
        return reason
    given, weight = tensor(key, "input"), tensor(key, "weight")
    if given is None or weight is None or weight[1].dtype not in _NAMES:
        return "tensor cores take 16-bit weights"
    inner = weight[1].sizes[1]
    if inner % CHUNK or 16 not in access_bytes((given[1], weight[1]), inner):
        return f"the inner dimension {inner} is not made of aligned runs of {CHUNK}"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    return {
        "split": (1, 2, 4, 8, 16),
        "threads": (64, 128, 256, 512),
        "unroll": (1, 2, 4, 8),
        "load": ("plain", "streaming", "read-only"),
    }


def _allowed(key: VariantKey, point: Point) -> bool:
    _, inner, _ = cuda_linear.shape(key)
    chunks = inner // CHUNK
    registers = 12 * point["unroll"] + 40
    return bool(
        point["threads"] // 32 % point["split"] == 0
        and point["split"] * point["unroll"] <= chunks
        and registers <= 65_536 // point["threads"]
    )


def _starts(key: VariantKey, threads: int) -> list[Point]:
    found = []
    for share, size, unroll in ((8, 256, 4), (4, 256, 8), (16, 512, 2), (2, 128, 4), (1, 64, 2)):
        point = {"split": share, "threads": size, "unroll": unroll, "load": "streaming"}
        if _allowed(key, point):
            found.append(point)
    return found[:3]


_KERNEL = """\
constexpr int WARPS = THREADS / 32, SETS = WARPS / SPLIT;  // sets of 16 outputs of a block
constexpr int CHUNKS = INNER / 32, OWN = (CHUNKS + SPLIT - 1) / SPLIT;  // of a row, of a warp

DEV void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.@NAME@.@NAME@.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(THREADS)
few_rows_mma(const t* __restrict__ in, const t* __restrict__ weight, @BIAS_PARAMETER@t* __restrict__ out) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = lane / 4, quarter = lane % 4;
  const int set = warp / SPLIT, share = warp % SPLIT;
  const int64_t first = ((int64_t)blockIdx.x * SETS + set) * 16;
  const int64_t low = first + own < OUTPUTS ? first + own : OUTPUTS - 1, high = first + own + 8 < OUTPUTS ? first + own + 8 : OUTPUTS - 1;
  const uint4* w0 = (const uint4*)(weight + low * INNER) + quarter;
  const uint4* w1 = (const uint4*)(weight + high * INNER) + quarter;
  const uint4* x = (const uint4*)(in + (int64_t)(own < ROWS ? own : 0) * INNER) + quarter;
  float c[4] = {}, d[4] = {};
  const int end = (share + 1) * OWN < CHUNKS ? (share + 1) * OWN : CHUNKS;
  for (int at = share * OWN; at < end; at += UNROLL) {
    uint4 a[UNROLL] = {}, b[UNROLL] = {}, r[UNROLL] = {};
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (at + u < end) {
        a[u] = load(w0 + (at + u) * 4);
        b[u] = load(w1 + (at + u) * 4);
      }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (at + u < end && own < ROWS) r[u] = __ldg(x + (at + u) * 4);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      multiply(c, a[u].x, b[u].x, a[u].y, b[u].y, r[u].x, r[u].y);
      multiply(d, a[u].z, b[u].z, a[u].w, b[u].w, r[u].z, r[u].w);
    }
  }
  __shared__ float part[SETS][SPLIT][8][16];  // by row and output
#pragma unroll
  for (int k = 0; k < 4; ++k) part[set][share][quarter * 2 + k % 2][own + k / 2 * 8] = c[k] + d[k];
  __syncthreads();
  for (int i = share * 32 + lane; i < ROWS * 16; i += SPLIT * 32) {
    const int64_t o = first + i % 16;
    float s = 0;
#pragma unroll
    for (int k = 0; k < SPLIT; ++k) s += part[set][k][i / 16][i % 16];
    if (o < OUTPUTS) out[(int64_t)(i / 16) * OUTPUTS + o] = from_f32<t>(s@BIAS@);
  }
}
"""


def _source(key: VariantKey, point: Point) -> DeviceSource:
    rows, inner, outputs = cuda_linear.shape(key)
    given, weight, bias = tensor(key, "input"), tensor(key, "weight"), tensor(key, "bias")
    if given is None or weight is None:
        raise ValueError("no kernel for this key: no input or no weight")
    values: dict[str, object] = {
        "ROWS": rows, "INNER": inner, "OUTPUTS": outputs, "SPLIT": point["split"], "THREADS": point["threads"],
        "UNROLL": point["unroll"],
    }  # fmt: skip
    kernel = _KERNEL.replace("@BIAS_PARAMETER@", "const t* __restrict__ bias, " if bias else "")
    kernel = kernel.replace("@BIAS@", " + f32(bias[o])" if bias else "").replace("@NAME@", _NAMES[weight[1].dtype])
    body = f"typedef {DEVICE_TYPES[weight[1].dtype]} t;\n" + constants(values) + kernel
    text = cuda_parts.assemble((weight[1].dtype,), (), body, point["load"], "plain")
    sets = point["threads"] // 32 // point["split"]
    grid = -(-outputs // (sets * OUTPUTS))
    inputs = [given[0], weight[0], *([bias[0]] if bias else [])]
    args = (*(PlanArg("input", i) for i in inputs), PlanArg("output", 0))
    words = f"tensor cores, inner dimension split {point['split']} ways, {point['unroll']} x 2 accesses in flight"
    return DeviceSource(text, words, (kernel_step("few_rows_mma", grid, point["threads"], args),))


RECIPE = CudaRecipe(
    name="cuda linear tensor cores", ops=frozenset({"aten::linear"}), refuses=_refuses, space=_space, starts=_starts,
    source=_source, allowed=_allowed, target="reading the weight at the memory's speed",
)  # fmt: skip
