"""Softmax over the last dimension, for many short rows or few very long ones.

Always subtracts the row's maximum; a row of -inf, or one with NaN or +inf, becomes NaN exactly as eager's does,
because inf - inf does.
"""

from __future__ import annotations

from forge_tui.proposers.recipes import vector
from forge_tui.proposers.recipes.keys import (
    C_TYPES,
    example_extent,
    extent,
    not_plain,
    scalar,
    thread_counts,
)  # fmt: skip
from forge_tui.proposers.recipes.recipe import Point, Recipe, Source, Space
from forge_tui.records.card import VariantKey

# Fewer elements than this in a row and cutting the row up costs more in synchronisation than it saves.
_LONG_ROW = 8192


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key)
    if reason:
        return reason
    rank = len(key.outputs[0].dims)
    if rank == 0:
        return "a scalar"
    dim = scalar(key, "dim")
    if dim not in (-1, rank - 1):
        return f"dim {dim} is not the last one"
    return ""


def _rows_columns(key: VariantKey) -> tuple[int, int]:
    spec = key.outputs[0]
    rank = len(spec.dims)
    return example_extent(spec, range(rank - 1)), spec.sizes[-1]


def _space(key: VariantKey, threads: int) -> Space:
    _, columns = _rows_columns(key)
    by = ("rows", "columns") if columns >= _LONG_ROW and threads > 1 else ("rows",)
    exps = ("once", "twice") if key.outputs[0].dtype == "float32" else ("twice",)
    return {
        "split": by, "exps": exps, "width": (16, 8), "unroll": (1, 2, 4), "scale": ("multiply", "divide"),
        "threads": thread_counts(threads),
    }  # fmt: skip


def _allowed(key: VariantKey, point: Point) -> bool:
    return bool(point["split"] == "rows" or point["threads"] > 1)


def _starts(key: VariantKey, threads: int) -> list[Point]:
    rows, columns = _rows_columns(key)
    exps = "once" if key.outputs[0].dtype == "float32" else "twice"
    small = rows * columns < 8192
    long = columns >= _LONG_ROW and rows < 2 * threads and threads > 1
    unroll = 1 if columns <= 64 else 2
    base = {"exps": exps, "width": 16, "unroll": unroll, "scale": "multiply"}
    return [
        {**base, "split": "columns" if long else "rows", "threads": 1 if small else threads},
        {**base, "split": "rows", "threads": threads if small else 1},
        {**base, "split": "rows", "width": 8, "unroll": 2, "scale": "divide", "threads": 1 if small else threads},
    ]


_STEPS = """
typedef @IN@ in_t;
typedef @OUT@ out_t;
constexpr int U = @UNROLL@;
constexpr float LOWEST = -__builtin_inff();

INLINE float row_max(const in_t* x, long n) {
  vf m[U];
  for (int k = 0; k < U; ++k) m[k] = splat(LOWEST);
  long i = 0;
  for (; i + U * W <= n; i += U * W)
#pragma GCC unroll 4
    for (int k = 0; k < U; ++k) m[k] = larger(m[k], load(x + i + k * W));
  for (; i + W <= n; i += W) m[0] = larger(m[0], load(x + i));
  if (i < n) m[0] = larger(m[0], load(x + i, n - i, LOWEST));
  for (int k = 1; k < U; ++k) m[0] = larger(m[0], m[k]);
  return lanes_max(m[0]);
}

// Sum of e^(x - max); @KEPT@.
INLINE float block_exp(const in_t* x, out_t* y, long n, float max) {
  vf s[U] = {};
  long i = 0;
  for (; i + U * W <= n; i += U * W)
#pragma GCC unroll 4
    for (int k = 0; k < U; ++k) {
      const vf e = vexp_low(load(x + i + k * W) - max);
      @STORE_K@s[k] += e;
    }
  for (; i + W <= n; i += W) {
    const vf e = vexp_low(load(x + i) - max);
    @STORE@s[0] += e;
  }
  if (i < n) {
    const vf e = vexp_low(load(x + i, n - i, LOWEST) - max);
    @STORE_REST@s[0] += e;  // lanes past the end hold e^-inf = 0; NaN with a row that is not finite, which is NaN anyway
  }
  for (int k = 1; k < U; ++k) s[0] += s[k];
  return lanes_sum(s[0]);
}

// Blocks keep every accumulator short, so that rounding does not pile up in one sum over a long row.
INLINE float row_exp(const in_t* x, out_t* y, long n, float max) {
  if (n <= 2048) return block_exp(x, y, n, max);
  double sum = 0.0;
  for (long i = 0; i < n; i += 1024) sum += block_exp(x + i, y + i, n - i < 1024 ? n - i : 1024, max);
  return (float)sum;
}

INLINE void row_scale(const in_t* x, out_t* y, long n, float max, float sum) {
@FACTOR@  long i = 0;
  for (; i + W <= n; i += W) store(y + i, @VALUE@);
  if (i < n) store(y + i, @VALUE_REST@, n - i);
}
"""

_ROWS = """
extern "C" int forge_launch(const forge_args* a) {
  const in_t* x = (const in_t*)a->inputs[0].data;
  out_t* y = (out_t*)a->outputs[0].data;
  const long rows = @ROWS@, n = @COLUMNS@;
  split(rows, 1, a->threads, [&](long from, long to) {
    for (long r = from; r < to; ++r) {
      const float max = row_max(x + r * n, n);
      const float sum = row_exp(x + r * n, y + r * n, n, max);
      row_scale(x + r * n, y + r * n, n, max, sum);
    }
  });
  return 0;
}
"""

_COLUMNS = """
extern "C" int forge_launch(const forge_args* a) {
  const in_t* x = (const in_t*)a->inputs[0].data;
  out_t* y = (out_t*)a->outputs[0].data;
  const long rows = @ROWS@, n = @COLUMNS@;
  const int team = a->threads < TEAM ? a->threads : TEAM;
  const long share = (n / team + 63) / 64 * 64;
  for (long r = 0; r < rows; ++r, x += n, y += n) {
    float part[TEAM], max = LOWEST;
    double total = 0.0;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int t = 0; t < team; ++t) {
      const long from = t * share < n ? t * share : n, to = from + share < n ? from + share : n;
      part[t] = row_max(x + from, to - from);
    }
    for (int t = 0; t < team; ++t) max = part[t] > max ? part[t] : max;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int t = 0; t < team; ++t) {
      const long from = t * share < n ? t * share : n, to = from + share < n ? from + share : n;
      part[t] = row_exp(x + from, y + from, to - from, max);
    }
    for (int t = 0; t < team; ++t) total += part[t];
    const float sum = (float)total;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int t = 0; t < team; ++t) {
      const long from = t * share < n ? t * share : n, to = from + share < n ? from + share : n;
      row_scale(x + from, y + from, to - from, max, sum);
    }
  }
  return 0;
}
"""


def _source(key: VariantKey, point: Point) -> Source:
    once = point["exps"] == "once"
    by = "/ sum" if point["scale"] == "divide" else "* factor"
    spec = key.outputs[0]
    rank = len(spec.dims)
    replacements = {
        "@STORE_K@": "store(y + i + k * W, e);\n      " if once else "",
        "@STORE@": "store(y + i, e);\n    " if once else "",
        "@STORE_REST@": "store(y + i, e, n - i);\n    " if once else "",
        "@KEPT@": "the exponentials are kept in y" if once else "the last pass computes them again",
        "@FACTOR@": "  const float factor = 1.0f / sum;\n" if by == "* factor" else "",
        "@VALUE@": f"load(y + i) {by}" if once else f"vexp_low(load(x + i) - max) {by}",
        "@VALUE_REST@": f"load(y + i, n - i, 0.0f) {by}"
        if once
        else f"vexp_low(load(x + i, n - i, LOWEST) - max) {by}",
        "@IN@": C_TYPES[key.tensors[0].dtype],
        "@OUT@": C_TYPES[spec.dtype],
        "@UNROLL@": str(point["unroll"]),
        "@ROWS@": extent("outputs[0]", spec, range(rank - 1)),
        "@COLUMNS@": extent("outputs[0]", spec, range(rank - 1, rank)),
    }
    body = _STEPS + (_COLUMNS if point["split"] == "columns" else _ROWS)
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    pieces = (vector.MAX, vector.SUM, vector.EXP_LOW)
    text = vector.assemble(point["width"], point["threads"], pieces, body, (key.tensors[0].dtype, spec.dtype))
    words = (
        f"{point['width']}-lane exp polynomial, {point['split']} over {point['threads']} thread(s), exp {point['exps']}"
    )
    return Source(text, words)


RECIPE = Recipe(
    name="softmax", ops=frozenset({"aten::softmax.int", "aten::_softmax"}), refuses=_refuses, space=_space,
    starts=_starts, source=_source, allowed=_allowed, target="exp throughput and passes over the row",
)  # fmt: skip
