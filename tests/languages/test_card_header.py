"""card.h: right numbers, run-time sizes for families, nothing of the outside can break out of it."""

from __future__ import annotations

import ctypes
import math
import random
import struct
import subprocess
from pathlib import Path

from language_cards import softmax_key, tensor

from forge_tui.languages.card_header import device_header, host_header
from forge_tui.languages.language import Toolchain
from forge_tui.records.card import Arg, Dim, TensorSpec, VariantKey
from forge_tui.records.plan import symbols_of


def build(text: str, folder: Path, compiler: str, header: str) -> ctypes.CDLL:
    (folder / "card.h").write_text(header)
    (folder / "a.cpp").write_text('#include "card.h"\n' + text)
    subprocess.run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "a.cpp", "-o", "a.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "a.so"))


def test_every_symbol_of_the_plan_is_a_constant_with_the_same_value(gcc: Toolchain, tmp_path: Path) -> None:
    strided = TensorSpec("w", (Dim(3, 3), Dim(5, 5)), "int64", "strided", (20, 2))
    args = (Arg("self", "tensor", 0), Arg("w", "tensor", 1), Arg("eps", "float", 1e-5), Arg("k", "int_list", [3, -2]))
    key = VariantKey("aten::x", args, (tensor(4, 6), strided), (tensor(4, 6, dtype="bfloat16"),))
    checks = [f"static_assert(card::{name} == {value});" for name, value in symbols_of(key).items()]
    checks += [
        "static_assert(sizeof(card::in0_t) == 4 && sizeof(card::in1_t) == 8 && sizeof(card::out0_t) == 2);",
        "static_assert(card::in1_dtype == FORGE_I64 && card::out0_dtype == FORGE_BF16);",
        "static_assert(card::arg_eps == 1e-5 && card::arg_k_count == 2 && card::arg_k[1] == -2);",
        "static_assert(card::n_inputs == 2 && card::n_outputs == 1 && card::n_scalars == 2);",
    ]
    build("\n".join(checks), tmp_path, gcc.path, host_header(key))


def test_sizes_of_a_family_are_read_from_the_call(gcc: Toolchain, tmp_path: Path) -> None:
    spec = tensor(Dim(1, 64, 1, "seq"), 8)
    text = """
extern "C" long probe(void) {
  int64_t sizes[] = {17, 8}, strides[] = {8, 1};
  forge_tensor t = {nullptr, sizes, strides, 2, FORGE_F32};
  forge_args a = {};
  a.inputs = a.outputs = &t;
  static_assert(card::in0_size1 == 8);
  return card::seq(&a) * 1000000 + card::in0_size0(&a) * 1000 + card::out0_numel(&a);
}
"""
    library = build(text, tmp_path, gcc.path, host_header(softmax_key(spec)))
    library.probe.restype = ctypes.c_long
    assert library.probe() == 17 * 1000000 + 17 * 1000 + 136


def test_half_precision_helpers_round_to_nearest_even_as_the_standard_says(gcc: Toolchain, tmp_path: Path) -> None:
    text = """
extern "C" unsigned to16(float f) { return forge_to_f16(f).bits; }
extern "C" unsigned tob16(float f) { return forge_to_bf16(f).bits; }
extern "C" float from16(unsigned h) { forge_f16 x = {(uint16_t)h}; return forge_float(x); }
"""
    library = build(text, tmp_path, gcc.path, host_header(softmax_key()))
    for name in ("to16", "tob16"):
        getattr(library, name).argtypes = [ctypes.c_float]
    library.from16.restype = ctypes.c_float
    for bits in range(0, 65536, 7):
        expected = struct.unpack("<e", struct.pack("<H", bits))[0]
        got = library.from16(bits)
        assert got == expected or (math.isnan(got) and math.isnan(expected))
    pick = random.Random(5)
    for _ in range(5000):
        (value,) = struct.unpack("<f", struct.pack("<I", pick.getrandbits(32)))
        if math.isnan(value):
            assert library.to16(value) & 0x7FFF > 0x7C00 and library.tob16(value) & 0x7FFF > 0x7F80
            continue
        try:
            expected_half = struct.unpack("<H", struct.pack("<e", value))[0]
        except OverflowError:
            expected_half = 0xFC00 if value < 0 else 0x7C00
        assert library.to16(value) == expected_half, value
        whole = struct.unpack("<I", struct.pack("<f", value))[0]
        low, high = whole & 0xFFFF, whole >> 16
        assert library.tob16(value) == high + (low > 0x8000 or (low == 0x8000 and high & 1)), value


def test_names_from_the_outside_cannot_leave_their_comment(gcc: Toolchain, tmp_path: Path) -> None:
    spec = TensorSpec("*/ int evil; /*\n#error", (Dim(2, 2),), "float32", "contiguous", (1,))
    args = (Arg("self", "tensor", 0), Arg("mode; #error", "str", '*/\n#include "/etc/passwd"'))
    key = VariantKey("evil::*/ #error", args, (spec,), (spec,))
    for header in (host_header(key), device_header(key)):
        assert "\n#error" not in header and "passwd" not in header.replace("_etc_passwd", "")
    build("int evil = 1;", tmp_path, gcc.path, host_header(key))


def test_special_numbers_become_valid_constants(gcc: Toolchain, tmp_path: Path) -> None:
    args = (
        Arg("low", "float", -math.inf), Arg("nan", "float", math.nan), Arg("big", "int", -(1 << 63)),
        Arg("other", "number", ["float32", 2.5]), Arg("flag", "bool", True), Arg("dtype", "dtype", "float16"),
        Arg("empty", "int_list", []),
    )  # fmt: skip
    text = """
static_assert(card::arg_low < -1e308 && card::arg_nan != card::arg_nan && card::arg_big == INT64_MIN);
static_assert(card::arg_other == 2.5 && card::arg_flag && card::arg_dtype == FORGE_F16 && card::arg_empty_count == 0);
"""
    build(text, tmp_path, gcc.path, host_header(VariantKey("aten::x", args, (), ())))
