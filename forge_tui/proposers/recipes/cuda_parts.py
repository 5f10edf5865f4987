"""Device code that the CUDA recipes share: vector accesses, conversions, reductions of lanes, a team, and several blocks.

Text only. Names: a *team* is the threads of one block that work on one row; a row may be shared by several blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

BASE = """\
#define DEV static __device__ __forceinline__
constexpr float INF = __builtin_inff();

DEV float f32(float x) { return x; }
template <class T> DEV T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
DEV void split2(unsigned w, float& a, float& b, float) { a = b = 0; }  // no 16-bit pair in a float card
DEV unsigned join2(float a, float b, float) { return 0; }
"""
HALVES = {
    "bfloat16": """\
DEV float f32(__nv_bfloat16 x) { return __bfloat162float(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
DEV void split2(unsigned w, float& a, float& b, __nv_bfloat16) {
  a = __uint_as_float(w << 16);
  b = __uint_as_float(w & 0xffff0000u);
}
DEV unsigned join2(float a, float b, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  unsigned w;
  memcpy(&w, &pair, 4);
  return w;
}
""",
    "float16": """\
DEV float f32(__half x) { return __half2float(x); }
template <> __device__ __forceinline__ __half from_f32<__half>(float x) { return __float2half_rn(x); }
DEV void split2(unsigned w, float& a, float& b, __half) {
  __half2 pair;
  memcpy(&pair, &w, 4);
  const float2 f = __half22float2(pair);
  a = f.x;
  b = f.y;
}
DEV unsigned join2(float a, float b, __half) {
  const __half2 pair = __floats2half2_rn(a, b);
  unsigned w;
  memcpy(&w, &pair, 4);
  return w;
}
""",
}
VECTORS = """\
template <int BYTES> struct Raw;
template <> struct Raw<16> { typedef uint4 type; };
template <> struct Raw<8> { typedef uint2 type; };
template <> struct Raw<4> { typedef unsigned type; };
template <> struct Raw<2> { typedef unsigned short type; };
template <class T, int N> using raw_of = typename Raw<(int)sizeof(T) * N>::type;

template <class R> DEV R load(const R* p) { return @LOAD@; }
template <class R> DEV void store(R* p, R v) { @STORE@; }
template <class T, int N> DEV void unpack(const raw_of<T, N>& r, float (&f)[N]) {
  if constexpr (sizeof(T) == 4) {
    memcpy(f, &r, sizeof r);
  } else if constexpr (N == 1) {
    T x;
    memcpy(&x, &r, 2);
    f[0] = f32(x);
  } else {
    unsigned w[N / 2];
    memcpy(w, &r, sizeof r);
#pragma unroll
    for (int k = 0; k < N / 2; ++k) split2(w[k], f[2 * k], f[2 * k + 1], T());
  }
}
// N floats to memory as T, in accesses of at most 16 bytes.
template <class T, int N> DEV void put(T* p, const float (&f)[N]) {
  constexpr int AT_ONCE = sizeof(T) * N > 16 ? 16 / (int)sizeof(T) : N;
#pragma unroll
  for (int at = 0; at < N; at += AT_ONCE) {
    raw_of<T, AT_ONCE> r;
    if constexpr (sizeof(T) == 4) {
      memcpy(&r, f + at, sizeof r);
    } else if constexpr (AT_ONCE == 1) {
      const T x = from_f32<T>(f[at]);
      memcpy(&r, &x, 2);
    } else {
      unsigned w[AT_ONCE / 2];
#pragma unroll
      for (int k = 0; k < AT_ONCE / 2; ++k) w[k] = join2(f[at + 2 * k], f[at + 2 * k + 1], T());
      memcpy(&r, w, sizeof r);
    }
    store((raw_of<T, AT_ONCE>*)(p + at), r);
  }
}
// N elements of a small table (weights), which stays in the caches.
template <class T, int N> DEV void table(const T* p, float (&f)[N]) {
  constexpr int AT_ONCE = sizeof(T) * N > 16 ? 16 / (int)sizeof(T) : N;
#pragma unroll
  for (int at = 0; at < N; at += AT_ONCE) {
    float g[AT_ONCE];
    unpack<T, AT_ONCE>(__ldg((const raw_of<T, AT_ONCE>*)(p + at)), g);
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) f[at + k] = g[k];
  }
}
"""
LOADS = {"plain": "*p", "streaming": "__ldcs(p)", "read-only": "__ldg(p)"}
STORES = {"plain": "*p = v", "streaming": "__stcs(p, v)"}

# K floats that are reduced together. `merge` need not be exact in either order: every thread applies it alike.
LANES = """\
template <int N> DEV float pairwise(const float (&v)[N]) {  // N is a power of two; errors grow with its logarithm
  float w[N];
#pragma unroll
  for (int k = 0; k < N; ++k) w[k] = v[k];
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; ++k) w[k] += w[k + half];
  return w[0];
}
template <int K> struct Acc { float v[K]; };
template <int WIDTH, int K, class F> DEV Acc<K> lanes(Acc<K> a, F merge) {
#pragma unroll
  for (int o = WIDTH / 2; o > 0; o /= 2) {
    Acc<K> b;
#pragma unroll
    for (int k = 0; k < K; ++k) b.v[k] = __shfl_xor_sync(0xffffffffu, a.v[k], o);
    a = merge(a, b);
  }
  return a;
}
struct Add {
  template <int K> DEV Acc<K> both(Acc<K> a, const Acc<K>& b) {
#pragma unroll
    for (int k = 0; k < K; ++k) a.v[k] += b.v[k];
    return a;
  }
  template <int K> __device__ __forceinline__ Acc<K> operator()(Acc<K> a, const Acc<K>& b) const { return both(a, b); }
};
// TEAM threads of a block (a power of two), PER teams in it; SLOT tells reductions of one pass over the code apart.
template <int SLOT, int TEAM, int PER, int K, class F> DEV Acc<K> team(Acc<K> a, F merge) {
  a = lanes<(TEAM < 32 ? TEAM : 32)>(a, merge);
  if constexpr (TEAM > 32) {
    constexpr int WARPS = TEAM / 32;
    __shared__ float part[PER][K][WARPS];
    const int mine = threadIdx.x / TEAM, warp = threadIdx.x % TEAM / 32, lane = threadIdx.x % 32;
    if (lane == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) part[mine][k][warp] = a.v[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) a.v[k] = part[mine][k][lane % WARPS];
    a = lanes<WARPS>(a, merge);
  }
  return a;
}
"""
CLUSTER = """\
DEV unsigned cluster_rank() {
  unsigned r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEV void cluster_put(float* mine, unsigned rank, float v) {
  unsigned here = (unsigned)__cvta_generic_to_shared(mine), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(v) : "memory");
}
// Values of BLOCKS blocks (a power of two up to 16) of a cluster, through each other's shared memory. Every block has
// arrived once at the cluster's barrier before (at its start) and waits for that here: all are then running. Between two
// reductions (FIRST false) the barrier of the earlier one has done that.
template <int SLOT, int BLOCKS, bool FIRST, int K, class F> DEV Acc<K> blocks(Acc<K> a, F merge) {
  __shared__ float part[K][BLOCKS];
  if constexpr (FIRST) cluster_wait();
  if (threadIdx.x < BLOCKS) {
#pragma unroll
    for (int k = 0; k < K; ++k) cluster_put(&part[k][cluster_rank()], threadIdx.x, a.v[k]);
  }
  cluster_arrive();
  cluster_wait();
#pragma unroll
  for (int k = 0; k < K; ++k) a.v[k] = part[k][threadIdx.x % BLOCKS];
  return lanes<BLOCKS>(a, merge);
}
"""
# Sums that lose nothing to rounding on the way: Knuth's two-sum keeps what each addition rounds off.
EXACT_SUMS = """\
struct Sum {
  float s = 0, c = 0;
  __device__ __forceinline__ void add(float x) {
    if constexpr (COMPENSATED) {
      const float t = s + x, b = t - s;
      c += (s - (t - b)) + (x - b);
      s = t;
    } else {
      s += x;
    }
  }
  __device__ __forceinline__ Acc<2> result() const { return {{s, c}}; }
};
struct AddSums {
  __device__ __forceinline__ Acc<2> operator()(const Acc<2>& a, const Acc<2>& b) const {
    Sum t{a.v[0], a.v[1] + b.v[1]};
    t.add(b.v[0]);
    return t.result();
  }
};
DEV Acc<2> together(const Sum (&sums)[4]) {
  const AddSums add;
  return add(add(sums[0].result(), sums[1].result()), add(sums[2].result(), sums[3].result()));
}
// After an overflow or a NaN the rest is NaN too and means nothing.
DEV double whole(const Acc<2>& a) { return fabsf(a.v[0]) < INF ? (double)a.v[0] + (double)a.v[1] : (double)a.v[0]; }
"""
# Mean and squared deviations around each thread's own anchor (the mean of its first access), merged by Chan, Golub and
# LeVeque's pairwise formula (1979): a common offset of the row cancels before anything is squared.
MOMENTS = """\
struct Chan {  // count, mean, squared deviations
  __device__ __forceinline__ Acc<3> operator()(const Acc<3>& a, const Acc<3>& b) const {
    const float n = a.v[0] + b.v[0], share = n > 0 ? __fdividef(b.v[0], n) : 0.0f, d = b.v[1] - a.v[1];
    return {{n, fmaf(d, share, a.v[1]), a.v[2] + b.v[2] + d * d * a.v[0] * share}};
  }
};
struct Moments {
  float anchor, s = 0, q = 0, n = 0;
  template <int N> DEV float mean_of(const float (&v)[N]) {
    float s = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) s += v[k];
    return s / N;
  }
  template <int N> __device__ __forceinline__ void add(const float (&v)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float d = v[k] - anchor;
      s += d;
      q = fmaf(d, d, q);
    }
    n += N;
  }
  __device__ __forceinline__ Acc<3> result() const {
    if (n == 0) return {{0, 0, 0}};
    const float shift = s / n, left = q - s * shift;
    return {{n, anchor + shift, q < INF ? fmaxf(left, 0.0f) : q}};  // an overflow stays infinite, a NaN stays NaN
  }
};
"""


def assemble(dtypes: Iterable[str], pieces: Iterable[str], body: str, load: str = "plain", store: str = "plain") -> str:
    """A complete source: card.h, conversions of the dtypes in use, vector accesses with the cache hints, pieces, body."""
    halves = "".join(HALVES[d] for d in sorted(set(dtypes)) if d in HALVES)
    vectors = VECTORS.replace("@LOAD@", LOADS[load]).replace("@STORE@", STORES[store])
    return "\n".join(['#include "card.h"', BASE + halves, vectors, *[p for p in pieces if p], body])
