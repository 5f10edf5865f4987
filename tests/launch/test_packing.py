"""Numbers as kernel parameters."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.launch.packing import PackError, bfloat16_bits, scalar_bytes, scalar_of
from forge_tui.records.plan import PlanArg

RANGES = {"i8": (-128, 127), "u8": (0, 255), "i16": (-(1 << 15), (1 << 15) - 1), "u16": (0, 65535),
          "i32": (-(1 << 31), (1 << 31) - 1), "u32": (0, (1 << 32) - 1), "i64": (-(1 << 63), (1 << 63) - 1),
          "u64": (0, (1 << 64) - 1)}  # fmt: skip


def from_bits(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


@pytest.mark.parametrize("ctype", RANGES)
def test_integers_keep_their_value_to_the_ends_of_their_type_and_not_beyond(ctype: str) -> None:
    low, high = RANGES[ctype]
    for value in (low, 0, 1, high):
        assert int.from_bytes(scalar_bytes(ctype, value), "little", signed=low < 0) == value
    for value in (low - 1, high + 1):
        with pytest.raises(PackError, match="does not fit"):
            scalar_bytes(ctype, value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_bfloat16_is_the_nearest_one_and_ties_go_to_even(value: float) -> None:
    bits = bfloat16_bits(value)
    found = from_bits(bits)
    assert math.copysign(1, found) == math.copysign(1, value)
    if math.isinf(found):
        assert abs(value) >= 3.3961775292304957e38  # half a step above the largest bfloat16
        return
    for neighbour in (bits - 1, bits + 1):
        other = from_bits(neighbour) if neighbour & 0x7FFF <= 0x7F7F and neighbour >= 0 else None
        if other is None or math.isinf(other) or math.copysign(1, other) != math.copysign(1, found):
            continue
        assert abs(found - value) <= abs(other - value)
        if abs(found - value) == abs(other - value) and found != other:
            assert bits % 2 == 0


def test_special_floats_stay_special() -> None:
    assert math.isnan(from_bits(bfloat16_bits(math.nan)))
    assert from_bits(bfloat16_bits(-math.inf)) == -math.inf
    assert bfloat16_bits(-0.0) == 0x8000
    assert struct.unpack("<e", scalar_bytes("f16", 1e9))[0] == math.inf
    assert struct.unpack("<f", scalar_bytes("f32", -1e300))[0] == -math.inf
    assert bfloat16_bits(1e-41) == 0x0000 and bfloat16_bits(9.2e-41) == 0x0001


def test_a_plan_value_is_an_expression_and_a_float_is_decimal_text() -> None:
    assert scalar_of(PlanArg("scalar", ctype="i64", value="in0_size0 * 3"), {"in0_size0": 5}, None) == struct.pack(
        "<q", 15
    )
    assert scalar_of(PlanArg("scalar", ctype="f64", value="1e-5"), {}, None) == struct.pack("<d", 1e-5)
    with pytest.raises(PackError, match="not a number"):
        scalar_of(PlanArg("scalar", ctype="f32", value="eps"), {}, None)
    with pytest.raises(PackError, match="unknown symbol"):
        scalar_of(PlanArg("scalar", ctype="i32", value="n"), {}, None)


def test_without_a_value_the_card_gives_it_wrapped_numbers_included() -> None:
    assert scalar_of(PlanArg("scalar", ctype="f32"), {}, 0.5) == struct.pack("<f", 0.5)
    assert scalar_of(PlanArg("scalar", ctype="f32"), {}, ["int64", 2]) == struct.pack("<f", 2.0)
    assert scalar_of(PlanArg("scalar", ctype="bool"), {}, True) == b"\x01"
    for value in (None, "tanh", [1, 2, 3], 0.5):
        with pytest.raises(PackError):
            scalar_of(PlanArg("scalar", ctype="i32"), {}, value)
