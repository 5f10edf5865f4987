"""Device memory of the judge's own, never torch's caching allocator, seen by torch as plain tensors.

Invariants: an arena is one allocation of whole 2 MiB pages, so that its IPC handle exposes nothing else; tensors that
look at it must be gone before `close`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.utils import dlpack

from forge_tui.launch.device import Device
from forge_tui.launch.driver import DriverError
from forge_tui.launch.structures import OUT_OF_MEMORY
from forge_tui.records.card import TensorSpec
from forge_tui.records.problem import HarnessProblem, MachineProblem

PAGE = 2 << 20
CPU, CUDA = 1, 2  # DLDeviceType


class _DlTensor(ctypes.Structure):
    """DLTensor with a byte type, then what DLManagedTensor adds (DLPack 0.x)."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class Window:
    """Foreign memory as a torch tensor of bytes; owns nothing. Keep it as long as the tensor lives."""

    def __init__(self, pointer: int, nbytes: int, device_type: int, device_id: int) -> None:
        self._shape = (ctypes.c_int64 * 1)(nbytes)
        self._strides = (ctypes.c_int64 * 1)(1)
        self._record = _DlTensor(
            pointer, device_type, device_id, 1, 1, 8, 1,
            ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64)), 0, None, None,
        )  # fmt: skip
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        capsule: Any = new(ctypes.addressof(self._record), b"dltensor", None)
        self.bytes: torch.Tensor = dlpack.from_dlpack(capsule)


class DeviceArena:
    """One allocation with the judge's view of it. Raises MachineProblem when the device has no memory for it."""

    def __init__(self, device: Device, size: int) -> None:
        self.device = device
        self.size = max(PAGE, -(-size // PAGE) * PAGE)
        self.pointer = self._allocate()
        if self.pointer % PAGE:
            raise HarnessProblem(f"the driver placed {self.size >> 20} MiB at {self.pointer:#x}, not on a 2 MiB page")
        self._window: Window | None = Window(self.pointer, self.size, CUDA, device.number)
        self.bytes = self._window.bytes

    def _allocate(self) -> int:
        for last in (False, True):
            try:
                return self.device.allocate(self.size)
            except DriverError as error:
                if error.code != OUT_OF_MEMORY or last:
                    raise MachineProblem(
                        f"no device memory for a {self.size >> 20} MiB test buffer ({error.name}); other programs may "
                        "hold it: see nvidia-smi"
                    ) from None
                torch.cuda.empty_cache()
        raise MachineProblem("no device memory")

    def tensor(self, offset: int, nbytes: int, spec: TensorSpec) -> torch.Tensor:
        """The tensor at byte `offset`, with the card's strides."""
        dtype = getattr(torch, spec.dtype)
        if nbytes == 0:
            return torch.empty(spec.sizes, dtype=dtype, device=self.bytes.device)
        return self.bytes[offset : offset + nbytes].view(dtype).as_strided(spec.sizes, spec.strides)

    def close(self) -> None:
        """Give the memory back. Safe to call twice."""
        if self._window is not None:
            self.bytes = torch.empty(0, dtype=torch.uint8)
            self._window = None
            torch.cuda.synchronize(self.device.number)
            self.device.free(self.pointer)
