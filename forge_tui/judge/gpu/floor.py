"""Ceilings of a device: bandwidth by working-set size and matmul rate by type, as `floor.Rates`.

Invariant: they err on the fast side (best of several runs, copies and pure reads, working sets that stay in the cache,
tensor cores for float32), because a time below 0.9 x floor is rejected as impossible.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from forge_tui.judge.floor import Rates

SIZES = tuple(1 << k for k in range(16, 31))  # working sets of 64 KiB to 1 GiB
MATMUL = 8192
ROUNDS = 4
TARGET_US = 300.0


def measure_rates(number: int) -> Rates:
    """Measure on device `number`; about a second."""
    with torch.cuda.device(number), torch.no_grad():
        points = []
        before: tuple[int, tuple[float, float]] = (0, (0.0, 0.0))
        for size in SIZES:
            count = size // 8
            source, target = torch.ones(count, device="cuda"), torch.empty(count, device="cuda")
            both = torch.ones(2 * count, device="cuda")
            times = (_best_us(partial(target.copy_, source)), _best_us(both.amax))
            points.append(
                (size, max(_rate(size, us, before[0], last) for us, last in zip(times, before[1], strict=True)))
            )
            before = (size, times)
        matmul = {name: _matmul(dtype) for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16))}
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            matmul["float32"] = _matmul(torch.float32)
        finally:
            torch.set_float32_matmul_precision(precision)
    torch.cuda.empty_cache()
    return Rates(tuple(points), matmul)


def _rate(size: int, us: float, last_size: int, last_us: float) -> float:
    """GB/s of the bytes added since the size before, held between the plain rate and twice it."""
    plain = size / us / 1e3
    added = (size - last_size) / max(1e-3, us - last_us) / 1e3
    return min(2 * plain, max(plain, added))


def _matmul(dtype: torch.dtype) -> float:
    """GFLOP/s of a square product of random numbers."""
    a = torch.randn(MATMUL, MATMUL, device="cuda", dtype=dtype)
    out = torch.empty_like(a)
    return 2.0 * MATMUL**3 / (_best_us(partial(torch.mm, a, a, out=out)) * 1e3)


def _best_us(work: Callable[[], object]) -> float:
    """Best time of one call in a graph of many."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
        work()
        once = max(1.0, _timed(work, stream))
        calls = max(1, min(64, int(TARGET_US / once)))
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        for _ in range(calls):
            work()
        graph.capture_end()
        graph.replay()
        return min(_timed(graph.replay, stream) for _ in range(ROUNDS)) / calls


def _timed(work: Callable[[], object], stream: torch.cuda.Stream) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) * 1000
