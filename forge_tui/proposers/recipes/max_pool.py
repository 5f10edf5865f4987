"""max_pool2d on contiguous planes: maxima along each row first, then across rows.

Rows first keeps eager's order of comparison: the first of equal values in row-major order wins (0.0 and -0.0 are equal
but differ in bits), and a NaN in the window wins over everything.
"""

from __future__ import annotations

from forge_tui.proposers.recipes import vector
from forge_tui.proposers.recipes.keys import example_extent, extent, not_plain, scalar, thread_counts
from forge_tui.proposers.recipes.recipe import Point, Recipe, Source, Space
from forge_tui.records.card import VariantKey

# Widest row whose scratch lines stay a small part of a thread's stack.
_WIDEST = 8192


def _pair(value: object) -> tuple[int, int]:
    items = [value] if isinstance(value, int) else list(value or ())  # type: ignore[call-overload]
    return (items[0], items[-1]) if items else (0, 0)


def _window(key: VariantKey) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Kernel, stride and padding as (height, width)."""
    kernel = _pair(scalar(key, "kernel_size"))
    stride = scalar(key, "stride")
    return kernel, _pair(stride) if stride else kernel, _pair(scalar(key, "padding", 0))


def _refuses(key: VariantKey) -> str:
    reason = not_plain(key, ("float32",))
    if reason:
        return reason
    if _pair(scalar(key, "dilation", 1)) != (1, 1):
        return "dilated windows"
    if scalar(key, "ceil_mode", False):
        return "ceil_mode"
    for spec in (key.tensors[0], key.outputs[0]):
        if not all(d.exact for d in spec.dims[-2:]):
            return "the plane's sizes are not exact"
    if key.outputs[0].sizes[-1] > _WIDEST or max(_window(key)[0]) > 16:
        return "rows or windows too wide for the scratch lines"
    return ""


def _space(key: VariantKey, threads: int) -> Space:
    return {"order": ("rows then columns", "window by window"), "width": (16, 8), "threads": thread_counts(threads)}


def _starts(key: VariantKey, threads: int) -> list[Point]:
    spec = key.tensors[0]
    team = 1 if example_extent(spec, range(len(spec.dims))) < 16_384 else threads
    return [
        {"order": "rows then columns", "width": 8, "threads": team},
        {"order": "rows then columns", "width": 16, "threads": team},
        {"order": "window by window", "width": 8, "threads": team},
    ]


_KERNEL = """
constexpr long H = @H@, WIDTH = @WIDTH_IN@, OH = @OH@, OW = @OW@;
constexpr long KH = @KH@, KW = @KW@, SH = @SH@, SW = @SW@, PH = @PH@, PW = @PW@;
// Outputs FIRST .. LAST - 1 of a row have their whole window inside it.
constexpr long FIRST = (PW + SW - 1) / SW < OW ? (PW + SW - 1) / SW : OW;
constexpr long INSIDE = WIDTH - KW + PW < 0 ? 0 : (WIDTH - KW + PW) / SW + 1;
constexpr long LAST = INSIDE < FIRST ? FIRST : (INSIDE < OW ? INSIDE : OW);
constexpr float LOWEST = -__builtin_inff();

INLINE float later(float most, float x) { return x > most || x != x ? x : most; }
INLINE vf later(vf most, vf x) { return (x > most) | (x != x) ? x : most; }

// Every SW-th float from p.
INLINE vf strided(const float* p) {
  if (SW == 1) return load(p);
  if (SW == 2) {
    vi even;
    for (int i = 0; i < W; ++i) even[i] = 2 * i;
    const vf a = load(p), b = load(p + W - 1);  // the second starts one early so as not to read past the last element
    for (int i = W / 2; i < W; ++i) even[i] += 1;
    return __builtin_shuffle(a, b, even);
  }
  vf v;
  for (int i = 0; i < W; ++i) v[i] = p[i * SW];
  return v;
}

INLINE float edge(const float* row, long o) {
  float most = LOWEST;
  for (long k = 0; k < KW; ++k) {
    const long at = o * SW - PW + k;
    if (at >= 0 && at < WIDTH) most = later(most, row[at]);
  }
  return most;
}

// Maxima along one row: h[o] over the window of output o.
INLINE void along(const float* row, float* h) {
  for (long o = 0; o < FIRST; ++o) h[o] = edge(row, o);
  long o = FIRST;
  for (; o < LAST; o += W) {
    if (o + W > LAST) {
      if (LAST - FIRST < W) break;
      o = LAST - W;  // the last vector overlaps the one before
    }
    const float* p = row + o * SW - PW;
    vf most = strided(p);
#pragma GCC unroll 16
    for (long k = 1; k < KW; ++k) most = later(most, strided(p + k));
    store(h + o, most);
  }
  if (LAST - FIRST < W)
    for (o = FIRST; o < LAST; ++o) h[o] = edge(row, o);
  for (o = LAST; o < OW; ++o) h[o] = edge(row, o);
}

// Maxima of `count` lines, element by element.
INLINE void across(float* out, const float* const* lines, long count) {
  long o = 0;
  for (; o + W <= OW; o += W) {
    vf most = load(lines[0] + o);
    for (long k = 1; k < count; ++k) most = later(most, load(lines[k] + o));
    store(out + o, most);
  }
  for (; o < OW; ++o) {
    float most = lines[0][o];
    for (long k = 1; k < count; ++k) most = later(most, lines[k][o]);
    out[o] = most;
  }
}

extern "C" int forge_launch(const forge_args* a) {
  const float* in = (const float*)a->inputs[0].data;
  float* out = (float*)a->outputs[0].data;
  const long planes = @PLANES@;
  split(planes, 1, a->threads, [&](long from, long to) {
    float lines[KH][OW];  @LINES_NOTE@
    for (long p = from; p < to; ++p) {
      const float* x = in + p * H * WIDTH;
      float* y = out + p * OH * OW;
@DONE@      for (long oh = 0; oh < OH; ++oh, y += OW) {
        const long top = oh * SH - PH, r0 = top < 0 ? 0 : top, r1 = top + KH < H ? top + KH : H;
        const float* window[KH];
@FILL@        across(y, window, r1 - r0);
      }
    }
  });
  return 0;
}
"""
_FILL = {
    "rows then columns": """\
        for (long r = r0 > done ? r0 : done; r < r1; ++r) along(x + r * WIDTH, lines[r % KH]);
        done = r1 > done ? r1 : done;
        for (long r = r0; r < r1; ++r) window[r - r0] = lines[r % KH];
""",
    "window by window": """\
        for (long r = r0; r < r1; ++r) {
          along(x + r * WIDTH, lines[r - r0]);
          window[r - r0] = lines[r - r0];
        }
""",
}


def _source(key: VariantKey, point: Point) -> Source:
    given, out = key.tensors[0], key.outputs[0]
    (kh, kw), (sh, sw), (ph, pw) = _window(key)
    reuse = point["order"] == "rows then columns"
    replacements = {
        "@H@": str(given.sizes[-2]), "@WIDTH_IN@": str(given.sizes[-1]),
        "@OH@": str(out.sizes[-2]), "@OW@": str(out.sizes[-1]),
        "@KH@": str(kh), "@KW@": str(kw), "@SH@": str(sh), "@SW@": str(sw), "@PH@": str(ph), "@PW@": str(pw),
        "@PLANES@": extent("inputs[0]", given, range(len(given.dims) - 2)),
        "@LINES_NOTE@": "// row r in line r % KH: windows that overlap share it" if reuse else "// the rows of one window",
        "@DONE@": "      long done = 0;\n" if reuse else "",
        "@FILL@": _FILL[point["order"]],
    }  # fmt: skip
    body = _KERNEL
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    text = vector.assemble(point["width"], point["threads"], (), body)
    return Source(text, f"separable maxima, {point['order']}, {point['width']} lanes, {point['threads']} thread(s)")


RECIPE = Recipe(
    name="max pool", ops=frozenset({"aten::max_pool2d"}), refuses=_refuses, space=_space, starts=_starts,
    source=_source, target="scalar comparisons with index bookkeeping in eager",
)  # fmt: skip
