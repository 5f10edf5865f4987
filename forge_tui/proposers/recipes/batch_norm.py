"""batch_norm in inference: one multiply and add per element with the channel's constants, at memory speed."""

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

_VECTORS = ("weight", "bias", "running_mean", "running_var")


def _refuses(key: VariantKey) -> str:
    if scalar(key, "training", False):
        return "training mode"
    reason = not_plain(key)
    if reason:
        return reason
    given = tensor(key, "input")
    if given is None or len(given[1].dims) < 2 or not given[1].dims[1].exact:
        return "the number of channels is not exact"
    for name in _VECTORS:
        extra = tensor(key, name)
        if extra is None and name.startswith("running"):
            return f"no {name}"
        if extra is not None and extra[1].dims != given[1].dims[1:2]:
            return f"{name} is not one value per channel"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    return {"width": (16, 8), "unroll": (1, 2, 4), "threads": thread_counts(threads)}


def _starts(key: VariantKey, threads: int) -> list[Point]:
    spec = key.outputs[0]
    team = 1 if example_extent(spec, range(len(spec.dims))) < 16_384 else threads
    return [
        {"width": 16, "unroll": 2, "threads": team},
        {"width": 8, "unroll": 4, "threads": team},
        {"width": 16, "unroll": 1, "threads": threads if team == 1 else 1},
    ]


_KERNEL = """
constexpr int U = @UNROLL@;
constexpr long CHANNELS = @CHANNELS@;

extern "C" int forge_launch(const forge_args* a) {
  const @IN@* in = (const @IN@*)a->inputs[@INPUT@].data;
  @OUT@* out = (@OUT@*)a->outputs[0].data;
@EXTRAS@  const long planes = @SAMPLES@ * CHANNELS, n = @PLANE@;
  const float eps = (float)@EPS@;
  split(planes, 1, a->threads, [&](long from, long to) {
    for (long p = from; p < to; ++p) {
      const long c = p % CHANNELS;
      // Subtracting the mean first keeps a large common offset from cancelling after the multiplication.
      const float mean = get(running_mean[c]), factor = @FACTOR@ / __builtin_sqrtf(get(running_var[c]) + eps);
      const float offset = @OFFSET@;
      const @IN@* x = in + p * n;
      @OUT@* y = out + p * n;
      long i = 0;
      for (; i + U * W <= n; i += U * W)
#pragma GCC unroll 4
        for (int k = 0; k < U; ++k) store(y + i + k * W, (load(x + i + k * W) - mean) * factor + offset);
      for (; i + W <= n; i += W) store(y + i, (load(x + i) - mean) * factor + offset);
      if (i < n) store(y + i, (load(x + i, n - i, 0.0f) - mean) * factor + offset, n - i);
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
    extras = []
    present = set()
    for name in _VECTORS:
        extra = tensor(key, name)
        if extra is not None:
            present.add(name)
            kind = C_TYPES[extra[1].dtype]
            extras.append(f"  const {kind}* {name} = (const {kind}*)a->inputs[{extra[0]}].data;\n")
    place, rank = f"inputs[{index}]", len(spec.dims)
    replacements = {
        "@IN@": C_TYPES[spec.dtype],
        "@OUT@": C_TYPES[key.outputs[0].dtype],
        "@UNROLL@": str(point["unroll"]),
        "@INPUT@": str(index),
        "@EXTRAS@": "".join(extras),
        "@CHANNELS@": str(spec.sizes[1]),
        "@SAMPLES@": extent(place, spec, range(1)),
        "@PLANE@": extent(place, spec, range(2, rank)),
        "@EPS@": number(scalar(key, "eps", 1e-5)),
        "@FACTOR@": "get(weight[c])" if "weight" in present else "1.0f",
        "@OFFSET@": "get(bias[c])" if "bias" in present else "0.0f",
    }
    body = _KERNEL
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    dtypes = [t.dtype for t in (*key.tensors, *key.outputs)]
    text = vector.assemble(point["width"], point["threads"], (), body, dtypes)
    return Source(text, f"{point['width']} lanes x {point['unroll']}, {point['threads']} thread(s)")


RECIPE = Recipe(
    name="batch norm", ops=frozenset({"aten::batch_norm"}), refuses=_refuses, space=_space, starts=_starts,
    source=_source, target="memory bandwidth",
)  # fmt: skip
