"""Means and sums over trailing dimensions, and adaptive_avg_pool2d to one value a plane."""

from __future__ import annotations

from forge_tui.proposers.recipes import vector
from forge_tui.proposers.recipes.keys import C_TYPES, example_extent, extent, not_plain, scalar, thread_counts
from forge_tui.proposers.recipes.recipe import Point, Recipe, Source, Space
from forge_tui.records.card import VariantKey

OPS = frozenset({"aten::mean.dim", "aten::sum.dim_IntList", "aten::adaptive_avg_pool2d"})


def _reduced(key: VariantKey) -> int:
    """How many trailing dimensions are reduced; 0 when the call reduces anything else."""
    rank = len(key.tensors[0].dims)
    if key.base_op == "adaptive_avg_pool2d":
        size = scalar(key, "output_size")
        return 2 if set([size] if isinstance(size, int) else size) == {1} else 0
    dims = scalar(key, "dim") or ()
    wanted = {d % rank for d in ([dims] if isinstance(dims, int) else dims)} if rank else set()
    return len(wanted) if wanted == set(range(rank - len(wanted), rank)) else 0


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key)
    if reason:
        return reason
    if not _reduced(key):
        return "reduces other than trailing dimensions" if key.base_op != "adaptive_avg_pool2d" else "not to 1x1"
    return ""


def _rows_columns(key: VariantKey) -> tuple[int, int]:
    spec, count = key.tensors[0], _reduced(key)
    rank = len(spec.dims)
    return example_extent(spec, range(rank - count)), example_extent(spec, range(rank - count, rank))


def _space(key: VariantKey, threads: int) -> Space:
    return {
        "rows": ("in groups", "one by one"), "width": (16, 8), "unroll": (1, 2, 4), "threads": thread_counts(threads),
    }  # fmt: skip


def _allowed(key: VariantKey, point: Point) -> bool:
    # A group keeps one accumulator a row, so there is nothing to unroll, and long rows would lose accuracy in it.
    return bool(point["rows"] == "one by one" or (point["unroll"] == 1 and _rows_columns(key)[1] <= 4096))


def _starts(key: VariantKey, threads: int) -> list[Point]:
    rows, columns = _rows_columns(key)
    team = 1 if rows * columns < 32_768 else threads
    return [
        {"rows": "in groups", "width": 16, "unroll": 1, "threads": team},
        {"rows": "one by one", "width": 16, "unroll": 4 if columns >= 512 else 1, "threads": team},
        {"rows": "one by one", "width": 8, "unroll": 2, "threads": threads if team == 1 else 1},
    ]


_KERNEL = """
typedef @IN@ in_t;
typedef @OUT@ out_t;

extern "C" int forge_launch(const forge_args* a) {
  const in_t* x = (const in_t*)a->inputs[0].data;
  out_t* out = (out_t*)a->outputs[0].data;
  const long rows = @ROWS@, n = @COLUMNS@;
  split(rows, W, a->threads, [&](long r, long to) {
@GROUPS@    for (; r < to; ++r) put(out + r, (float)(row_sum<@UNROLL@>(x + r * n, n, 0.0f, [](vf v) { return v; })@SCALE@));
  });
  return 0;
}
"""
_GROUPS = """\
    for (; r + W <= to; r += W) {
      vf s[W] = {};
      for (long i = 0; i < n; i += W)
#pragma GCC unroll 16
        for (int k = 0; k < W; ++k) {
          const in_t* p = x + (r + k) * n + i;
          s[k] += i + W <= n ? load(p) : load(p, n - i, 0.0f);
        }
      store(out + r, group_sums(s)@SCALE@);
    }
"""


def _source(key: VariantKey, point: Point) -> Source:
    spec, count = key.tensors[0], _reduced(key)
    rank = len(spec.dims)
    grouped = point["rows"] == "in groups"
    replacements = {
        "@GROUPS@": _GROUPS if grouped else "",
        "@IN@": C_TYPES[spec.dtype],
        "@OUT@": C_TYPES[key.outputs[0].dtype],
        "@ROWS@": extent("inputs[0]", spec, range(rank - count)),
        "@COLUMNS@": extent("inputs[0]", spec, range(rank - count, rank)),
        "@UNROLL@": str(point["unroll"]),
        "@SCALE@": "" if key.base_op == "sum" else " / (float)n",
    }
    body = _KERNEL
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    pieces = [vector.SUM, vector.ROW_SUM, *([vector.group_sums(point["width"])] if grouped else [])]
    text = vector.assemble(point["width"], point["threads"], pieces, body, (spec.dtype, key.outputs[0].dtype))
    return Source(text, f"rows {point['rows']}, {point['width']} lanes, {point['threads']} thread(s)")


RECIPE = Recipe(
    name="row mean", ops=OPS, refuses=_refuses, space=_space, starts=_starts, source=_source, allowed=_allowed,
    target="call overhead and lane sums of short rows",
)  # fmt: skip
