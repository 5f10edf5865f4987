"""Arguments as canonical 64-bit words: the same sequence that native/view.h makes of a live call.

Invariant: for one call, `words_of_call` (Python hook), `words_of_key` (guard) and the C++ view agree bit for bit.
A tag starts every argument. dtype, layout and memory format travel as torch's own numbers, as they do in a boxed call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forge_tui.records.card import Arg, VariantKey

NONE, TENSOR, NUMBER, INT, DOUBLE, BOOL, INTS, DOUBLES, BOOLS, TEXT, DEVICE, TENSORS = (
    0,
    1,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
)
# c10::ScalarType, c10::Layout, c10::MemoryFormat, c10::DeviceType: numbers fixed by torch's serialisation format.
SCALAR_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
    "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15, "float8_e5m2": 23, "float8_e4m3fn": 24,
}  # fmt: skip
MEMORY_FORMATS = {"contiguous_format": 0, "preserve_format": 1, "channels_last": 2, "channels_last_3d": 3}
DEVICE_TYPES = {"cpu": 0, "cuda": 1}


class CannotGuard(ValueError):
    """The key holds something no guard can decide, so the entry is declined; the message is the reason."""


@dataclass(frozen=True)
class Parameter:
    """One argument of an operator's schema. type: torch's own text, such as "Optional[List[int]]"."""

    name: str
    type: str
    has_default: bool = False
    default: Any = None
    kwarg_only: bool = False

    @property
    def takes_tensor(self) -> bool:
        return self.type in ("Tensor", "Optional[Tensor]")


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _text(value: str) -> list[int]:
    data = value.encode()
    padded = data + b"\0" * (-len(data) % 8)
    return [TEXT, len(data), *(w for (w,) in struct.iter_unpack("<q", padded))]


def _enum(value: Any, table: dict[str, int], what: str) -> list[int]:
    name = str(value).removeprefix("torch.")
    if name not in table:
        raise CannotGuard(f"{what} {name!r} is not known")
    return [INT, table[name]]


def device_words(value: Any) -> tuple[int, int]:
    """Device type number and index (-1 when none is named)."""
    kind, _, index = str(value).partition(":")
    if kind not in DEVICE_TYPES or not (index.isdigit() or not index):
        raise CannotGuard(f"device {value!r} is not known")
    return DEVICE_TYPES[kind], int(index) if index else -1


def number_words(dtype: str, value: Any) -> list[int]:
    """A wrapped number: 0-dim tensor whose value is the argument (`x + 1`)."""
    if dtype == "bool":
        return [NUMBER, SCALAR_TYPES[dtype], int(bool(value))]
    if dtype == "int64":
        return [NUMBER, SCALAR_TYPES[dtype], _int64(value)]
    if dtype == "float64":
        return [NUMBER, SCALAR_TYPES[dtype], _bits(_float(value))]
    raise CannotGuard(f"a number of dtype {dtype!r} can't be guarded by value")


def _int64(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise CannotGuard(f"{value!r} is not a 64-bit whole number")
    return value


def _float(value: Any) -> float:
    # JSON has no infinities: a record carries them as text, and a lost one is None.
    if isinstance(value, str) and value.lstrip("-+") in ("inf", "nan"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CannotGuard(f"{value!r} is not a number")
    return float(value)


def scalar_words(kind: str, value: Any) -> list[int]:
    """Words of a non-tensor argument of the records' kinds. Raises CannotGuard."""
    if kind == "none":
        return [NONE]
    if kind == "number":
        return number_words(str(value[0]), value[1])
    if kind == "int":
        return [INT, _int64(value)]
    if kind == "float":
        return [DOUBLE, _bits(_float(value))]
    if kind == "bool":
        return [BOOL, int(bool(value))]
    if kind == "str":
        return _text(str(value))
    if kind == "int_list":
        return [INTS, len(value), *(_int64(v) for v in value)]
    if kind == "float_list":
        return [DOUBLES, len(value), *(_bits(_float(v)) for v in value)]
    if kind == "bool_list":
        return [BOOLS, len(value), *(int(bool(v)) for v in value)]
    if kind == "dtype":
        return _enum(value, SCALAR_TYPES, "dtype")
    if kind == "layout":
        return _enum(value, {"strided": 0}, "layout")
    if kind == "memory_format":
        return _enum(value, MEMORY_FORMATS, "memory format")
    if kind == "device":
        return [DEVICE, *device_words(value)]
    raise CannotGuard(f"an argument of kind {kind!r} can't be guarded")


def _arg_words(arg: Arg) -> list[int]:
    if arg.kind == "tensor":
        return [TENSOR]
    if arg.kind == "tensor_list":
        return [TENSORS, len(arg.value), *(TENSOR if k >= 0 else NONE for k in arg.value)]
    return scalar_words(arg.kind, arg.value)


def default_words(parameter: Parameter) -> list[int]:
    """Words of an argument the key leaves out because it has its default value."""
    value, kind = parameter.default, parameter.type.removeprefix("Optional[").rstrip("]")
    if value is None:
        return [NONE]
    if isinstance(value, bool):
        return [BOOL, int(value)]
    if kind == "float":
        return [DOUBLE, _bits(float(value))]
    if isinstance(value, int):
        return [INT, value]
    if isinstance(value, float):
        return [DOUBLE, _bits(value)]
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)) and "float" in kind:
        return [DOUBLES, len(value), *(_bits(float(v)) for v in value)]
    if isinstance(value, (list, tuple)) and "bool" in kind:
        return [BOOLS, len(value), *(int(v) for v in value)]
    if isinstance(value, (list, tuple)):
        return [INTS, len(value), *(int(v) for v in value)]
    raise CannotGuard(f"default of {parameter.name!r} can't be guarded")


def words_of_key(key: VariantKey, schema: Sequence[Parameter]) -> tuple[int, ...]:
    """The words a call must show to match this key. Raises CannotGuard, also when this torch's schema is another."""
    by_name = {arg.name: arg for arg in key.args}
    unknown = set(by_name) - {p.name for p in schema}
    if unknown or len(by_name) != len(key.args):
        raise CannotGuard(f"{key.op} has no argument {min(unknown or {'(doubled)'})!r} in this torch version")
    order = [p.name for p in schema if p.name in by_name]
    if order != [a.name for a in key.args]:
        raise CannotGuard(f"{key.op} has its arguments in another order in this torch version")
    words: list[int] = []
    flat: list[int] = []
    for parameter in schema:
        arg = by_name.get(parameter.name)
        if arg is not None:
            words += _arg_words(arg)
            flat += (
                [arg.value]
                if arg.kind == "tensor"
                else [k for k in arg.value if k >= 0]
                if arg.kind == "tensor_list"
                else []
            )
        elif parameter.has_default:
            words += default_words(parameter)
        else:
            raise CannotGuard(f"{key.op} needs argument {parameter.name!r} in this torch version")
    if flat != list(range(len(key.tensors))):
        raise CannotGuard(f"{key.op}: tensors are not listed in schema order")
    return tuple(words)


def words_of_call(
    schema: Sequence[Parameter], args: Sequence[Any], kwargs: dict[str, Any], is_tensor: Any
) -> tuple[tuple[int, ...], list[Any]] | None:
    """Words and tensors of a live Python call, or None when an argument can't be described (it then runs eager).

    is_tensor: predicate for tensors. Torch hands a wrapped number to a Python hook as a plain Python number.
    """
    words: list[int] = []
    tensors: list[Any] = []
    for place, parameter in enumerate(schema):
        if place < len(args):
            value = args[place]
        elif parameter.name in kwargs:
            value = kwargs[parameter.name]
        elif parameter.has_default:
            words += default_words(parameter)
            continue
        else:
            return None
        try:
            words += _live_words(parameter, value, tensors, is_tensor)
        except CannotGuard:
            return None
    return tuple(words), tensors


def _live_words(parameter: Parameter, value: Any, tensors: list[Any], is_tensor: Any) -> list[int]:
    if is_tensor(value):
        tensors.append(value)
        return [TENSOR]
    if value is None:
        return [NONE]
    kind = parameter.type
    if parameter.takes_tensor:
        if isinstance(value, bool):
            return number_words("bool", value)
        return number_words("int64" if isinstance(value, int) else "float64", value)
    if "Tensor]" in kind:
        words = [TENSORS, len(value)]
        for item in value:
            if item is not None:
                tensors.append(item)
            words.append(NONE if item is None else TENSOR)
        return words
    if isinstance(value, bool):
        return [BOOL, int(value)]
    if isinstance(value, int):
        return [DOUBLE, _bits(float(value))] if "float" in kind else [INT, value]
    if isinstance(value, float):
        return [DOUBLE, _bits(value)]
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        name = "float_list" if "float" in kind else "bool_list" if "bool" in kind else "int_list"
        return scalar_words(name, value)
    return scalar_words(type(value).__name__, value)  # torch.dtype, layout, memory_format, device
