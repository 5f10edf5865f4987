"""Eager on the device: one CUDA graph per rotation of the buffer sets, in the judge; back-to-back calls where an operator
can't be captured.

Invariants: the operator is called with the key's own flags and autocast; each call of a rotation keeps results of its
own; the clock covers what the candidate's clock covers (whole rotations behind an untimed one).
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from forge_tui.judge.arguments import python_call
from forge_tui.judge.gpu.buffers import GpuBuffers
from forge_tui.judge.reference import numerics, operator_of, written
from forge_tui.judge.samples import torch_dtype
from forge_tui.records.card import VariantKey
from forge_tui.records.problem import HarnessProblem

WARM_UPS = 3


class GpuEager:
    """The trusted side of a pair; serves one set of buffers. Implements timing.Side."""

    def __init__(self, key: VariantKey, buffers: GpuBuffers) -> None:
        self._key, self._buffers = key, buffers
        self._operator = operator_of(key)
        self._calls = [python_call(key, buffers.input_tensors(s)) for s in range(buffers.sets)]
        self._stream = torch.cuda.Stream(buffers.device.number)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self.results: list[list[torch.Tensor]] = []
        self.method = self._open()

    def _open(self) -> str:
        torch.cuda.synchronize()
        with self._flags(), torch.cuda.stream(self._stream):
            try:
                for _ in range(WARM_UPS):
                    self.results = [self._once(0)]
            except RuntimeError as error:
                raise HarnessProblem(f"eager can't run: {str(error).splitlines()[0][:200]}") from None
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            reason = ""
            try:
                self.results = self._rotation()
            except RuntimeError as error:
                reason = str(error).splitlines()[0][:120]
            try:
                graph.capture_end()
            except RuntimeError as error:
                reason = reason or str(error).splitlines()[0][:120]
            if not reason:
                self._graph = graph
                self._graph.replay()
                torch.cuda.synchronize()
                return "eager as one CUDA graph per rotation"
            self.results = self._rotation()
            torch.cuda.synchronize()
        return f"eager back to back, not as a graph ({reason})"

    def _rotation(self) -> list[list[torch.Tensor]]:
        return [self._once(s) for s in range(self._buffers.sets)]

    def _once(self, index: int) -> list[torch.Tensor]:
        positional, named = self._calls[index]
        flat = _flat(self._operator(*positional, **named))
        return [flat[i] for i in written(self._key)]

    @contextlib.contextmanager
    def _flags(self) -> Any:
        with numerics(self._key), contextlib.ExitStack() as stack:
            if self._key.autocast:
                stack.enter_context(torch.autocast("cuda", dtype=torch_dtype(self._key.autocast)))
            yield

    def run(self, n: int, first: int, keep: tuple[int, int]) -> tuple[int, int]:
        """n calls, whole rotations; (ns by events, ns by the judge's clock)."""
        sets = self._buffers.sets
        if n % sets:
            raise HarnessProblem(f"a batch of {n} calls is not made of rotations over {sets} sets")
        rounds = n // sets
        torch.cuda.synchronize()
        began = time.monotonic_ns()
        with self._flags(), torch.cuda.stream(self._stream):
            if rounds > 1:
                self._turn()
            self._start.record(self._stream)
            for _ in range(rounds):
                self._turn()
            self._end.record(self._stream)
        self._end.synchronize()
        outside = time.monotonic_ns() - began
        self._buffers.control_results = self.results
        self._buffers.shift = (first + keep[0]) % sets
        return int(self._start.elapsed_time(self._end) * 1e6), outside

    def _turn(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            self.results = self._rotation()

    def close(self) -> None:
        """Let go of the graph and its memory."""
        torch.cuda.synchronize()
        self._graph = None
        self.results, self._calls = [], []


def _flat(raw: Any) -> list[Any]:
    if raw is None or isinstance(raw, torch.Tensor):
        return [raw]
    return [item for part in raw for item in _flat(part)]
