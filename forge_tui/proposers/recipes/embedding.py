"""embedding: copies rows of a table. Declines before writing when an index is outside the table, so that eager raises."""

from __future__ import annotations

from forge_tui.proposers.recipes import vector
from forge_tui.proposers.recipes.keys import C_TYPES, contiguous, example_extent, extent, tensor, thread_counts
from forge_tui.proposers.recipes.recipe import Point, Recipe, Source, Space
from forge_tui.records.card import VariantKey
from forge_tui.records.dtype import itemsize


def _refuses(key: VariantKey) -> str:
    weight, indices = tensor(key, "weight"), tensor(key, "indices")
    if weight is None or indices is None or key.mutates or len(key.outputs) != 1:
        return "no table or no indices"
    if indices[1].dtype not in ("int64", "int32"):
        return f"indices are {indices[1].dtype}"
    if len(weight[1].dims) != 2 or not all(d.exact and d.lo > 0 for d in weight[1].dims):
        return "the table's sizes are not exact"
    for spec in (weight[1], indices[1], key.outputs[0]):
        if not contiguous(spec):
            return f"{spec.name or 'a tensor'} is not contiguous"
        if any(d.lo == 0 for d in spec.dims):
            return "an empty tensor"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    return {"copy": ("memcpy", "vectors"), "width": (16, 8), "threads": thread_counts(threads)}


def _starts(key: VariantKey, threads: int) -> list[Point]:
    spec = key.outputs[0]
    team = 1 if example_extent(spec, range(len(spec.dims))) < 65_536 else threads
    return [
        {"copy": "memcpy", "width": 16, "threads": team},
        {"copy": "vectors", "width": 16, "threads": team},
    ]


_KERNEL = """
constexpr long ENTRIES = @ENTRIES@, BYTES = @BYTES@;  // rows of the table, bytes of one

INLINE void copy(char* to, const char* from) {
@COPY@}

extern "C" int forge_launch(const forge_args* a) {
  const char* table = (const char*)a->inputs[@TABLE@].data;
  const @INDEX_TYPE@* indices = (const @INDEX_TYPE@*)a->inputs[@INDICES@].data;
  char* out = (char*)a->outputs[0].data;
  const long rows = @ROWS@;
  for (long r = 0; r < rows; ++r)
    if (indices[r] < 0 || indices[r] >= ENTRIES) return 1;
  split(rows, 1, a->threads, [&](long from, long to) {
    for (long r = from; r < to; ++r) copy(out + r * BYTES, table + indices[r] * BYTES);
  });
  return 0;
}
"""
_COPY = {
    "memcpy": "  __builtin_memcpy(to, from, BYTES);\n",
    "vectors": """\
  typedef char bytes __attribute__((vector_size(4 * W)));
  long i = 0;
  for (bytes v; i + 4 * W <= BYTES; i += 4 * W) {
    __builtin_memcpy(&v, from + i, sizeof v);
    __builtin_memcpy(to + i, &v, sizeof v);
  }
  for (; i < BYTES; ++i) to[i] = from[i];
""",
}


def _source(key: VariantKey, point: Point) -> Source:
    weight, indices = tensor(key, "weight"), tensor(key, "indices")
    if weight is None or indices is None:
        raise ValueError("no kernel for this key: no table or no indices")
    replacements = {
        "@ENTRIES@": str(weight[1].sizes[0]),
        "@BYTES@": str(weight[1].sizes[1] * itemsize(weight[1].dtype)),
        "@COPY@": _COPY[point["copy"]],
        "@TABLE@": str(weight[0]),
        "@INDICES@": str(indices[0]),
        "@INDEX_TYPE@": C_TYPES[indices[1].dtype],
        "@ROWS@": extent(f"inputs[{indices[0]}]", indices[1], range(len(indices[1].dims))),
    }
    body = _KERNEL
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    text = vector.assemble(point["width"], point["threads"], (), body)
    return Source(text, f"rows by {point['copy']}, {point['threads']} thread(s)")


RECIPE = Recipe(
    name="embedding", ops=frozenset({"aten::embedding"}), refuses=_refuses, space=_space, starts=_starts,
    source=_source, target="call overhead",
)  # fmt: skip
