"""C++ building blocks of the recipes: vectors, loads and stores, exp and friends, and splitting work over threads.

Everything is GCC vector extensions, so the text names no instruction set. Polynomials were fitted by Chebyshev
interpolation in 40-digit arithmetic; the error beside each is the largest relative error of the fit, to which float
evaluation adds one or two units in the last place.
"""

from __future__ import annotations

from collections.abc import Iterable

BASE = """\
#include "card.h"
#include <stdint.h>
#define INLINE static inline __attribute__((always_inline))

constexpr int W = @WIDTH@;    // floats in a vector
constexpr int TEAM = @TEAM@;  // most threads this kernel asks for
typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef float v4 __attribute__((vector_size(16)));

INLINE vf splat(float x) { return x - vf{}; }
INLINE vf load(const float* p) { vf v; __builtin_memcpy(&v, p, sizeof v); return v; }
INLINE void store(float* p, vf v) { __builtin_memcpy(p, &v, sizeof v); }
INLINE float get(float x) { return x; }
INLINE void put(float* p, float x) { *p = x; }

// The first n < W elements; the other lanes read as `fill`.
template <class T> INLINE vf load(const T* p, long n, float fill) {
  vf v = splat(fill);
  for (long i = 0; i < n; ++i) v[i] = get(p[i]);
  return v;
}
template <class T> INLINE void store(T* p, vf v, long n) {
  for (long i = 0; i < n; ++i) put(p + i, v[i]);
}

// body(from, to) for consecutive shares of 0..n in steps of `unit`, one share a thread.
template <class Body> INLINE void split(long n, long unit, int threads, Body body) {
  const int team = threads < TEAM ? threads : TEAM;
  if (TEAM <= 1 || team <= 1 || n <= unit) return body(0L, n);
  const long share = (n + unit * team - 1) / (unit * team) * unit;
#pragma omp parallel for num_threads(team) schedule(static)
  for (int t = 0; t < team; ++t) {
    const long from = t * share, to = from + share < n ? from + share : n;
    if (from < to) body(from, to);
  }
}
"""

BF16 = """
struct bf16 { uint16_t bits; };
typedef uint16_t vh __attribute__((vector_size(2 * W)));
INLINE vf load(const bf16* p) {
  vh h;
  __builtin_memcpy(&h, p, sizeof h);
  return (vf)(__builtin_convertvector(h, vi) << 16);
}
INLINE void store(bf16* p, vf v) {  // to nearest even; a NaN stays a NaN
  const vi u = (vi)v;
  const vi rounded = ((u + 0x7fff + ((u >> 16) & 1)) >> 16) & 0xffff;
  const vh h = __builtin_convertvector(v == v ? rounded : vi{} + 0x7fc0, vh);
  __builtin_memcpy(p, &h, sizeof h);
}
INLINE float get(bf16 x) {
  const uint32_t u = (uint32_t)x.bits << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
INLINE void put(bf16* p, float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  p->bits = x == x ? (u + 0x7fff + ((u >> 16) & 1)) >> 16 : 0x7fc0;
}
"""

SUM = """
// Sum of the lanes of a vector, always in the same order.
INLINE float lanes_sum(vf v) {
  v4 q[W / 4];
  __builtin_memcpy(q, &v, sizeof v);
  const v4 s = W == 8 ? q[0] + q[1] : (q[0] + q[W / 8]) + (q[1] + q[W / 4 - 1]);
  return (s[0] + s[2]) + (s[1] + s[3]);
}
"""

MAX = """
INLINE vf larger(vf a, vf b) { return a > b ? a : b; }
INLINE float lanes_max(vf v) {
  v4 q[W / 4];
  __builtin_memcpy(q, &v, sizeof v);
  for (int i = 1; i < W / 4; ++i) q[0] = q[i] > q[0] ? q[i] : q[0];
  const float a = q[0][0] > q[0][2] ? q[0][0] : q[0][2], b = q[0][1] > q[0][3] ? q[0][1] : q[0][3];
  return a > b ? a : b;
}
"""

_EXP = """
// e^x@REMARK@, fit error 2.2e-10: x = k ln 2 + r, |r| <= ln 2 / 2.
INLINE vf @NAME@(vf x) {
@CLAMP@  const vf shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  const vf n = shifted - 12582912.0f;
  vf r = x - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  vf p = r * 0.000198909911f + 0.00139336498f;
  p = p * r + 0.00833331048f;
  p = p * r + 0.0416664667f;
  p = p * r + 0.166666672f;
  p = p * r + 0.5f;
  p = p * (r * r) + (r + 1.0f);
@SCALE@}
"""
# 0x4b400000 is 1.5 * 2^23 in bits; its low bits count up with k.
EXP = (
    _EXP.replace("@REMARK@", " for any x").replace("@NAME@", "vexp")
    .replace("@CLAMP@", "  x = x < -105.0f ? splat(-105.0f) : x;\n  x = x > 90.0f ? splat(90.0f) : x;\n")
    .replace("@SCALE@", """\
  const vi k = (vi)shifted - 0x4b400000, half = k >> 1;  // in two steps, for subnormal results and the last binade
  return p * (vf)((half + 127) << 23) * (vf)((k - half + 127) << 23);
""")
)  # fmt: skip
EXP_LOW = (
    _EXP.replace("@REMARK@", " for x up to 40, subnormal results included").replace("@NAME@", "vexp_low")
    .replace("@CLAMP@", "  x = x < -105.0f ? splat(-105.0f) : x;\n")
    .replace("@SCALE@", "  return p * (vf)(((vi)shifted + (127 + 64 - 0x4b400000)) << 23) * 0x1p-64f;\n")
)  # fmt: skip
EXP_ADDED = (
    _EXP.replace("@REMARK@", " where 1 is added to it: small results may stay at 2^-125").replace("@NAME@", "vexp_added")
    .replace("@CLAMP@", "  x = x < -86.0f ? splat(-86.0f) : x;\n  x = x > 88.9f ? splat(88.9f) : x;\n")
    .replace("@SCALE@", "  return p * (vf)(((vi)shifted + (126 - 0x4b400000)) << 23) * 2.0f;\n")
)  # fmt: skip

TANH = """
// tanh x: odd polynomial below 0.625 (fit error 1.7e-8), through e^2x above, where nothing cancels.
INLINE vf vtanh(vf x) {
  const vf t = x * x;
  vf p = t * -0.00606214814f + 0.0209732335f;
  p = p * t - 0.0538458228f;
  p = p * t + 0.133327365f;
  p = p * t - 0.333333284f;
  const vf magnitude = x < 0.0f ? -x : x;
  const vf large = 1.0f - 2.0f / (vexp_added(magnitude + magnitude) + 1.0f);
  return magnitude < 0.625f ? x * (t * p + 1.0f) : (x < 0.0f ? -large : large);
}
"""

SQRT = """
INLINE vf vsqrt(vf x) {
  for (int i = 0; i < W; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}
"""

# Coefficients 0..6 (rows) of 16 intervals (columns) of f on [0, LIMIT), in the local variable u in [-1/2, 1/2).
# Φ(-x), x in [0, 6): absolute error 3e-8, relative error 1.1e-6 below 4.
NORMAL_TAIL = (6.0, (
    (0.425634325, 0.286887705, 0.174250707, 0.0946757421, 0.0457536243, 0.0195800792, 0.00739460718, 0.00245790114, 0.000717542309, 0.000183669952, 4.11674664e-05, 8.0709442e-06, 1.38281348e-06, 2.06897028e-07, 2.70166751e-08, 3.07733417e-09),
    (-0.146996588, -0.127712846, -0.0964027196, -0.0632224455, -0.0360230617, -0.0178327095, -0.007669752, -0.00286597689, -0.000930446491, -0.000262444548, -6.43148378e-05, -1.36934359e-05, -2.53303642e-06, -4.07097474e-07, -5.68438665e-08, -6.89600288e-09),
    (0.00516784843, 0.0134697137, 0.0169457905, 0.0155586489, 0.0113979224, 0.00689624297, 0.00350531656, 0.00151135516, 0.00055608718, 0.000175304725, 4.74824083e-05, 1.10724077e-05, 2.22629387e-06, 3.86422073e-07, 5.79534678e-08, 7.51543272e-09),
    (0.00332405185, 0.00204617204, 0.000273643294, -0.00107077078, -0.00155994284, -0.00135999313, -0.000888281851, -0.000464173325, -0.000199760296, -7.19129021e-05, -2.18613113e-05, -5.64692391e-06, -1.24476696e-06, -2.34890535e-07, -3.80335017e-08, -5.29393684e-09),
    (-0.00017954917, -0.00042359301, -0.00042121057, -0.000232897582, -2.03524687e-05, 0.000101332858, 0.000120827208, 8.69657888e-05, 4.6660869e-05, 1.99097103e-05, 6.95753261e-06, 2.02378533e-06, 4.9493957e-07, 1.02455758e-07, 1.80377011e-08, 2.71024891e-09),
    (-6.71181624e-05, -2.52220289e-05, 2.35295083e-05, 4.5161516e-05, 3.53536125e-05, 1.30887802e-05, -3.22743949e-06, -8.4821213e-06, -6.92799085e-06, -3.81421273e-06, -1.60595312e-06, -5.42301564e-07, -1.50418586e-07, -3.47537785e-08, -6.74965861e-09, -1.10883591e-09),
    (4.12725876e-06, 8.77184539e-06, 6.47173511e-06, 6.50694574e-07, -3.32849527e-06, -3.56127362e-06, -1.75751961e-06, -1.35597972e-07, 5.02634407e-07, 4.72197655e-07, 2.62267235e-07, 1.07054603e-07, 3.4365808e-08, 8.95251606e-09, 1.92631644e-09, 3.46187051e-10),
))  # fmt: skip
# (1 - tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, x in [0, 5.5): absolute error 3e-8, relative error 1.5e-6 below 4.
TANH_TAIL = (5.5, (
    (0.43176955, 0.30309552, 0.195187151, 0.114642121, 0.0610787347, 0.0293345861, 0.0125983991, 0.00478803646, 0.0015897468, 0.000454362977, 0.000109998247, 2.21797472e-05, 3.66137579e-06, 4.8631756e-07, 5.10783096e-08, 4.16910284e-09),
    (-0.135116026, -0.120000988, -0.0947074294, -0.0664881542, -0.0415556319, -0.0231087338, -0.0113936514, -0.00494448328, -0.00186778244, -0.000605515495, -0.000165768521, -3.76707721e-05, -6.98278154e-06, -1.03742968e-06, -1.21399125e-07, -1.09966152e-08),
    (0.00401045522, 0.0106687397, 0.013989497, 0.0136948759, 0.0109729227, 0.00746532949, 0.0043832548, 0.0022299916, 0.000978167052, 0.000365777785, 0.000114852155, 2.97720762e-05, 6.26059136e-06, 1.04943945e-06, 1.37821445e-07, 1.39395784e-08),
    (0.00259321975, 0.00173002621, 0.000470071391, -0.000593921577, -0.00112415978, -0.00114560418, -0.000882455031, -0.000556382176, -0.000293969031, -0.000130252563, -4.79051523e-05, -1.44064061e-05, -3.48398657e-06, -6.6621169e-07, -9.90590436e-08, -1.12645493e-08),
    (-0.000119355631, -0.000291187433, -0.000312275515, -0.000205214994, -6.18058912e-05, 4.08137239e-05, 8.11651116e-05, 7.66539742e-05, 5.3276337e-05, 2.946524e-05, 1.3152151e-05, 4.70984696e-06, 1.33624712e-06, 2.96051383e-07, 5.04634947e-08, 6.51879173e-09),
    (-4.50480547e-05, -2.03218533e-05, 1.08898184e-05, 2.81604061e-05, 2.61720652e-05, 1.41538594e-05, 2.75181787e-06, -3.53089285e-06, -5.12303632e-06, -4.11544988e-06, -2.41150542e-06, -1.08168024e-06, -3.73586147e-07, -9.8774656e-08, -1.97995789e-08, -2.97476221e-09),
    (2.37037762e-06, 5.33041839e-06, 4.46451213e-06, 1.15447062e-06, -1.52237885e-06, -2.17603156e-06, -1.51063637e-06, -6.05405432e-07, 1.36805083e-08, 2.69378717e-07, 2.69890421e-07, 1.67981526e-07, 7.43015462e-08, 2.40659794e-08, 5.73965364e-09, 1.00468478e-09),
))  # fmt: skip

_TABLE = """
// f(|x|) for the tail of a bell curve: 16 intervals of [0, @LIMIT@), a polynomial of degree 6 in each; 0 beyond.
alignas(64) static const float TABLE[7][16] = {
@ROWS@
};
#define LOOKUP(k) (W == 16 ? __builtin_shuffle(load(TABLE[k]), at) : __builtin_shuffle(load(TABLE[k]), load(TABLE[k] + 16 - W), at))
INLINE vf tail(vf magnitude) {
  const vf scaled = magnitude * (float)(16 / @LIMIT@);
  const vf inside = scaled < 15.9999f ? scaled : splat(15.9999f);
  const vi at = __builtin_convertvector(inside, vi);
  const vf u = inside - (__builtin_convertvector(at, vf) + 0.5f);
  vf p = LOOKUP(6);
#pragma GCC unroll 6
  for (int k = 5; k >= 0; --k) p = p * u + LOOKUP(k);
  return scaled < 16.0f ? p : vf{};
}
"""


def table(tail: tuple[float, tuple[tuple[float, ...], ...]]) -> str:
    """C++ text of `tail(vf)` for one of the coefficient tables above. Widths 8 and 16 only."""
    limit, rows = tail
    lines = ["  {" + ", ".join(f"{value:.9g}f" for value in row) + "}," for row in rows]
    text = _TABLE.replace("@ROWS@", "\n".join(lines))
    return text.replace("@LIMIT@", str(limit))


_GROUP_SUMS = """
// Sums of the lanes of W vectors, v[n] into lane n: 4-lane groups are folded onto each other, then pairs inside a group.
#define FOLD(a, b, p, q) (__builtin_shuffle(a, b, p) + __builtin_shuffle(a, b, q))
INLINE vf group_sums(const vf* v) {
@FOLDS@}
"""

# Folds of two vectors into one: halves, 128-bit lanes, pairs, neighbours. Indices above W - 1 name the second vector.
_FOLDS = {
    16: """\
  const vi half0 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, half1 = half0 + 8;
  const vi lane0 = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, lane1 = lane0 + 4;
  const vi pair0 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}, pair1 = pair0 + 2;
  const vi even = {0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30}, odd = even + 1;
  vf quad[4];
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) {
    const vf x = FOLD(v[e], v[4 + e], half0, half1), y = FOLD(v[8 + e], v[12 + e], half0, half1);
    quad[e] = FOLD(x, y, lane0, lane1);
  }
  const vf r = FOLD(quad[0], quad[1], pair0, pair1), s = FOLD(quad[2], quad[3], pair0, pair1);
  return FOLD(r, s, even, odd);
""",
    8: """\
  const vi lane0 = {0, 1, 2, 3, 8, 9, 10, 11}, lane1 = lane0 + 4;
  const vi pair0 = {0, 1, 8, 9, 4, 5, 12, 13}, pair1 = pair0 + 2;
  const vi even = {0, 2, 8, 10, 4, 6, 12, 14}, odd = even + 1;
  vf quad[4];
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) quad[e] = FOLD(v[e], v[4 + e], lane0, lane1);
  const vf r = FOLD(quad[0], quad[1], pair0, pair1), s = FOLD(quad[2], quad[3], pair0, pair1);
  return FOLD(r, s, even, odd);
""",
}

ROW_SUM = """
// Sum of f(x) over a row in U independent accumulators; f(at_rest) is 0. Long rows go in blocks whose sums are added in
// double, so that rounding does not pile up in one accumulator.
template <int U, class T, class F> INLINE float block_sum(const T* x, long n, float at_rest, F f) {
  vf s[U] = {};
  long i = 0;
  for (; i + U * W <= n; i += U * W)
#pragma GCC unroll 8
    for (int k = 0; k < U; ++k) s[k] += f(load(x + i + k * W));
  for (; i + W <= n; i += W) s[0] += f(load(x + i));
  if (i < n) s[0] += f(load(x + i, n - i, at_rest));
  for (int k = 1; k < U; ++k) s[0] += s[k];
  return lanes_sum(s[0]);
}
template <int U, class T, class F> INLINE double row_sum(const T* x, long n, float at_rest, F f) {
  if (n <= 2048) return block_sum<U>(x, n, at_rest, f);
  double sum = 0.0;
  for (long i = 0; i < n; i += 1024) sum += block_sum<U>(x + i, n - i < 1024 ? n - i : 1024, at_rest, f);
  return sum;
}
"""

ROW_MOMENTS = """
// Sums of (x - anchor) and (x - anchor)^2 over a row, as row_sum does it.
template <int U, class T> INLINE void block_moments(const T* x, long n, float anchor, float& sum, float& squares) {
  vf s[U] = {}, q[U] = {};
  long i = 0;
  for (; i + U * W <= n; i += U * W)
#pragma GCC unroll 8
    for (int k = 0; k < U; ++k) {
      const vf v = load(x + i + k * W) - anchor;
      s[k] += v;
      q[k] += v * v;
    }
  for (; i < n; i += W) {
    const vf v = (i + W <= n ? load(x + i) : load(x + i, n - i, anchor)) - anchor;
    s[0] += v;
    q[0] += v * v;
  }
  for (int k = 1; k < U; ++k) s[0] += s[k], q[0] += q[k];
  sum = lanes_sum(s[0]);
  squares = lanes_sum(q[0]);
}

// Mean as anchor + shift, and the variance. The anchor is a float, so x - anchor loses nothing to a common offset.
struct moments { float shift, variance; };
template <int U, class T> INLINE moments row_moments(const T* x, long n, float anchor) {
  float s, q;
  double sum = 0.0, squares = 0.0;
  for (long i = 0, step = n <= 2048 ? n : 1024; i < n; i += step) {
    block_moments<U>(x + i, n - i < step ? n - i : step, anchor, s, q);
    sum += s;
    squares += q;
  }
  const double shift = sum / n, variance = squares / n - shift * shift;
  return {(float)shift, (float)(variance < 0.0 ? 0.0 : variance)};
}
"""


def group_sums(width: int) -> str:
    """C++ text of `group_sums(const vf*)`: the lane sums of `width` vectors at once."""
    return _GROUP_SUMS.replace("@FOLDS@", _FOLDS[width])


def assemble(width: int, team: int, pieces: Iterable[str], body: str, dtypes: Iterable[str] = ()) -> str:
    """A complete source: the base, bf16 conversions when needed, the pieces used, then the kernel."""
    text = BASE.replace("@WIDTH@", str(width)).replace("@TEAM@", str(team))
    if "bfloat16" in set(dtypes):
        text += BF16
    return text + "".join(pieces) + "\n" + body.strip() + "\n"
