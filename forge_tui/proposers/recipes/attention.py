"""scaled_dot_product_attention over short sequences: scores of a few queries stay in the first-level cache.

Any strides as long as the head dimension is contiguous, so the transposed views that models pass need no copy.
A query whose keys are all masked gives zeros, as in eager; one whose scores are all NaN gives zeros when there is
no mask and fewer than 16 keys and NaN otherwise, also as in eager, whose maximum drops a NaN in that case alone.
"""

from __future__ import annotations

from forge_tui.proposers.recipes import vector
from forge_tui.proposers.recipes.keys import number, scalar, tensor, thread_counts
from forge_tui.proposers.recipes.recipe import Point, Recipe, Source, Space
from forge_tui.records.card import TensorSpec, VariantKey

# Scores of up to 4 queries against this many keys are 64 KiB of a thread's stack.
_MOST_KEYS = 4096


def _refuses(key: VariantKey) -> str:
    if key.mutates or len(key.outputs) != 1 or any(a >= 0 for a in key.output_alias):
        return "does not write exactly one fresh output"
    if scalar(key, "dropout_p", 0.0):
        return "dropout"
    parts = [tensor(key, name) for name in ("query", "key", "value")]
    if any(p is None for p in parts):
        return "query, key or value is missing"
    specs = [p[1] for p in parts if p is not None]
    for spec in (*specs, key.outputs[0]):
        if len(spec.dims) != 4 or spec.dtype != "float32":
            return "not four-dimensional float32"
        if spec.strides[-1] != 1 or spec.layout == "channels_last":
            return "the head dimension is not contiguous"
        if any(d.lo == 0 for d in spec.dims):
            return "an empty tensor"
    query, keys, values = specs
    width = query.dims[3]
    if not width.exact or width.lo % 8 or width.lo > 256 or keys.dims[3] != width or values.dims[3] != width:
        return "the head size is not a multiple of 8 up to 256"
    if keys.dims[2].hi > _MOST_KEYS or values.dims[2] != keys.dims[2]:
        return f"more than {_MOST_KEYS} keys"
    if not keys.dims[1].exact or not query.dims[1].exact or query.sizes[1] % keys.sizes[1]:
        return "query heads are not a multiple of key heads"
    return _mask_refused(key, query, keys)


def _mask_refused(key: VariantKey, query: TensorSpec, keys: TensorSpec) -> str:
    mask = tensor(key, "attn_mask")
    if mask is None:
        return ""
    spec = mask[1]
    if scalar(key, "is_causal", False):
        return "a mask and is_causal"
    if spec.dtype not in ("float32", "bool") or not 2 <= len(spec.dims) <= 4:
        return f"a mask of {spec.dtype} with {len(spec.dims)} dimensions"
    wanted = (query.dims[0], query.dims[1], query.dims[2], keys.dims[2])[4 - len(spec.dims) :]
    for have, want in zip(spec.dims, wanted, strict=True):
        if have != want and not (have.exact and have.lo == 1):
            return "the mask does not broadcast over the scores"
    return ""


def _sizes(key: VariantKey) -> tuple[int, int, int]:
    """Queries, keys, head size."""
    query, keys = tensor(key, "query"), tensor(key, "key")
    if query is None or keys is None:
        raise ValueError("no kernel for this key: no query or key")
    return query[1].sizes[2], keys[1].sizes[2], query[1].sizes[3]


def _space(key: VariantKey, threads: int) -> Space:
    return {"queries": (1, 2, 4), "width": (16, 8), "unroll": (1, 2, 4), "threads": thread_counts(threads)}


def _allowed(key: VariantKey, point: Point) -> bool:
    head = _sizes(key)[2]
    accumulators = point["queries"] * head // point["width"]
    return bool(head % point["width"] == 0 and accumulators <= (24 if point["width"] == 16 else 12))


def _starts(key: VariantKey, threads: int) -> list[Point]:
    queries, keys, head = _sizes(key)
    width = 16 if head % 16 == 0 else 8
    most = next((q for q in (4, 2, 1) if q <= queries and q * head // width <= (24 if width == 16 else 12)), 1)
    team = 1 if key.outputs[0].numel * keys < 50_000 else threads
    return [
        {"queries": most, "width": width, "unroll": 1, "threads": team},
        {"queries": most, "width": width, "unroll": 2, "threads": threads if team == 1 else 1},
        {"queries": max(1, most // 2), "width": width, "unroll": 2, "threads": team},
        {"queries": 1, "width": 8, "unroll": 2, "threads": team},
    ]


_KERNEL = """
constexpr int D = @HEAD@, DV = D / W;       // head size in floats, in vectors
constexpr int Q = @QUERIES@, KEYS = W / Q;  // a vector of scores holds Q queries x KEYS keys
constexpr long MOST = @MOST@;               // keys at most, rounded up
constexpr float LOWEST = -__builtin_inff();
INLINE long least(long a, long b) { return a < b ? a : b; }

// out = softmax(q . k * scale + mask) . v for queries t .. t + Q - 1 of one head (the last one repeated past T).
struct head { const float *q, *k, *v; float* out; long tq, tk, tv, to; };  // strides from token to token, in floats
INLINE void attend(const head& h, long t, long T, long S, float scale@MASK_PARAMETERS@) {
  alignas(64) float scores[Q][MOST];
  const float* q[Q];
  for (int i = 0; i < Q; ++i) q[i] = h.q + least(t + i, T - 1) * h.tq;
  const long last = @LAST_KEY@;  // keys that any of these queries sees
  for (long s = 0; s < last; s += KEYS) {
    const float* k[KEYS];
    for (int j = 0; j < KEYS; ++j) k[j] = h.k + least(s + j, S - 1) * h.tk;
    vf dots[W] = {};
#pragma GCC unroll 32
    for (int d = 0; d < D; d += W)
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) {
        const vf part = load(q[i] + d);
#pragma GCC unroll 16
        for (int j = 0; j < KEYS; ++j) dots[i * KEYS + j] += part * load(k[j] + d);
      }
    const vf sums = group_sums(dots) * scale;
    for (int i = 0; i < Q; ++i) __builtin_memcpy(&scores[i][s], (const char*)&sums + i * KEYS * 4, KEYS * 4);
  }
  const long padded = (last + W - 1) / W * W;
  float factor[Q];
  for (int i = 0; i < Q; ++i) {
    float* row = scores[i];
@MASK@    for (long s = @ROW_END@; s < padded; ++s) row[s] = LOWEST;
    vf most = splat(LOWEST);
    for (long s = 0; s < padded; s += W) most = load(row + s) > most ? load(row + s) : most;  // a NaN never wins
    const float max = lanes_max(most);
    float empty = 0.0f;
    if (max == LOWEST && (@MASKED@ || S >= 16))
      for (long s = 0; s < last; ++s) empty = row[s] != row[s] ? row[s] : empty;
    vf sum = {};
#pragma GCC unroll @UNROLL@
    for (long s = 0; s < padded; s += W) {
      const vf e = vexp_low(load(row + s) - (max == LOWEST ? 0.0f : max));
      store(row + s, max == LOWEST ? vf{} : e);
      sum += e;
    }
    factor[i] = max == LOWEST ? empty : 1.0f / lanes_sum(sum);
  }
  vf acc[Q][DV] = {};
#pragma GCC unroll @UNROLL@
  for (long s = 0; s < last; ++s) {
    vf v[DV];
#pragma GCC unroll 32
    for (int d = 0; d < DV; ++d) v[d] = load(h.v + s * h.tv + d * W);
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 32
      for (int d = 0; d < DV; ++d) acc[i][d] += scores[i][s] * v[d];
  }
  for (int i = 0; i < Q && t + i < T; ++i)
    for (int d = 0; d < DV; ++d) store(h.out + (t + i) * h.to + d * W, acc[i][d] * factor[i]);
}

extern "C" int forge_launch(const forge_args* a) {
  const forge_tensor *q = a->inputs + @QUERY@, *k = a->inputs + @KEY@, *v = a->inputs + @VALUE@, *o = a->outputs;
  const long heads = q->sizes[1], shared = heads / k->sizes[1], T = q->sizes[2], S = k->sizes[2];
  const long blocks = (T + Q - 1) / Q;
  if (S > MOST) return 1;
@MASK_DATA@  split(q->sizes[0] * heads * blocks, 1, a->threads, [&](long from, long to) {
    for (long task = from; task < to; ++task) {
      const long t = task % blocks * Q, n = task / blocks % heads, b = task / blocks / heads, m = n / shared;
      const head h = {(const float*)q->data + b * q->strides[0] + n * q->strides[1],
                      (const float*)k->data + b * k->strides[0] + m * k->strides[1],
                      (const float*)v->data + b * v->strides[0] + m * v->strides[1],
                      (float*)o->data + b * o->strides[0] + n * o->strides[1],
                      q->strides[2], k->strides[2], v->strides[2], o->strides[2]};
      attend(h, t, T, S, (float)@SCALE@@MASK_ARGUMENTS@);
    }
  });
  return 0;
}
"""
_MASK = """\
    const @MASK_TYPE@* line = mask + least(t + i, T - 1) * mask_t;
    for (long s = 0; s < S; ++s) @APPLY@
"""


def _source(key: VariantKey, point: Point) -> Source:
    _, keys, head = _sizes(key)
    places = {name: tensor(key, name) for name in ("query", "key", "value", "attn_mask")}
    mask = places["attn_mask"]
    causal = bool(scalar(key, "is_causal", False))
    scale = scalar(key, "scale")
    key_spec = places["key"]
    most = key_spec[1].dims[2].hi if key_spec is not None else keys
    kind = "uint8_t" if mask is not None and mask[1].dtype == "bool" else "float"
    replacements = {
        "@MASK@": "" if mask is None else _MASK,
        "@MASKED@": "false" if mask is None else "true",
        "@MASK_DATA@": "" if mask is None else _mask_data(*mask, kind),
        "@MASK_PARAMETERS@": "" if mask is None else f", const {kind}* mask, long mask_t, long mask_s",
        "@MASK_ARGUMENTS@": "" if mask is None else ", mask + b * mask_b + n * mask_h, mask_t, mask_s",
        "@APPLY@": "row[s] += line[s * mask_s] ? 0.0f : LOWEST;"
        if kind == "uint8_t"
        else "row[s] += line[s * mask_s];",
        "@MASK_TYPE@": kind,
        "@LAST_KEY@": "least(t + Q, S)" if causal else "S",
        "@ROW_END@": "least(t + i + 1, last)" if causal else "last",
        "@HEAD@": str(head),
        "@QUERIES@": str(point["queries"]),
        "@MOST@": str(-(-most // 16) * 16),
        "@UNROLL@": str(point["unroll"]),
        "@SCALE@": number(head**-0.5 if scale is None else scale),
        **{f"@{name.upper()}@": str(place[0]) for name, place in places.items() if place is not None},
    }
    body = _KERNEL
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    pieces = (vector.SUM, vector.MAX, vector.EXP_LOW, vector.group_sums(point["width"]))
    text = vector.assemble(point["width"], point["threads"], pieces, body)
    words = (
        f"{point['queries']} queries at a time, scores in cache, {point['width']} lanes, {point['threads']} thread(s)"
    )
    return Source(text, words)


def _mask_data(index: int, spec: TensorSpec, kind: str) -> str:
    """Pointer and strides of the mask; 0 along dimensions that it is broadcast over."""
    rank = len(spec.dims)
    lines = [f"  const {kind}* mask = (const {kind}*)a->inputs[{index}].data;\n"]
    for position, name in enumerate(("mask_b", "mask_h", "mask_t", "mask_s")):
        d = position - (4 - rank)
        whole = d >= 0 and not (spec.dims[d].exact and spec.dims[d].lo == 1)
        lines.append(f"  const long {name} = {f'a->inputs[{index}].strides[{d}]' if whole else '0'};\n")
    return "".join(lines)


RECIPE = Recipe(
    name="attention", ops=frozenset({"aten::scaled_dot_product_attention"}), refuses=_refuses, space=_space,
    starts=_starts, source=_source, allowed=_allowed, target="call overhead and block bookkeeping for short sequences",
)  # fmt: skip
