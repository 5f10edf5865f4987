"""A batch of calls as one CUDA graph: k buffer sets after each other, replayed with one launch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from forge_tui.launch import structures
from forge_tui.launch.device import Device, Stream
from forge_tui.launch.driver import DriverError
from forge_tui.launch.program import Call
from forge_tui.records.problem import Problem


class Graph:
    """An instantiated graph; `calls` of it are made per launch. The calls' buffers must outlive it."""

    def __init__(self, device: Device, handle: int, calls: Sequence[Call]) -> None:
        self._device, self._handle, self._kept = device, handle, tuple(calls)
        self.calls = len(calls)

    def launch(self, stream: Stream) -> Problem | None:
        """Enqueue the whole batch on `stream`."""
        try:
            self._device.driver.call("cuGraphLaunch", ctypes.c_void_p(self._handle), ctypes.c_void_p(stream))
        except DriverError as error:
            return error.problem("the batch")
        return None

    def destroy(self) -> None:
        self._device.driver.call("cuGraphExecDestroy", ctypes.c_void_p(self._handle))


def capture(device: Device, calls: Sequence[Call], stream: Stream) -> Graph | Problem:
    """Record the calls in order on `stream`, which must not be the default stream. Runs nothing."""
    driver, graph, executable = device.driver, ctypes.c_void_p(), ctypes.c_void_p()
    try:
        driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(structures.CAPTURE_THREAD_LOCAL))
        problem = next((p for p in (call.launch(stream) for call in calls) if p is not None), None)
        # The capture has to be ended even when a launch failed, or the stream stays unusable.
        code = driver.code("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        if problem is not None:
            if graph.value:
                driver.call("cuGraphDestroy", graph)
            return problem
        if code != structures.SUCCESS:
            raise DriverError("cuStreamEndCapture", code, driver.name_of(code))
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        driver.call("cuGraphDestroy", graph)
    except DriverError as error:
        return error.problem("capturing the batch")
    return Graph(device, executable.value or 0, calls)
