"""Element types: one fixed enumeration shared with the C ABI (`languages/forge_abi.h`)."""

from __future__ import annotations

# name -> (code in the C ABI, bytes per element)
DTYPES: dict[str, tuple[int, int]] = {
    "bool": (0, 1),
    "uint8": (1, 1),
    "int8": (2, 1),
    "int16": (3, 2),
    "int32": (4, 4),
    "int64": (5, 8),
    "float16": (6, 2),
    "bfloat16": (7, 2),
    "float32": (8, 4),
    "float64": (9, 8),
    "float8_e4m3fn": (10, 1),
    "float8_e5m2": (11, 1),
    "complex64": (12, 8),
    "complex128": (13, 16),
}

# Unit round-off used by the error rule (distance from 1 to the next number).
EPS: dict[str, float] = {
    "float64": 2.220446049250313e-16,
    "float32": 1.1920928955078125e-07,
    "float16": 9.765625e-04,
    "bfloat16": 7.8125e-03,
    "float8_e4m3fn": 0.125,
    "float8_e5m2": 0.25,
}
FLOATING = frozenset(EPS)
SHORT: dict[str, str] = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "b8", "uint8": "u8",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def itemsize(dtype: str) -> int:
    """Bytes per element. Raises KeyError for an unknown dtype."""
    return DTYPES[dtype][1]
