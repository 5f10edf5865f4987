"""The driver API's structures and numbers, as cuda.h of CUDA 12.0 to 13.0 declares them."""

from __future__ import annotations

import ctypes

SUCCESS = 0
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
# Attributes of a launch (CUlaunchAttributeID), of a function (CUfunction_attribute), of a device (CUdevice_attribute).
COOPERATIVE, CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 2, 4, 6
FUNCTION_SHARED, FUNCTION_REGISTERS, FUNCTION_LOCAL, FUNCTION_MAX_DYNAMIC_SHARED, FUNCTION_NON_PORTABLE_CLUSTER = (
    1,
    4,
    3,
    8,
    14,
)
DEVICE_MULTIPROCESSORS, DEVICE_L2_BYTES, DEVICE_MAJOR, DEVICE_MINOR, DEVICE_MOST_SHARED = 16, 38, 75, 76, 97
PORTABLE_CLUSTER = 8  # blocks of a cluster that every device with clusters takes
STREAM_NON_BLOCKING = 1
CAPTURE_THREAD_LOCAL = 1
EVENT_DEFAULT = 0
# CUtensorMapDataType by dtype name.
TENSOR_MAP_TYPES = {
    "uint8": 0, "int8": 0, "bool": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "int32": 3, "int64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
TENSOR_MAP_BYTES = 128


class Dimensions(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class AttributeValue(ctypes.Union):
    _fields_ = [("pad", ctypes.c_char * 64), ("cluster", Dimensions), ("number", ctypes.c_int)]


class LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", AttributeValue)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", Dimensions),
        ("block", Dimensions),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    ]
