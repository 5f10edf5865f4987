"""linear with few rows: dot products along the inner dimension, without packing.

Input and weight both have the inner dimension contiguous, so a block of `mr` input rows times `nr` weight rows is
mr * nr vector accumulators fed by plain loads: 2 mr nr / (mr + nr) operations a load. A library kernel first copies the
weight into its own layout, on every call; with up to some dozens of rows that copy is most of its time.
Each result is one accumulator added up lane by lane in a fixed order, so it does not depend on the thread count.
"""

from __future__ import annotations

from forge_tui.proposers.recipes import vector
from forge_tui.proposers.recipes.keys import extent, not_plain, tensor, thread_counts
from forge_tui.proposers.recipes.recipe import Point, Recipe, Source, Space
from forge_tui.records.card import VariantKey

# Above this the library's packed kernel has paid for its copy (measured: see `starts`).
MOST_ROWS = 256


def _rows(key: VariantKey) -> int:
    """Rows of the call; for a range of lengths its largest, since the blocks are chosen for it."""
    total = 1
    for dim in key.outputs[0].dims[:-1]:
        total *= dim.hi
    return total


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key, ("float32",))
    if reason:
        return reason
    given, weight, bias = tensor(key, "input"), tensor(key, "weight"), tensor(key, "bias")
    if given is None or weight is None or len(weight[1].dims) != 2 or not given[1].dims:
        return "weight is not a matrix"
    if given[1].dims[-1] != weight[1].dims[1] or not all(d.exact for d in weight[1].dims):
        return "the weight's sizes are not exact"
    if bias is not None and bias[1].dims != weight[1].dims[:1]:
        return "bias is not one value per output"
    if _rows(key) > MOST_ROWS:
        return f"more than {MOST_ROWS} rows"
    return ""


def _chunks(key: VariantKey) -> tuple[int, ...]:
    """Input rows a pass; 0 for all."""
    return (0, 12, 24, 36) if _rows(key) > 24 else (0,)


def _space(key: VariantKey, threads: int) -> Space:
    return {
        "mr": (1, 2, 3, 4, 5, 6), "nr": (4, 8, 12, 16, 24), "width": (16, 8), "unroll": (1, 2, 4),
        "prefetch": ("none", "next block to L1", "next block to L2"), "chunk": _chunks(key), "threads": thread_counts(threads),
    }  # fmt: skip


def _allowed(key: VariantKey, point: Point) -> bool:
    registers = point["mr"] * point["nr"] + min(point["mr"], point["nr"]) + 1
    exact = all(d.exact for d in key.outputs[0].dims)
    return registers <= (32 if point["width"] == 16 else 16) and (point["mr"] <= _rows(key) or not exact)


def _starts(key: VariantKey, threads: int) -> list[Point]:
    rows = _rows(key)
    base = {"width": 16, "unroll": 1, "threads": threads}
    ahead, no = "next block to L1", "none"
    if rows == 1:  # bound by reading the weight: several streams, fetched by the hardware
        blocks = [(1, 8, no), (1, 4, no), (1, 16, no)]
    else:
        blocks = [
            (min(rows, 4), 4, ahead),
            (min(rows, 6), 4, "next block to L2"),
            (min(rows, 3), 8, ahead),
            (min(rows, 4), 4, no),
        ]
    chunk = 24 if rows > 24 else 0
    points = [{**base, "mr": mr, "nr": nr, "prefetch": prefetch, "chunk": chunk} for mr, nr, prefetch in blocks]
    return (
        points
        if chunk == 0
        else [*points[:2], {**points[0], "chunk": 0}, {**points[1], "chunk": 12}, {**points[2], "chunk": 36}]
    )


_KERNEL = """
constexpr long K = @K@, N = @N@;  // inner size, outputs a row
constexpr long CHUNK = @CHUNK@;           // input rows at a time
constexpr bool BIAS = @HAS_BIAS@;

// out[m][n] = sum over k of x[m][k] * w[n][k], plus the bias, for a block of MR x NR.
template <int MR, int NR> INLINE void block(const float* x, const float* w, const float* bias, float* out, const float* next) {
  vf acc[MR][NR] = {};
  long k = 0;
#pragma GCC unroll @UNROLL@
  for (; k + W <= K; k += W) {
    vf wk[NR];
#pragma GCC unroll 32
    for (int n = 0; n < NR; ++n) wk[n] = load(w + n * K + k);
#pragma GCC unroll 32
    for (int m = 0; m < MR; ++m) {
      const vf xk = load(x + m * K + k);
#pragma GCC unroll 32
      for (int n = 0; n < NR; ++n) acc[m][n] += xk * wk[n];
    }
@PREFETCH@  }
  if (K % W != 0)
    for (int m = 0; m < MR; ++m)
      for (int n = 0; n < NR; ++n)
        acc[m][n] += load(x + m * K + k, K % W, 0.0f) * load(w + n * K + k, K % W, 0.0f);
  constexpr int G = W / 4;  // rows whose four results share a vector
#pragma GCC unroll 32
  for (int m = 0; m < MR; m += G)
#pragma GCC unroll 32
    for (int n = 0; n < NR; n += 4) {
      vf group[W];
#pragma GCC unroll 32
      for (int i = 0; i < W; ++i) group[i] = m + i / 4 < MR && n + i % 4 < NR ? acc[(m + i / 4) % MR][(n + i % 4) % NR] : vf{};
      const vf sums = group_sums(group);
      v4 part[G];
      __builtin_memcpy(part, &sums, sizeof sums);
#pragma GCC unroll 4
      for (int i = 0; i < G && m + i < MR; ++i) {
        float* to = out + (m + i) * N + n;
        if (NR % 4 == 0) {
          v4 b = {};
          if (BIAS) __builtin_memcpy(&b, bias + n, sizeof b);
          part[i] += b;
          __builtin_memcpy(to, &part[i], sizeof b);
        } else {
          for (int j = 0; n + j < NR && j < 4; ++j) to[j] = part[i][j] + (BIAS ? bias[n + j] : 0.0f);
        }
      }
    }
}

// All rows against NR rows of the weight: blocks of MR, then what is left.
template <int MR, int NR>
INLINE void rows(long m, long M, const float* x, const float* w, const float* bias, float* out, const float* next) {
  for (; m + MR <= M; m += MR, next += @LINES@ * K) block<MR, NR>(x + m * K, w, bias, out + m * N, next);
  if constexpr (MR > 1)
    if (m < M) rows<MR - 1, NR>(m, M, x, w, bias, out, next);
}

extern "C" int forge_launch(const forge_args* a) {
  const float* x = (const float*)a->inputs[@X@].data;
  const float* w = (const float*)a->inputs[@WEIGHT@].data;
  const float* bias = @BIAS@;
  float* out = (float*)a->outputs[0].data;
  const long M = @M@;
  split(N, @NR@, a->threads, [&](long from, long to) {
    for (long m = 0; m < M; m += CHUNK) {  // a chunk of the input stays in the first-level cache
      const long end = m + CHUNK < M ? m + CHUNK : M;
      long n = from;
      for (; n + @NR@ <= to; n += @NR@)
        rows<@MR@, @NR@>(m, end, x, w + n * K, BIAS ? bias + n : bias, out + n, w + (n + @NR@) * K);
      for (; n < to; ++n) rows<@MR@, 1>(m, end, x, w + n * K, BIAS ? bias + n : bias, out + n, w + (n + 1) * K);
    }
  });
  return 0;
}
"""
_PREFETCH = {
    mode: f"""\
#pragma GCC unroll 32
    for (int n = 0; n < @LINES@; ++n) __builtin_prefetch(next + k * @LINES@ + n * W, 0, {level});
"""
    for mode, level in (("next block to L1", 3), ("next block to L2", 2))
}


def _source(key: VariantKey, point: Point) -> Source:
    given, weight, bias = tensor(key, "input"), tensor(key, "weight"), tensor(key, "bias")
    if given is None or weight is None:
        raise ValueError("no kernel for this key: no input or weight")
    rank = len(given[1].dims)
    # Lines of the next weight block fetched per step, so that the blocks of all rows together fetch it once.
    lines = max(1, -(-point["nr"] * point["mr"] // _rows(key)))
    replacements = {
        "@K@": str(weight[1].sizes[1]),
        "@N@": str(weight[1].sizes[0]),
        "@M@": extent(f"inputs[{given[0]}]", given[1], range(rank - 1)),
        "@X@": str(given[0]),
        "@WEIGHT@": str(weight[0]),
        "@BIAS@": "nullptr" if bias is None else f"(const float*)a->inputs[{bias[0]}].data",
        "@HAS_BIAS@": "false" if bias is None else "true",
        "@LINES@": str(lines),
        "@PREFETCH@": _PREFETCH.get(point["prefetch"], "").replace("@LINES@", str(lines)),
        "@UNROLL@": str(point["unroll"]),
        "@CHUNK@": str(point["chunk"] or MOST_ROWS),
        "@MR@": str(point["mr"]),
        "@NR@": str(point["nr"]),
    }
    body = _KERNEL
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    text = vector.assemble(point["width"], point["threads"], (vector.group_sums(point["width"]),), body)
    words = f"unpacked dot products in blocks of {point['mr']}x{point['nr']}, {point['width']} lanes, {point['threads']} thread(s)"
    return Source(text, words)


RECIPE = Recipe(
    name="linear", ops=frozenset({"aten::linear"}), refuses=_refuses, space=_space, starts=_starts, source=_source,
    allowed=_allowed, target="the library's copy of the weight on every call",
)  # fmt: skip
