"""mean and sum over trailing dimensions, adaptive_avg_pool2d to one value a plane.

"tile": neighbouring short rows come in through shared memory as one run of wide accesses. "team": threads of a block, or
a cluster of blocks, share a long row.
"""

from __future__ import annotations

from forge_tui.proposers.recipes import cuda_parts
from forge_tui.proposers.recipes.cuda_keys import DEVICE_TYPES, FLOATS, access_bytes, constants, powers
from forge_tui.proposers.recipes.cuda_recipe import CudaRecipe, DeviceSource, kernel_step
from forge_tui.proposers.recipes.keys import example_extent, not_plain, scalar
from forge_tui.proposers.recipes.recipe import Point, Space
from forge_tui.records.card import VariantKey
from forge_tui.records.dtype import itemsize
from forge_tui.records.plan import PlanArg

OPS = frozenset({"aten::mean.dim", "aten::mean", "aten::sum.dim_IntList", "aten::sum", "aten::adaptive_avg_pool2d"})
_TILE_BYTES = 48 * 1024  # of a block's static shared memory


def _reduced(key: VariantKey) -> int:
    """How many trailing dimensions are reduced; 0 when the call reduces anything else."""
    rank = len(key.tensors[0].dims)
    if key.base_op == "adaptive_avg_pool2d":
        size = scalar(key, "output_size")
        return 2 if rank >= 2 and set([size] if isinstance(size, int) else size) == {1} else 0
    dims = scalar(key, "dim") or list(range(rank))
    wanted = {d % rank for d in ([dims] if isinstance(dims, int) else dims)} if rank else set()
    return len(wanted) if wanted == set(range(rank - len(wanted), rank)) else 0


def _shape(key: VariantKey) -> tuple[int, int]:
    """(rows, length of a row)."""
    spec, count = key.tensors[0], _reduced(key)
    rank = len(spec.dims)
    return example_extent(spec, range(rank - count)), example_extent(spec, range(rank - count, rank))


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key, FLOATS)
    if reason:
        return reason
    if not _reduced(key):
        return "reduces other than trailing dimensions" if key.base_op != "adaptive_avg_pool2d" else "not to 1x1"
    return ""


def _short(key: VariantKey) -> bool:
    _, length = _shape(key)
    return length * itemsize(key.tensors[0].dtype) <= 2048


def _space(key: VariantKey, threads: int) -> Space:
    _, length = _shape(key)
    size = itemsize(key.tensors[0].dtype)
    return {
        "method": ("tile", "team") if _short(key) else ("team",),
        "rows": powers(1, 256),
        "team": powers(1, 1024),
        "blocks": (1, 2, 4, 8, 16) if length * size > 16_384 else (1,),
        "bytes": access_bytes(key.tensors, length)[:2],
        # A float32 result shows every rounding of a plain sum, where eager's order happens to have none.
        "sums": ("compensated",) if key.outputs[0].dtype == "float32" else ("compensated", "plain"),
        "load": ("plain", "streaming"),
    }


def _allowed(key: VariantKey, point: Point) -> bool:
    rows, length = _shape(key)
    size = itemsize(key.tensors[0].dtype)
    if point["method"] == "tile":
        run = point["rows"] * length * size
        return bool(
            point["rows"] <= rows
            and point["team"] <= min(32, length)
            and 32 <= point["rows"] * point["team"] <= 1024
            and run % 16 == 0
            and run <= _TILE_BYTES
            and (rows * length * size) % 16 == 0
            and key.tensors[0].alignment >= 16
            and point["bytes"] == _space(key, 1)["bytes"][0]
        )
    accesses = length * size // point["bytes"]
    chunk = -(-accesses // point["blocks"])
    return bool(
        point["rows"] <= rows
        and 32 <= point["rows"] * point["team"] <= 1024
        and (point["blocks"] == 1 or point["rows"] == 1)
        and (point["team"] <= chunk or point["team"] == 1)
        and -(-chunk // point["team"]) <= 4096
    )


def _starts(key: VariantKey, threads: int) -> list[Point]:
    space = _space(key, threads)
    rows, length = _shape(key)
    accesses = length * itemsize(key.tensors[0].dtype) // space["bytes"][0]
    found: list[Point] = []
    base = {
        "method": "team",
        "rows": 1,
        "team": 1,
        "blocks": 1,
        "bytes": space["bytes"][0],
        "sums": "compensated",
        "load": "plain",
    }
    if _short(key):
        for count, team in ((32, 2), (64, 2), (64, 4), (128, 1), (32, 8), (16, 8)):
            found.append({**base, "method": "tile", "rows": count, "team": team})
    wanted = [b for b in space["blocks"] if rows * b >= 132] or [space["blocks"][-1]]
    for steps in (4, 1, 16):
        team = next((t for t in space["team"] if t * steps * wanted[0] >= accesses), 1024)
        for size in (256, 128, 512, 1024, 64):
            found.append({**base, "team": min(team, size), "rows": max(1, size // team), "blocks": wanted[0]})
            if wanted[0] > 1:
                found[-1].update(team=size, rows=1)
    found = [p for i, p in enumerate(found) if p not in found[:i]]
    good = [p for p in found if _allowed(key, p)]
    tiles, rest = [p for p in good if p["method"] == "tile"][:3], [p for p in good if p["method"] == "team"]
    return (tiles + rest)[:6]


_TEAM = """\
constexpr int64_t VECS = LENGTH / N;
constexpr int64_t CHUNK = (VECS + BLOCKS - 1) / BLOCKS;
typedef raw_of<in_t, N> raw;

extern "C" __global__ void __launch_bounds__(TEAM * PER) row_sums(const in_t* __restrict__ in, out_t* __restrict__ out) {
  int64_t row = (int64_t)blockIdx.x * PER + threadIdx.x / TEAM;
  int64_t at = threadIdx.x % TEAM, end = VECS;
  if constexpr (BLOCKS > 1) {
    cluster_arrive();
    row = blockIdx.x / BLOCKS;
    const int64_t first = cluster_rank() * CHUNK;
    at += first;
    end = first + CHUNK < VECS ? first + CHUNK : VECS;
  }
  if (row >= ROWS) end = 0;
  const raw* from = (const raw*)(in + row * LENGTH);
  Sum sums[4];
  for (; at + 7 * TEAM < end; at += 8 * TEAM) {
    raw some[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) some[u] = load(from + at + u * TEAM);
#pragma unroll
    for (int u = 0; u < 8; ++u) total(some[u], sums[u % 4]);
  }
  raw some[8];
#pragma unroll
  for (int u = 0; u < 8; ++u)
    if (at + u * TEAM < end) some[u] = load(from + at + u * TEAM);
#pragma unroll
  for (int u = 0; u < 8; ++u)
    if (at + u * TEAM < end) total(some[u], sums[u % 4]);
  Acc<2> a = team<0, TEAM, PER>(together(sums), AddSums());
  if constexpr (BLOCKS > 1) a = blocks<0, BLOCKS, true>(a, AddSums());
  const bool mine = BLOCKS > 1 ? cluster_rank() == 0 && threadIdx.x == 0 : threadIdx.x % TEAM == 0;
  if (mine && row < ROWS) out[row] = from_f32<out_t>((float)(whole(a) / DIVISOR));
}
"""
_TOTAL = """\
DEV void total(const raw_of<in_t, N>& r, Sum& sum) {
  float v[N];
  unpack<in_t, N>(r, v);
#pragma unroll
  for (int k = 0; k < N; ++k) sum.add(v[k]);
}
"""
_TILE = """\
constexpr int RUN = PER * LENGTH;              // elements of a block's rows
constexpr int WIDE = 16 / (int)sizeof(in_t), THREADS = TEAM * PER;
constexpr int ACCESSES = RUN / WIDE;
constexpr int64_t ALL = (int64_t)ROWS * LENGTH / WIDE;
__shared__ uint4 tile[ACCESSES];

extern "C" __global__ void __launch_bounds__(THREADS) row_sums(const in_t* __restrict__ in, out_t* __restrict__ out) {
  const int64_t first = (int64_t)blockIdx.x * ACCESSES;
  const uint4* from = (const uint4*)in + first;
  const int here = ALL - first < ACCESSES ? (int)(ALL - first) : ACCESSES;
#pragma unroll
  for (int i = 0; i < (ACCESSES + THREADS - 1) / THREADS; ++i) {
    const int at = i * THREADS + threadIdx.x;
    if (at < here)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(tile + at)), "l"(from + at) : "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  const int mine = threadIdx.x / TEAM, lane = threadIdx.x % TEAM;
  const in_t* values = (const in_t*)tile + mine * LENGTH;
  // Rows of an even length start in the same banks; each row begins at another place of its own to spread them.
  const int turn = LENGTH % 2 == 0 ? mine % LENGTH : 0;
  Sum sums[4];
#pragma unroll 2
  for (int i = lane; i < LENGTH; i += 4 * TEAM)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * TEAM < LENGTH) {
        const int at = i + k * TEAM + turn;
        sums[k].add(f32(values[at < LENGTH ? at : at - LENGTH]));
      }
  const Acc<2> a = lanes<TEAM>(together(sums), AddSums());
  const int64_t row = (int64_t)blockIdx.x * PER + mine;
  if (lane == 0 && row < ROWS) out[row] = from_f32<out_t>((float)(whole(a) / DIVISOR));
}
"""


def _source(key: VariantKey, point: Point) -> DeviceSource:
    rows, length = _shape(key)
    given, result = key.tensors[0], key.outputs[0]
    tile = point["method"] == "tile"
    per = point["rows"]
    values: dict[str, object] = {
        "ROWS": rows, "LENGTH": length, "N": point["bytes"] // itemsize(given.dtype), "TEAM": point["team"], "PER": per,
        "BLOCKS": point["blocks"], "COMPENSATED": point["sums"] == "compensated", "DIVISOR": 1 if key.base_op == "sum" else length,
    }  # fmt: skip
    types = f"typedef {DEVICE_TYPES[given.dtype]} in_t;\ntypedef {DEVICE_TYPES[result.dtype]} out_t;\n"
    body = types + constants(values) + cuda_parts.EXACT_SUMS + (_TILE if tile else _TOTAL + _TEAM)
    text = cuda_parts.assemble(
        (given.dtype, result.dtype),
        (cuda_parts.LANES, cuda_parts.CLUSTER),
        body,
        point["load"],
        "plain",
    )
    grid = rows * point["blocks"] if point["blocks"] > 1 else -(-rows // per)
    args = (PlanArg("input", 0), PlanArg("output", 0))
    step = kernel_step("row_sums", grid, point["team"] * per, args, cluster=point["blocks"])
    words = (
        f"tiles of {per} rows through shared memory, {point['team']} thread(s) a row"
        if tile
        else f"{point['blocks']} block(s) of {point['team']} threads a row"
    )
    return DeviceSource(text, words, (step,))


RECIPE = CudaRecipe(
    name="cuda row sums", ops=OPS, refuses=_refuses, space=_space, starts=_starts, source=_source, allowed=_allowed,
    target="narrow accesses to short rows, too few blocks for long ones",
)  # fmt: skip
