"""A device through its primary context: memory, streams, events. Pointers and handles are plain integers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from forge_tui.launch import structures
from forge_tui.launch.driver import Driver, DriverError
from forge_tui.records.problem import MachineProblem

Pointer = int  # device address, bytes
Stream = int  # CUstream; 0 is the legacy default stream
Event = int


@dataclass(frozen=True)
class Device:
    """number: as CUDA_VISIBLE_DEVICES counts. The context must be current in the thread that calls (`use`)."""

    driver: Driver
    number: int
    handle: int
    context: int

    @classmethod
    def open(cls, driver: Driver, number: int = 0) -> Device:
        """Retain the primary context and make it current here. Raises MachineProblem."""
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        try:
            driver.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(number))
            driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            device = cls(driver, number, handle.value, context.value or 0)
            device.use()
        except DriverError as error:
            raise MachineProblem(f"GPU {number} can't be used: {error}") from error
        return device

    def use(self) -> None:
        self.driver.call("cuCtxSetCurrent", ctypes.c_void_p(self.context))

    def close(self) -> None:
        """Give the primary context back; it goes when its last holder does so."""
        self.driver.call("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(self.handle))

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), ctypes.c_int(self.handle))
        return value.value

    @property
    def multiprocessors(self) -> int:
        return self.attribute(structures.DEVICE_MULTIPROCESSORS)

    @property
    def l2_bytes(self) -> int:
        return self.attribute(structures.DEVICE_L2_BYTES)

    @property
    def target(self) -> str:
        """ "sm_90"."""
        major, minor = self.attribute(structures.DEVICE_MAJOR), self.attribute(structures.DEVICE_MINOR)
        return f"sm_{major}{minor}"

    def allocate(self, nbytes: int) -> Pointer:
        """An allocation of its own (the driver aligns it to at least 256 bytes). Raises DriverError."""
        pointer = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, nbytes)))
        return pointer.value

    def free(self, pointer: Pointer) -> None:
        self.driver.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def fill(self, pointer: Pointer, value: int, nbytes: int, stream: Stream = 0) -> None:
        """Set bytes, in stream order."""
        self.driver.call(
            "cuMemsetD8Async", ctypes.c_uint64(pointer), ctypes.c_ubyte(value), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream)
        )  # fmt: skip

    def write(self, pointer: Pointer, data: bytes) -> None:
        """Copy host bytes to the device; returns when they are there."""
        self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_char_p(data), ctypes.c_size_t(len(data)))

    def read(self, pointer: Pointer, nbytes: int) -> bytes:
        """Copy device bytes to the host; waits for the default stream's work, not for other streams."""
        buffer = ctypes.create_string_buffer(max(1, nbytes))
        self.driver.call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
        return buffer.raw[:nbytes]

    def stream(self) -> Stream:
        """A new stream that does not wait for the default stream."""
        handle = ctypes.c_void_p()
        self.driver.call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(structures.STREAM_NON_BLOCKING))
        return handle.value or 0

    def wait(self, stream: Stream | None = None) -> None:
        """Block until the stream's work, or with None all work of the context, is done. Raises DriverError on a crash."""
        if stream is None:
            self.driver.call("cuCtxSynchronize")
        else:
            self.driver.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def event(self) -> Event:
        handle = ctypes.c_void_p()
        self.driver.call("cuEventCreate", ctypes.byref(handle), ctypes.c_uint(structures.EVENT_DEFAULT))
        return handle.value or 0

    def record(self, event: Event, stream: Stream) -> None:
        self.driver.call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def elapsed_us(self, start: Event, end: Event) -> float:
        """Microseconds between two events that have happened."""
        milliseconds = ctypes.c_float()
        self.driver.call("cuEventSynchronize", ctypes.c_void_p(end))
        self.driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), ctypes.c_void_p(start), ctypes.c_void_p(end))
        return milliseconds.value * 1e3
