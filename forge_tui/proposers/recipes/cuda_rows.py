"""The frame of every kernel that reads a row once and keeps it on the chip: in registers, in shared memory, or (the rest of
a very long row) in the second-level cache. Rows share a block (short ones) or take a cluster of blocks (long ones).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forge_tui.proposers.recipes.cuda_keys import constants, powers
from forge_tui.proposers.recipes.cuda_recipe import REGISTERS, SHARED_BYTES
from forge_tui.proposers.recipes.recipe import Point

MOST_THREADS = 1024
MOST_CLUSTER = 16  # blocks; above 8 the launcher asks for the non-portable size (CUDA programming guide, clusters)
# Registers a kernel needs beside the row: addresses, sums, the reduction; read off ptxas -v of these kernels.
OTHER_REGISTERS = 30

FRAME = """\
constexpr int64_t VECS = LENGTH / N;                  // accesses of a row
constexpr int CHUNK = (int)((VECS + BLOCKS - 1) / BLOCKS);  // of one block's part
constexpr int STEPS = (CHUNK + TEAM - 1) / TEAM;      // of one thread
constexpr bool FULL = VECS % BLOCKS == 0 && CHUNK % TEAM == 0;
constexpr int THREADS = TEAM * PER, REST = STEPS - HELD - SHELF, BATCH = 8;
typedef raw_of<in_t, N> raw;
extern __shared__ uint4 shelf_memory[];

// One thread's share of a row: HELD accesses in registers, SHELF in shared memory, REST read again for each use.
struct Part {
  const raw* from;
  int t, limit;
  raw held[HELD > 0 ? HELD : 1];

  __device__ __forceinline__ bool has(int step) const { return FULL ? limit > 0 : step * TEAM + t < limit; }
  __device__ __forceinline__ raw* shelf(int s) const { return (raw*)shelf_memory + s * THREADS + threadIdx.x; }
  __device__ __forceinline__ Part(const in_t* row, int rank, bool exists) {
    t = threadIdx.x % TEAM;
    const int64_t left = VECS - (int64_t)rank * CHUNK;
    limit = exists ? (int)(left < CHUNK ? left : CHUNK) : 0;
    from = (const raw*)row + (int64_t)rank * CHUNK;
#pragma unroll
    for (int s = 0; s < SHELF; ++s)
      if (has(HELD + s))
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shelf(s))),
                     "l"(from + (HELD + s) * TEAM + t) : "memory");
#pragma unroll
    for (int s = 0; s < HELD; ++s)
      if (has(s)) held[s] = load(from + s * TEAM + t);
  }
  // Waits for the shared memory's part. Each thread reads only what it wrote, so no barrier is needed.
  __device__ __forceinline__ void arrive() const {
    if constexpr (SHELF > 0) asm volatile("cp.async.wait_all;" ::: "memory");
  }
  // f(values, index of the access in this block's part) for every access of the thread.
  template <class F> __device__ __forceinline__ void each(F f) const {
    float v[N];
#pragma unroll
    for (int s = 0; s < HELD; ++s)
      if (has(s)) {
        unpack<in_t, N>(held[s], v);
        f(v, s * TEAM + t);
      }
#pragma unroll
    for (int s = 0; s < SHELF; ++s)
      if (has(HELD + s)) {
        unpack<in_t, N>(*shelf(s), v);
        f(v, (HELD + s) * TEAM + t);
      }
    if constexpr (REST > 0) {
      for (int first = HELD + SHELF; first < STEPS; first += BATCH) {
        raw some[BATCH];
#pragma unroll
        for (int u = 0; u < BATCH; ++u)
          if (first + u < STEPS && has(first + u)) some[u] = load(from + (int64_t)(first + u) * TEAM + t);
#pragma unroll
        for (int u = 0; u < BATCH; ++u)
          if (first + u < STEPS && has(first + u)) {
            unpack<in_t, N>(some[u], v);
            f(v, (first + u) * TEAM + t);
          }
      }
    }
  }
  // Mean of the thread's first access: the anchor of its moments.
  __device__ __forceinline__ float anchor() const {
    float v[N];
    if (!has(0)) return 0;
    unpack<in_t, N>(HELD > 0 ? held[0] : load(from + t), v);
    return Moments::mean_of(v);
  }
};
"""


def rounded_up(whole: int, part: int) -> int:
    """The quotient, rounded up."""
    return (whole + part - 1) // part


@dataclass(frozen=True)
class Split:
    """How rows meet threads. team: threads of one block on one row; per: rows of a block; blocks: that share a row."""

    team: int
    per: int
    blocks: int
    steps: int
    held: int
    shelf: int

    @property
    def threads(self) -> int:
        return self.team * self.per

    @property
    def shared_bytes(self) -> int:
        return self.shelf * self.threads * 16

    def constants(self) -> str:
        values: Mapping[str, object] = {
            "TEAM": self.team, "PER": self.per, "BLOCKS": self.blocks, "HELD": self.held, "SHELF": self.shelf,
        }  # fmt: skip
        return constants(values)

    def grid(self, rows: int) -> int:
        return rows * self.blocks if self.blocks > 1 else -(-rows // self.per)


def split(length: int, point: Point, element_bytes: int) -> Split:
    """The split of a point with tunables team, rows (of a block), blocks, bytes and, optional, shelf (steps in shared memory)."""
    accesses = length * element_bytes // point["bytes"]
    team = point["team"]
    steps = rounded_up(rounded_up(accesses, point["blocks"]), team)
    shelf = min(point.get("shelf", 0), steps)
    return Split(team, point["rows"], point["blocks"], steps, steps - shelf, shelf)


def fits_chip(rows: int, length: int, point: Point, element_bytes: int, floats: bool = False) -> bool:
    """Whether the point keeps a row on the chip, wastes no more than half its threads and can be launched.

    floats: the row is kept as float32, whatever its type.
    """
    s = split(length, point, element_bytes)
    accesses = length * element_bytes // point["bytes"]
    if not 32 <= s.threads <= MOST_THREADS or (s.blocks > 1 and s.per > 1):
        return False
    if s.blocks > MOST_CLUSTER or (rows < s.per and s.threads > 32) or s.grid(rows) > 0x7FFFFFFF:
        return False
    if s.steps * s.team * s.blocks >= 2 * accesses + s.team or (s.team > accesses and s.team > 1):
        return False
    words = max(1, point["bytes"] // 4)
    kept = s.held * (point["bytes"] // element_bytes if floats else words)
    if kept + OTHER_REGISTERS > min(255, REGISTERS // s.threads) or s.shared_bytes > SHARED_BYTES - 2048:
        return False
    return s.shelf == 0 or (point["bytes"] == 16 and s.held > 0)


def teams(length: int, element_bytes: int, access: int) -> tuple[int, ...]:
    """Team sizes worth trying for a row: 1 to 1024 threads, with 1 to 32 accesses each in one block."""
    accesses = length * element_bytes // access
    return tuple(t for t in powers(1, MOST_THREADS) if t <= max(1, accesses)) or (1,)
