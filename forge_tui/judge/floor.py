"""Speed of light: no call of this card can be faster here than memory and arithmetic allow.

floor = max(bytes touched / bandwidth at that working-set size, flops / matmul rate). Invariant: the rates err on the
fast side (best of several runs, best of copy and read-only traffic, the best of all sizes from half the working set
on), because a time below 0.9 x floor is rejected as impossible.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from forge_tui.records.card import Card
from forge_tui.records.verdict import Measurement

IMPOSSIBLE = 0.9
SIZES = tuple(1 << k for k in range(14, 28))  # working sets of 16 KiB to 128 MiB
MATMUL = 768


@dataclass(frozen=True)
class Rates:
    """Measured ceilings of the device. bandwidth: (working-set bytes, GB/s), ascending. matmul: dtype -> GFLOP/s."""

    bandwidth: tuple[tuple[int, float], ...]
    matmul: dict[str, float]

    def bandwidth_at(self, nbytes: int) -> float:
        """GB/s that a working set of `nbytes` can't exceed."""
        return max([rate for size, rate in self.bandwidth if size >= nbytes / 2] or [self.bandwidth[-1][1]])

    def floor_us(self, card: Card) -> float:
        """Lower bound of one call in microseconds."""
        memory = card.bytes_moved / (self.bandwidth_at(card.bytes_moved) * 1e3)
        if not card.flops:
            return memory
        # Only what this session measured; a dtype without a rate gets the fastest known, so the bound stays low.
        dtypes = [t.dtype for t in card.key.tensors if t.dtype in self.matmul]
        rate = self.matmul[dtypes[0]] if dtypes else max(self.matmul.values())
        return max(memory, card.flops / (rate * 1e3))

    def measurements(self, device: str) -> tuple[Measurement, ...]:
        sizes = {str(size): rate for size, rate in self.bandwidth}
        best = max(rate for _, rate in self.bandwidth)
        rows = [Measurement("copy bandwidth", device, best, "GB/s", "best over working-set sizes", detail=sizes)]
        rows += [
            Measurement("matmul rate", device, rate, "GFLOP/s", f"{MATMUL} cubed, {dtype}")
            for dtype, rate in self.matmul.items()
        ]
        return tuple(rows)


def measure_rates() -> Rates:
    """Measure bandwidths and matmul rates with torch's own threads; about half a second."""
    points = []
    before: tuple[int, float, float] = (0, 0.0, 0.0)
    for size in SIZES:
        count = size // 8
        source, target = torch.ones(count), torch.empty(count)
        both = torch.ones(2 * count)
        copy_ns = _best_ns(partial(target.copy_, source))
        read_ns = _best_ns(both.sum)
        last, last_copy, last_read = before
        rates = (_rate(size, copy_ns, last, last_copy), _rate(size, read_ns, last, last_read))
        points.append((size, max(rates)))
        before = (size, copy_ns, read_ns)
    matmul = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.ones(MATMUL, MATMUL, dtype=dtype)
        out = torch.empty_like(a)
        with torch.no_grad():
            best = _best_ns(partial(torch.mm, a, a, out=out))
        matmul[str(dtype).removeprefix("torch.")] = 2.0 * MATMUL**3 / best
    matmul["float16"] = max(matmul.values())
    return Rates(tuple(points), matmul)


def _rate(size: int, ns: float, last_size: int, last_ns: float) -> float:
    """GB/s without the cost of the call itself: the rate of the bytes added since the size before.

    Held between the plain rate and twice it, for where the extra bytes also bring in another thread.
    """
    plain = size / ns
    added = (size - last_size) / max(1e-3, ns - last_ns)
    return min(2 * plain, max(plain, added))


def _best_ns(work: Callable[[], object], budget_ns: int = 15_000_000) -> float:
    """Best time of one call: batches of 20 us or more, so that the clock's own cost drops out."""
    work()
    start = time.perf_counter_ns()
    work()
    once = max(1, time.perf_counter_ns() - start)
    batch = max(1, 20_000 // once)
    best = float("inf")
    deadline = time.perf_counter_ns() + budget_ns
    rounds = 0
    while rounds < 3 or time.perf_counter_ns() < deadline:
        start = time.perf_counter_ns()
        for _ in range(batch):
            work()
        best = min(best, (time.perf_counter_ns() - start) / batch)
        rounds += 1
    return best
