"""layer_norm and rms_norm over trailing dimensions: one read, one write, the row stays on the chip in between."""

from __future__ import annotations

from forge_tui.proposers.recipes import cuda_parts, cuda_rows
from forge_tui.proposers.recipes.cuda_keys import DEVICE_TYPES, FLOATS, access_bytes, constants, powers
from forge_tui.proposers.recipes.cuda_recipe import REGISTERS, CudaRecipe, DeviceSource, kernel_step
from forge_tui.proposers.recipes.keys import example_extent, not_plain, scalar, tensor
from forge_tui.proposers.recipes.recipe import Point, Space
from forge_tui.records.card import TensorSpec, VariantKey
from forge_tui.records.dtype import EPS, itemsize
from forge_tui.records.plan import PlanArg

OPS = frozenset({"aten::layer_norm", "aten::rms_norm"})


def _input(key: VariantKey) -> tuple[int, TensorSpec]:
    given = tensor(key, "input")
    if given is None:
        raise ValueError("no kernel for this key: no input")
    return given


def _shape(key: VariantKey) -> tuple[int, int]:
    """(rows, length of a row)."""
    _, spec = _input(key)
    count, rank = len(scalar(key, "normalized_shape")), len(spec.dims)
    return example_extent(spec, range(rank - count)), example_extent(spec, range(rank - count, rank))


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key, FLOATS)
    if reason:
        return reason
    given = tensor(key, "input")
    count = len(scalar(key, "normalized_shape"))
    if given is None or count < 1 or count > len(given[1].dims):
        return "no dimensions are normalised"
    for name in ("weight", "bias"):
        extra = tensor(key, name)
        if extra is not None and extra[1].dims != given[1].dims[-count:]:
            return f"{name} has another shape than the normalised dimensions"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    _, length = _shape(key)
    size = itemsize(_input(key)[1].dtype)
    widths = access_bytes((*key.tensors, *key.outputs), length)[:2]
    return {
        "team": cuda_rows.teams(length, size, widths[0]),
        "rows": powers(1, 128),
        "blocks": (1, 2, 4, 8) if length * size > 32_768 else (1,),
        "bytes": widths,
        "resident": (1, 2, 4, 8),
        "weights": ("late", "early"),
        "load": ("plain", "streaming"),
        "store": ("plain", "streaming"),
    }


def _allowed(key: VariantKey, point: Point) -> bool:
    rows, length = _shape(key)
    size = itemsize(_input(key)[1].dtype)
    threads = point["team"] * point["rows"]
    if threads * point["resident"] > 2048 or not cuda_rows.fits_chip(rows, length, point, size):
        return False
    s = cuda_rows.split(length, point, size)
    words = max(1, point["bytes"] // 4)
    tables = (tensor(key, "weight") is not None) + (tensor(key, "bias") is not None)
    if point["weights"] == "early" and (not tables or s.steps > 4):
        return False
    kept = s.held * words * (1 + (tables if point["weights"] == "early" else 0))
    return bool(kept + cuda_rows.OTHER_REGISTERS <= REGISTERS // (threads * point["resident"]))


def _starts(key: VariantKey, threads: int) -> list[Point]:
    space = _space(key, threads)
    found: list[Point] = []
    for steps, hint, size in (
        (2, "streaming", 128),
        (1, "plain", 256),
        (4, "streaming", 128),
        (4, "plain", 256),
        (8, "plain", 256),
    ):
        point = _guess(key, space, steps, hint, size)
        if point is not None and point not in found:
            found.append(point)
    return found


def _guess(key: VariantKey, space: Space, steps: int, hint: str, preferred: int) -> Point | None:
    """The smallest team (then cluster) that holds a row in `steps` accesses a thread."""
    _, length = _shape(key)
    accesses = length * itemsize(_input(key)[1].dtype) // space["bytes"][0]
    for blocks in space["blocks"]:
        for team in space["team"]:
            if team * blocks * steps < accesses:
                continue
            for threads in (preferred, 256, 512, 1024, 64, 32):
                for resident in (8, 4, 2, 1):
                    point = {
                        "team": team, "rows": max(1, threads // team), "blocks": blocks, "bytes": space["bytes"][0],
                        "resident": resident, "weights": "late", "load": hint, "store": hint,
                    }  # fmt: skip
                    if point["rows"] * team * resident <= 1024 and _allowed(key, point):
                        return point
    return None


_KERNEL = """\
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
row_norm(const in_t* __restrict__ in, @PARAMETERS@out_t* __restrict__ out) {
  int64_t row = (int64_t)blockIdx.x * PER + threadIdx.x / TEAM;
  int rank = 0;
  if constexpr (BLOCKS > 1) {
    cluster_arrive();
    row = blockIdx.x / BLOCKS;
    rank = (int)cluster_rank();
  }
  const Part part(in + row * LENGTH, rank, row < ROWS);
  const int64_t column = (int64_t)rank * CHUNK * N;
  out_t* to = out + row * LENGTH + column;
@EARLY@@STATISTICS@  part.each([&](float (&v)[N], int i) {
@AFFINE@    put<out_t, N>(to + (int64_t)i * N, v);
  });
}
"""
_CENTRED = """\
  Moments moments{part.anchor()};
  part.each([&](const float (&v)[N], int) { moments.add(v); });
  Acc<3> a = team<0, TEAM, PER>(moments.result(), Chan());
  if constexpr (BLOCKS > 1) a = blocks<0, BLOCKS, true>(a, Chan());
  const float mean = a.v[1], scale = rsqrtf(a.v[2] / LENGTH + EPSILON);
"""
_SQUARES = """\
  float sum = 0;
  part.each([&](const float (&v)[N], int) {
    float squares[N];
#pragma unroll
    for (int k = 0; k < N; ++k) squares[k] = v[k] * v[k];
    sum += pairwise(squares);
  });
  Acc<1> a = team<0, TEAM, PER>(Acc<1>{{sum}}, Add());
  if constexpr (BLOCKS > 1) a = blocks<0, BLOCKS, true>(a, Add());
  const float mean = 0, scale = rsqrtf(a.v[0] / LENGTH + EPSILON);
"""
_EARLY = """\
  raw_of<@TYPE@, N> early_@NAME@[STEPS];
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
    if (part.has(s)) early_@NAME@[s] = __ldg((const raw_of<@TYPE@, N>*)(@NAME@ + column) + s * TEAM + part.t);
"""
_LATE_TABLE = "    float @NAME@_v[N];\n    table<@TYPE@, N>(@NAME@ + column + (int64_t)i * N, @NAME@_v);\n"
_EARLY_TABLE = "    float @NAME@_v[N];\n    unpack<@TYPE@, N>(early_@NAME@[i / TEAM], @NAME@_v);\n"


def _source(key: VariantKey, point: Point) -> DeviceSource:
    index, spec = _input(key)
    result = key.outputs[0]
    rows, length = _shape(key)
    size = itemsize(spec.dtype)
    s = cuda_rows.split(length, point, size)
    # Without eps, eager's fused kernel takes that of its accumulator, float32, for 16-bit inputs too (seen on torch 2.11).
    eps = scalar(key, "eps", EPS["float32"])
    values: dict[str, object] = {
        "ROWS": rows, "LENGTH": length, "N": point["bytes"] // size, "RESIDENT": point["resident"], "EPSILON": float(eps),
    }  # fmt: skip
    centred = key.base_op == "layer_norm"
    early = point["weights"] == "early"
    args = [PlanArg("input", index)]
    parameters, loads, affine = "", "", ""
    value = "(v[k] - mean) * scale" if centred else "v[k] * scale"
    for name, sign in (("weight", "*"), ("bias", "+")):
        extra = tensor(key, name)
        if extra is None:
            continue
        kind = DEVICE_TYPES[extra[1].dtype]
        args.append(PlanArg("input", extra[0]))
        parameters += f"const {kind}* __restrict__ {name}, "
        pieces = (_EARLY, _EARLY_TABLE) if early else ("", _LATE_TABLE)
        loads += pieces[0].replace("@TYPE@", kind).replace("@NAME@", name)
        affine += pieces[1].replace("@TYPE@", kind).replace("@NAME@", name)
        value += f" {sign} {name}_v[k]"
    affine += f"#pragma unroll\n    for (int k = 0; k < N; ++k) v[k] = {value};\n"
    kernel = _KERNEL
    for mark, text in (
        ("@PARAMETERS@", parameters), ("@EARLY@", loads), ("@STATISTICS@", _CENTRED if centred else _SQUARES),
        ("@AFFINE@", affine),
    ):  # fmt: skip
        kernel = kernel.replace(mark, text)
    types = f"typedef {DEVICE_TYPES[spec.dtype]} in_t;\ntypedef {DEVICE_TYPES[result.dtype]} out_t;\n"
    body = types + constants(values) + s.constants() + cuda_rows.FRAME + kernel
    dtypes = [t.dtype for t in (*key.tensors, *key.outputs)]
    text = cuda_parts.assemble(
        dtypes, (cuda_parts.LANES, cuda_parts.CLUSTER, cuda_parts.MOMENTS), body, point["load"], point["store"]
    )
    args.append(PlanArg("output", 0))
    step = kernel_step("row_norm", s.grid(rows), s.threads, tuple(args), cluster=s.blocks)
    words = f"row on the chip, {s.blocks} block(s) of {s.team} threads a row, {s.per} row(s) a block, weights {point['weights']}"
    return DeviceSource(text, words, (step,))


RECIPE = CudaRecipe(
    name="cuda row norm", ops=OPS, refuses=_refuses, space=_space, starts=_starts, source=_source, allowed=_allowed,
    target="passes over the row",
)  # fmt: skip
