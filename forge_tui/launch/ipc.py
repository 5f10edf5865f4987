"""Device memory shared between processes: a handle of an allocation here, a pointer to it there.

A handle gives the whole allocation that the driver made, so what is exported must be an allocation of its own
(`Device.allocate` of whole multiples of 2 MiB). Both processes use the same device.
"""

from __future__ import annotations

import ctypes

from forge_tui.launch.device import Device, Pointer

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
_LAZY_PEER_ACCESS = 1  # the only flag there is; it must be given


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


def export(device: Device, pointer: Pointer) -> bytes:
    """The handle of the allocation that starts at `pointer`. Raises DriverError where the machine refuses IPC."""
    handle = _Handle()
    device.driver.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
    return bytes(handle.reserved)


def attach(device: Device, handle: bytes) -> Pointer:
    """Where the exported allocation lies in this process. Raises DriverError; ValueError for other than 64 bytes."""
    made, pointer = _Handle.from_buffer_copy(handle), ctypes.c_uint64()
    device.driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), made, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return pointer.value


def detach(device: Device, pointer: Pointer) -> None:
    """End the mapping; the memory stays with its owner."""
    device.driver.call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))
