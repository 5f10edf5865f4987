"""Kernel parameters as bytes: scalars by C type, pointers as 8 bytes. Pure."""

from __future__ import annotations

import struct
from typing import Any

from forge_tui.records.expr import ExprError, value_of
from forge_tui.records.plan import PlanArg

_FORMATS = {
    "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q", "f16": "<e",
    "f32": "<f", "f64": "<d", "bool": "<?", "bf16": "<H",
}  # fmt: skip
FLOATS = ("f16", "bf16", "f32", "f64")


class PackError(ValueError):
    """The value does not fit its C type, or is none."""


def scalar_bytes(ctype: str, value: Any) -> bytes:
    """A number as its C type. Integers out of range are refused; floats round to nearest even and overflow to infinity."""
    if isinstance(value, (list, tuple, str)) or value is None:
        raise PackError(f"{value!r} is not a number")
    if ctype in FLOATS:
        return _float_bytes(ctype, float(value))
    if isinstance(value, float) and not value.is_integer():
        raise PackError(f"{value!r} is not an integer, the parameter is {ctype}")
    whole = int(value)
    try:
        return struct.pack(_FORMATS[ctype], bool(whole) if ctype == "bool" else whole)
    except struct.error:
        raise PackError(f"{whole} does not fit {ctype}") from None


def _float_bytes(ctype: str, value: float) -> bytes:
    if ctype == "bf16":
        return struct.pack("<H", bfloat16_bits(value))
    try:
        return struct.pack(_FORMATS[ctype], value)
    except OverflowError:
        return struct.pack(_FORMATS[ctype], float("inf") if value > 0 else float("-inf"))


def bfloat16_bits(value: float) -> int:
    """Nearest bfloat16, ties to even, rounded once from the double; a NaN stays a quiet NaN."""
    if value != value:
        return 0x7FC0
    wide = struct.unpack("<Q", struct.pack("<d", value))[0]
    sign = (wide >> 48) & 0x8000
    magnitude = abs(value)
    if magnitude == float("inf"):
        return int(sign | 0x7F80)
    # bfloat16 numbers of one sign are an increasing sequence of their bits: find the step below, then round.
    _, exponent = _split(magnitude)
    unit = 2.0 ** (max(exponent, -126) - 7)
    steps = round(magnitude / unit)  # exact quotient (a power of two), ties to even
    bits = steps if exponent < -126 else ((exponent + 127) << 7) + steps - 128
    return int(sign | min(bits, 0x7F80))


def _split(magnitude: float) -> tuple[float, int]:
    """(fraction in [1, 2), exponent) of a positive double; exponent -1000 for 0."""
    if magnitude == 0:
        return 0.0, -1000
    mantissa, exponent = magnitude.hex().split("p")
    shift = int(exponent)
    if mantissa.startswith("0x0"):  # a subnormal double is far below every bfloat16
        shift = -1000
    return float.fromhex(mantissa + "p0"), shift


def scalar_of(arg: PlanArg, symbols: dict[str, int], card_value: Any) -> bytes:
    """A scalar parameter: the plan's own value, or the card's scalar where the plan gives none."""
    if not arg.value:
        if isinstance(card_value, (list, tuple)) and len(card_value) == 2 and isinstance(card_value[0], str):
            card_value = card_value[1]  # a wrapped number is [dtype, value]
        return scalar_bytes(arg.ctype, card_value)
    if arg.ctype in FLOATS:
        try:
            return scalar_bytes(arg.ctype, float(arg.value))
        except ValueError:
            raise PackError(f"{arg.value[:40]!r} is not a number") from None
    try:
        return scalar_bytes(arg.ctype, value_of(arg.value, symbols))
    except ExprError as error:
        raise PackError(str(error)) from None


def pointer_bytes(address: int) -> bytes:
    return struct.pack("<Q", address)
