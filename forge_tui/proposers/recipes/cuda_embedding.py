"""embedding: rows of a table are copied in wide accesses. An index outside the table traps, as eager's assertion does."""

from __future__ import annotations

from forge_tui.proposers.recipes import cuda_parts
from forge_tui.proposers.recipes.cuda_keys import DEVICE_TYPES, constants, powers
from forge_tui.proposers.recipes.cuda_recipe import CudaRecipe, DeviceSource, kernel_step
from forge_tui.proposers.recipes.keys import contiguous, tensor
from forge_tui.proposers.recipes.recipe import Point, Space
from forge_tui.records.card import TensorSpec, VariantKey
from forge_tui.records.dtype import itemsize
from forge_tui.records.plan import PlanArg


def _given(key: VariantKey) -> tuple[tuple[int, TensorSpec], tuple[int, TensorSpec]]:
    weight, indices = tensor(key, "weight"), tensor(key, "indices")
    if weight is None or indices is None:
        raise ValueError("no kernel for this key: no table or no indices")
    return weight, indices


def _refuses(key: VariantKey) -> str:
    weight, indices = tensor(key, "weight"), tensor(key, "indices")
    if weight is None or indices is None or key.mutates or len(key.outputs) != 1 or key.output_alias != (-1,):
        return "no table or no indices"
    if indices[1].dtype not in ("int64", "int32"):
        return f"indices are {indices[1].dtype}"
    if len(weight[1].dims) != 2:
        return "the table is not a matrix"
    for spec in (weight[1], indices[1], key.outputs[0]):
        if not contiguous(spec):
            return f"{spec.name or 'a tensor'} is not contiguous"
        if spec.numel == 0:
            return "an empty tensor"
    return ""


def _row_bytes(key: VariantKey) -> int:
    (_, weight), _ = _given(key)
    return weight.sizes[1] * itemsize(weight.dtype)


def _widths(key: VariantKey) -> tuple[int, ...]:
    (_, weight), _ = _given(key)
    least = min(weight.alignment, key.outputs[0].alignment)
    return tuple(w for w in (16, 8, 4, 2) if _row_bytes(key) % w == 0 and w <= least)[:2]


def _space(key: VariantKey, threads: int) -> Space:
    return {
        "team": powers(1, 1024),
        "threads": (64, 128, 256, 512, 1024),
        "bytes": _widths(key),
        "load": ("plain", "streaming", "read-only"),
        "store": ("plain", "streaming"),
    }


def _allowed(key: VariantKey, point: Point) -> bool:
    _, (_, indices) = _given(key)
    accesses = _row_bytes(key) // point["bytes"]
    per = point["threads"] // point["team"]
    return bool(1 <= per <= max(1, indices.numel) and point["team"] < 2 * accesses and accesses <= 64 * point["team"])


def _starts(key: VariantKey, threads: int) -> list[Point]:
    widths = _widths(key)
    if not widths:
        return []
    accesses = _row_bytes(key) // widths[0]
    found = []
    for steps, size in ((1, 256), (2, 128), (4, 128), (8, 64), (1, 64), (1, 1024), (2, 1024)):
        team = next((t for t in powers(1, 1024) if t * steps >= accesses), 1024)
        point = {"team": min(team, size), "threads": size, "bytes": widths[0], "load": "plain", "store": "plain"}
        if point not in found and _allowed(key, point):
            found.append(point)
    return found[:4]


_KERNEL = """\
typedef Raw<BYTES>::type raw;
constexpr int STEPS = (ACCESSES + TEAM - 1) / TEAM, BATCH = STEPS < 8 ? STEPS : 8;

extern "C" __global__ void __launch_bounds__(TEAM * PER)
gather(const raw* __restrict__ weight, const index_t* __restrict__ indices, raw* __restrict__ out) {
  const int64_t row = (int64_t)blockIdx.x * PER + threadIdx.x / TEAM;
  if (row >= ROWS) return;
  const int64_t entry = indices[row];
  if (entry < 0 || entry >= ENTRIES) __trap();
  const raw* from = weight + entry * ACCESSES;
  raw* to = out + row * ACCESSES;
  for (int first = threadIdx.x % TEAM; first < ACCESSES; first += BATCH * TEAM) {
    raw some[BATCH];
#pragma unroll
    for (int u = 0; u < BATCH; ++u)
      if (first + u * TEAM < ACCESSES) some[u] = load(from + first + u * TEAM);
#pragma unroll
    for (int u = 0; u < BATCH; ++u)
      if (first + u * TEAM < ACCESSES) store(to + first + u * TEAM, some[u]);
  }
}
"""


def _source(key: VariantKey, point: Point) -> DeviceSource:
    (table, weight), (place, indices) = _given(key)
    rows = indices.numel
    per = point["threads"] // point["team"]
    values: dict[str, object] = {
        "ROWS": rows, "ENTRIES": weight.sizes[0], "ACCESSES": _row_bytes(key) // point["bytes"], "BYTES": point["bytes"],
        "TEAM": point["team"], "PER": per,
    }  # fmt: skip
    body = f"typedef {DEVICE_TYPES[indices.dtype]} index_t;\n" + constants(values) + _KERNEL
    text = cuda_parts.assemble((), (), body, point["load"], point["store"])
    args = (PlanArg("input", table), PlanArg("input", place), PlanArg("output", 0))
    step = kernel_step("gather", -(-rows // per), point["threads"], args)
    return DeviceSource(text, f"{point['team']} threads a row, {point['bytes']} bytes an access", (step,))


RECIPE = CudaRecipe(
    name="cuda embedding", ops=frozenset({"aten::embedding"}), refuses=_refuses, space=_space, starts=_starts,
    source=_source, allowed=_allowed, target="narrow accesses",
)  # fmt: skip
