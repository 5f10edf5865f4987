"""What CUDA recipes read from a variant key: device types, widest access, constants as C++ text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forge_tui.proposers.recipes.keys import number
from forge_tui.records.card import TensorSpec
from forge_tui.records.dtype import itemsize

FLOATS = ("float32", "bfloat16", "float16")
DEVICE_TYPES = {
    "float32": "float",
    "bfloat16": "__nv_bfloat16",
    "float16": "__half",
    "int64": "int64_t",
    "int32": "int",
}
WIDEST_ACCESS = 16  # bytes of one load or store instruction of a thread


def access_bytes(specs: Iterable[TensorSpec], elements: int) -> tuple[int, ...]:
    """Access widths in bytes, widest first, that divide a run of `elements` of every tensor and respect its alignment."""
    widths = []
    given = list(specs)
    smallest = max(itemsize(s.dtype) for s in given)
    width = WIDEST_ACCESS
    while width >= smallest:
        per = width // smallest  # elements of one access of the widest type; narrower types then use less
        if elements % per == 0 and all((per * itemsize(s.dtype)) <= s.alignment for s in given):
            widths.append(width)
        width //= 2
    return tuple(widths)


def constants(values: Mapping[str, object]) -> str:
    """`constexpr` lines: int as int or int64_t, bool as bool, float exactly, str as it stands (an expression)."""
    lines = []
    for name, value in values.items():
        if isinstance(value, bool):
            lines.append(f"constexpr bool {name} = {'true' if value else 'false'};")
        elif isinstance(value, int):
            kind = "int" if abs(value) < 1 << 31 else "int64_t"
            lines.append(f"constexpr {kind} {name} = {value};")
        elif isinstance(value, float):
            lines.append(f"constexpr float {name} = (float)({number(value)});")
        else:
            lines.append(f"constexpr {value};" if not name else f"typedef {value} {name};")
    return "\n".join(lines) + "\n"


def powers(first: int, last: int) -> tuple[int, ...]:
    """Powers of two from `first` to `last`."""
    found = []
    while first <= last:
        found.append(first)
        first *= 2
    return tuple(found)
