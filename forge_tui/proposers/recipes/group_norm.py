"""group_norm on contiguous tensors: a group is one contiguous block, its channels consecutive planes in it."""

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


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key)
    if reason:
        return reason
    given = tensor(key, "input")
    if given is None or len(given[1].dims) < 2 or not given[1].dims[1].exact:
        return "the number of channels is not exact"
    for name in ("weight", "bias"):
        extra = tensor(key, name)
        if extra is not None and extra[1].dims != given[1].dims[1:2]:
            return f"{name} is not one value per channel"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    return {
        "statistics": ("two passes", "one shifted pass"), "width": (16, 8), "unroll": (1, 2, 4),
        "threads": thread_counts(threads),
    }  # fmt: skip


def _starts(key: VariantKey, threads: int) -> list[Point]:
    spec = key.outputs[0]
    team = 1 if example_extent(spec, range(len(spec.dims))) < 16_384 else threads
    return [
        {"statistics": "one shifted pass", "width": 16, "unroll": 4, "threads": team},
        {"statistics": "two passes", "width": 16, "unroll": 4, "threads": team},
        {"statistics": "one shifted pass", "width": 8, "unroll": 4, "threads": team},
    ]


_KERNEL = """
typedef @IN@ in_t;
typedef @OUT@ out_t;
constexpr int U = @UNROLL@;  // accumulators
constexpr long CHANNELS = @CHANNELS@, GROUPS = @GROUPS@, PER_GROUP = CHANNELS / GROUPS;

extern "C" int forge_launch(const forge_args* a) {
  const in_t* in = (const in_t*)a->inputs[@INPUT@].data;
  out_t* out = (out_t*)a->outputs[0].data;
@EXTRAS@  const long samples = @SAMPLES@, plane = @PLANE@, block = PER_GROUP * plane;
  const float eps = (float)@EPS@;
  split(samples * GROUPS, 1, a->threads, [&](long from, long to) {
    for (long b = from; b < to; ++b) {
      const in_t* x = in + b * block;
      out_t* y = out + b * block;
      const float anchor = @ANCHOR@;
      const auto [shift, variance] = row_moments<U>(x, block, anchor);
      const float scale = 1.0f / __builtin_sqrtf(variance + eps);
      const long first = b % GROUPS * PER_GROUP;
      for (long c = first; c < first + PER_GROUP; ++c, x += plane, y += plane) {
        const float factor = @FACTOR@, offset = @OFFSET@;
        long i = 0;
        for (; i + W <= plane; i += W) store(y + i, (load(x + i) - anchor) * factor + offset);
        if (i < plane) store(y + i, (load(x + i, plane - i, 0.0f) - anchor) * factor + offset, plane - i);
      }
    }
  });
  return 0;
}
"""


def _source(key: VariantKey, point: Point) -> Source:
    given = tensor(key, "input")
    if given is None:
        raise ValueError("no kernel for this key: no input")
    index, spec = given
    place, rank = f"inputs[{index}]", len(spec.dims)
    extras = []
    present = {}
    for name in ("weight", "bias"):
        extra = tensor(key, name)
        present[name] = extra is not None
        if extra is not None:
            kind = C_TYPES[extra[1].dtype]
            extras.append(f"  const {kind}* {name} = (const {kind}*)a->inputs[{extra[0]}].data;\n")
    two = point["statistics"] == "two passes"
    sum_text = "(float)(row_sum<U>(x, block, 0.0f, [](vf v) { return v; }) / block)"
    replacements = {
        "@IN@": C_TYPES[spec.dtype],
        "@OUT@": C_TYPES[key.outputs[0].dtype],
        "@UNROLL@": str(point["unroll"]),
        "@INPUT@": str(index),
        "@EXTRAS@": "".join(extras),
        "@CHANNELS@": str(spec.sizes[1]),
        "@GROUPS@": str(scalar(key, "num_groups")),
        "@SAMPLES@": extent(place, spec, range(1)),
        "@PLANE@": extent(place, spec, range(2, rank)),
        "@EPS@": number(scalar(key, "eps", 1e-5)),
        "@ANCHOR@": sum_text if two else "block < W ? get(x[0]) : lanes_sum(load(x)) / W",
        "@FACTOR@": "scale * get(weight[c])" if present["weight"] else "scale",
        "@OFFSET@": ("get(bias[c]) - shift * factor" if present["bias"] else "-shift * factor"),
    }
    body = _KERNEL
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    dtypes = [t.dtype for t in (*key.tensors, *key.outputs)]
    pieces = (vector.SUM, vector.ROW_SUM if two else "", vector.ROW_MOMENTS)
    text = vector.assemble(point["width"], point["threads"], pieces, body, dtypes)
    words = (
        f"statistics in {point['statistics']}, {point['width']} lanes x {point['unroll']}, {point['threads']} thread(s)"
    )
    return Source(text, words)


RECIPE = Recipe(
    name="group norm", ops=frozenset({"aten::group_norm"}), refuses=_refuses, space=_space, starts=_starts,
    source=_source, target="passes over each group",
)  # fmt: skip
