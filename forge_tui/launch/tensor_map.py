"""Descriptors for the bulk tensor copy engine (sm_90 and newer), encoded by the driver from a card's tensor."""

from __future__ import annotations

import ctypes

from forge_tui.launch import structures
from forge_tui.launch.driver import Driver, DriverError
from forge_tui.records.card import TensorSpec
from forge_tui.records.dtype import itemsize
from forge_tui.records.problem import Problem

_L2_PROMOTION_128, _NO_SWIZZLE, _NO_INTERLEAVE, _FILL_ZEROS = 2, 0, 0, 0


def encode(driver: Driver, spec: TensorSpec, address: int, box: tuple[int, ...]) -> bytes | Problem:
    """128 bytes for tensor `spec` at `address`, boxes of `box` elements (the tensor's own dimension order), no swizzle."""
    rank = len(spec.dims)
    if spec.dtype not in structures.TENSOR_MAP_TYPES or not 1 <= rank <= 5 or spec.strides[-1] != 1:
        line = f"no tensor map for {spec.dtype} of {rank} dimensions with strides {list(spec.strides)}"
        return Problem("candidate", "bad plan", line)
    size = itemsize(spec.dtype)
    # The driver counts dimensions from the innermost; strides are in bytes and leave the innermost out.
    sizes = (ctypes.c_uint64 * rank)(*reversed(spec.sizes))
    strides = (ctypes.c_uint64 * max(1, rank - 1))(*(s * size for s in reversed(spec.strides[:-1])))
    boxes, steps = (ctypes.c_uint32 * rank)(*reversed(box)), (ctypes.c_uint32 * rank)(*([1] * rank))
    room = ctypes.create_string_buffer(structures.TENSOR_MAP_BYTES + 64)
    start = ctypes.addressof(room) + (-ctypes.addressof(room) % 64)
    try:
        driver.call(
            "cuTensorMapEncodeTiled", ctypes.c_void_p(start), ctypes.c_int(structures.TENSOR_MAP_TYPES[spec.dtype]),
            ctypes.c_uint32(rank), ctypes.c_void_p(address), sizes, strides, boxes, steps, ctypes.c_int(_NO_INTERLEAVE),
            ctypes.c_int(_NO_SWIZZLE), ctypes.c_int(_L2_PROMOTION_128), ctypes.c_int(_FILL_ZEROS),
        )  # fmt: skip
    except DriverError as error:
        return Problem("candidate", "bad plan", f"the driver refuses the tensor map: {error}")
    return ctypes.string_at(start, structures.TENSOR_MAP_BYTES)
