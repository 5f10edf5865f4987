"""The C ABI's structures for ctypes (languages/forge_abi.h), as the Python hook fills them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

ABI = 1


class ForgeTensor(ctypes.Structure):
    """forge_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


class _Value(ctypes.Union):
    _fields_ = [
        ("i", ctypes.c_int64),
        ("d", ctypes.c_double),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("doubles", ctypes.POINTER(ctypes.c_double)),
        ("text", ctypes.c_char_p),
    ]


class ForgeScalar(ctypes.Structure):
    """forge_scalar."""

    _fields_ = [("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("v", _Value)]


class ForgeArgs(ctypes.Structure):
    """forge_args."""

    _fields_ = [
        ("abi", ctypes.c_int32),
        ("n_inputs", ctypes.c_int32),
        ("n_outputs", ctypes.c_int32),
        ("n_scalars", ctypes.c_int32),
        ("inputs", ctypes.POINTER(ForgeTensor)),
        ("outputs", ctypes.POINTER(ForgeTensor)),
        ("scalars", ctypes.POINTER(ForgeScalar)),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("prepared", ctypes.c_void_p),
        ("prepared_bytes", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ForgeArgs))


def longs(values: Sequence[int]) -> Any:
    """An int64 array; never empty, so that its address is valid."""
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def scalar(kind: int, value: Any, keep: list[Any]) -> ForgeScalar:
    """A forge_scalar of `encode.scalars_of`; what it points to is appended to `keep`."""
    made = ForgeScalar(kind, 0 if kind == 0 else 1)
    if kind in (1, 3):
        made.v.i = value
    elif kind == 2:
        made.v.d = value
    elif kind in (4, 5):
        array = longs(value) if kind == 4 else (ctypes.c_double * max(1, len(value)))(*value)
        keep.append(array)
        made.count = len(value)
        if kind == 4:
            made.v.ints = ctypes.cast(array, ctypes.POINTER(ctypes.c_int64))
        else:
            made.v.doubles = ctypes.cast(array, ctypes.POINTER(ctypes.c_double))
    elif kind == 6:
        text = value.encode()
        keep.append(text)
        made.count, made.v.text = len(text), text
    return made


def aligned_memory(size: int, alignment: int) -> tuple[Any, int]:
    """Memory of `size` bytes and its first address divisible by `alignment`."""
    memory = (ctypes.c_char * (size + alignment))()
    address = ctypes.addressof(memory)
    return memory, (address + alignment - 1) // alignment * alignment
