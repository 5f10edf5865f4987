"""layer_norm and rms_norm over trailing dimensions of contiguous tensors.

Statistics in float around an anchor: the row's mean (two passes; the second also finds what rounding left of the sum)
or the mean of its first few elements (one pass). A common offset of the row cancels exactly before anything is squared.
"""

from __future__ import annotations

from forge_tui.proposers.recipes import vector
from forge_tui.proposers.recipes.keys import (
    C_TYPES,
    example_extent,
    extent,
    not_plain,
    number,
    scalar,
    tensor,
    thread_counts,
)  # fmt: skip
from forge_tui.proposers.recipes.recipe import Point, Recipe, Source, Space
from forge_tui.records.card import VariantKey
from forge_tui.records.dtype import EPS

OPS = frozenset({"aten::layer_norm", "aten::rms_norm"})


def _normalised(key: VariantKey) -> int:
    """How many trailing dimensions are normalised."""
    return len(scalar(key, "normalized_shape"))


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key)
    if reason:
        return reason
    count = _normalised(key)
    given = tensor(key, "input")
    if given is None or count < 1 or count > len(given[1].dims):
        return "no dimensions are normalised"
    for name in ("weight", "bias"):
        extra = tensor(key, name)
        if extra is not None and extra[1].dims != given[1].dims[-count:]:
            return f"{name} has another shape than the normalised dimensions"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    statistics = ("two passes", "one shifted pass") if key.base_op == "layer_norm" else ("one pass",)
    return {"statistics": statistics, "width": (16, 8), "unroll": (1, 2, 4), "threads": thread_counts(threads)}


def _starts(key: VariantKey, threads: int) -> list[Point]:
    spec = key.outputs[0]
    size = example_extent(spec, range(len(spec.dims)))
    statistics = _space(key, threads)["statistics"]
    # Below ~16k elements (a few microseconds of one core) a second thread costs more than it brings.
    first = 1 if size < 16_384 else threads
    other = threads if first == 1 else 1
    return [
        {"statistics": statistics[0], "width": 16, "unroll": 4, "threads": first},
        {"statistics": statistics[-1], "width": 16, "unroll": 2, "threads": first},
        {"statistics": statistics[0], "width": 8, "unroll": 4, "threads": first},
        {"statistics": statistics[0], "width": 16, "unroll": 4, "threads": other},
    ]


_KERNEL = """
typedef @IN@ in_t;
typedef @OUT@ out_t;
constexpr int U = @UNROLL@;  // accumulators

extern "C" int forge_launch(const forge_args* a) {
  const in_t* in = (const in_t*)a->inputs[@INPUT@].data;
  out_t* out = (out_t*)a->outputs[0].data;
@EXTRAS@  const long rows = @ROWS@, n = @COLUMNS@;
  const float eps = (float)@EPS@;
  split(rows, 1, a->threads, [&](long from, long to) {
    for (long r = from; r < to; ++r) {
      const in_t* x = in + r * n;
      out_t* y = out + r * n;
@STATISTICS@      const float scale = 1.0f / __builtin_sqrtf(variance + eps);
      long i = 0;
      for (; i + W <= n; i += W) store(y + i, @VALUE@);
      if (i < n) store(y + i, @REST@, n - i);
    }
  });
  return 0;
}
"""
_STATISTICS = {
    "two passes": """\
      const float anchor = (float)(row_sum<U>(x, n, 0.0f, [](vf v) { return v; }) / n);
""",
    "one shifted pass": """\
      const float anchor = n < W ? get(x[0]) : lanes_sum(load(x)) / W;
""",
    "one pass": """\
      const float variance = (float)(row_sum<U>(x, n, 0.0f, [](vf v) { return v * v; }) / n);
""",
}
_CENTRED = """\
      const auto [shift, variance] = row_moments<U>(x, n, anchor);
"""


def _source(key: VariantKey, point: Point) -> Source:
    given = tensor(key, "input")
    if given is None:
        raise ValueError("no kernel for this key: no input")
    index, spec = given
    count, rank = _normalised(key), len(spec.dims)
    extras = []
    centred = key.base_op == "layer_norm"
    full, rest = "load(x + i)", "load(x + i, n - i, 0.0f)"
    if centred:
        full, rest = f"({full} - anchor - shift)", f"({rest} - anchor - shift)"
    full, rest = f"{full} * scale", f"{rest} * scale"
    for name, sign in (("weight", "*"), ("bias", "+")):
        extra = tensor(key, name)
        if extra is not None:
            kind = C_TYPES[extra[1].dtype]
            extras.append(f"  const {kind}* {name} = (const {kind}*)a->inputs[{extra[0]}].data;\n")
            full, rest = f"{full} {sign} load({name} + i)", f"{rest} {sign} load({name} + i, n - i, 0.0f)"
    eps = scalar(key, "eps")
    replacements = {
        "@IN@": C_TYPES[spec.dtype],
        "@OUT@": C_TYPES[key.outputs[0].dtype],
        "@UNROLL@": str(point["unroll"]),
        "@INPUT@": str(index),
        "@EXTRAS@": "".join(extras),
        "@ROWS@": extent(f"inputs[{index}]", spec, range(rank - count)),
        "@COLUMNS@": extent(f"inputs[{index}]", spec, range(rank - count, rank)),
        "@EPS@": number(EPS[spec.dtype] if eps is None else eps),
        "@STATISTICS@": _STATISTICS[point["statistics"]] + (_CENTRED if centred else ""),
        "@VALUE@": full,
        "@REST@": rest,
    }
    body = _KERNEL
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    dtypes = [t.dtype for t in (*key.tensors, *key.outputs)]
    text = vector.assemble(
        point["width"],
        point["threads"],
        (vector.SUM, vector.ROW_SUM, vector.ROW_MOMENTS if centred else ""),
        body,
        dtypes,
    )
    words = (
        f"statistics in {point['statistics']}, {point['width']} lanes x {point['unroll']}, {point['threads']} thread(s)"
    )
    return Source(text, words)


RECIPE = Recipe(
    name="row norm", ops=OPS, refuses=_refuses, space=_space, starts=_starts, source=_source,
    target="call overhead and passes over the row",
)  # fmt: skip
