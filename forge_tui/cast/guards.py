"""Guards: a variant key as a row of plain comparisons, for the Python hook and, encoded, for the C++ hooks.

Invariants: a key admits the call it was captured from and refuses every call that differs in a size, stride, dtype,
device, alignment class, aliasing, argument value or numerics flag. No size relation is assumed that the key doesn't
state: dimensions that share a symbol must be equal. native/table.h makes the same decisions in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forge_tui.cast.words import SCALAR_TYPES, CannotGuard, Parameter, device_words, words_of_key
from forge_tui.records.card import TensorSpec, VariantKey
from forge_tui.records.dtype import itemsize

MAX_TENSORS, MAX_WORDS, MAX_DIMS, MAX_SYMBOLS = 32, 96, 8, 32
# Bits of at::Context that change results; float32 matmul precision is torch's number in bits 1 and 2.
DETERMINISTIC = 1
PRECISIONS = {"highest": 0, "high": 1, "medium": 2}


@dataclass(frozen=True)
class TensorGuard:
    """One tensor. dims: (lo, hi, multiple, symbol number or -1). same_address: must start where tensor `shares` starts."""

    dims: tuple[tuple[int, int, int, int], ...]
    strides: tuple[int, ...]
    dtype: str
    device: tuple[int, int]
    layout: str
    alignment: int
    shares: int
    same_address: bool

    @property
    def exact(self) -> bool:
        return all(lo == hi for lo, hi, _, _ in self.dims)


@dataclass(frozen=True)
class GuardRow:
    """All a call must show. words: see `words`. flags: bits as in `flag_bits`."""

    op: str
    words: tuple[int, ...]
    tensors: tuple[TensorGuard, ...]
    mutates: tuple[int, ...]
    flags: int


@dataclass(frozen=True)
class Seen:
    """What a live tensor shows. storage: identity of its memory; address: of its first element."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: tuple[int, int]
    address: int
    storage: int


def guard_row(key: VariantKey, schema: Sequence[Parameter]) -> GuardRow:
    """Compile a key. Raises CannotGuard with the reason an entry has to be declined."""
    words = words_of_key(key, schema)
    if len(key.tensors) > MAX_TENSORS or len(words) > MAX_WORDS:
        raise CannotGuard(f"{key.op} has more arguments than a guard holds")
    if any(len(t.dims) > MAX_DIMS for t in (*key.tensors, *key.outputs)):
        raise CannotGuard(f"a tensor of {key.op} has more than {MAX_DIMS} dimensions")
    symbols = symbol_numbers(key)
    rows = tuple(_tensor_guard(key, k, symbols) for k in range(len(key.tensors)))
    if any(not 0 <= m < len(rows) for m in key.mutates):
        raise CannotGuard(f"{key.op} mutates a tensor it doesn't have")
    return GuardRow(key.op, words, rows, key.mutates, flag_bits(key.flags, key.autocast))


def symbol_numbers(key: VariantKey) -> dict[str, int]:
    """Numbers of the symbols of the key's ranges, in order of first use."""
    names: dict[str, int] = {}
    for spec in key.tensors:
        for dim in spec.dims:
            if not dim.exact:
                names.setdefault(dim.symbol, len(names))
    if len(names) > MAX_SYMBOLS:
        raise CannotGuard(f"{key.op} has more than {MAX_SYMBOLS} size symbols")
    return names


def _tensor_guard(key: VariantKey, index: int, symbols: dict[str, int]) -> TensorGuard:
    spec = key.tensors[index]
    if spec.shares >= index:
        raise CannotGuard(f"tensor {index} of {key.op} shares with a later one")
    dims = tuple((d.lo, d.hi, d.multiple, -1 if d.exact else symbols[d.symbol]) for d in spec.dims)
    # A kernel may have been judged with two inputs at one address and use that; then the address must agree here too.
    same = spec.shares >= 0 and _same_window(spec, key.tensors[spec.shares])
    return TensorGuard(
        dims,
        spec.strides,
        spec.dtype,
        device_words(spec.device),
        spec.layout,
        max(1, spec.alignment),
        spec.shares,
        same,
    )


def _same_window(a: TensorSpec, b: TensorSpec) -> bool:
    return (a.dims, a.strides, a.dtype) == (b.dims, b.strides, b.dtype)


def flag_bits(flags: Sequence[str], autocast: str) -> int:
    """Numerics flags and autocast dtype of a key as bits. Raises CannotGuard for what this runtime can't watch."""
    if autocast and autocast not in SCALAR_TYPES:
        raise CannotGuard(f"autocast dtype {autocast!r} is not known")
    bits = autocast_bits(autocast)
    for flag in flags:
        name, _, value = flag.partition("=")
        if name == "deterministic" and value in ("", "1", "true"):
            bits |= DETERMINISTIC
        elif name == "matmul" and value in PRECISIONS:
            bits |= PRECISIONS[value] << 1
        else:
            raise CannotGuard(f"numerics flag {flag!r} is not known to this runtime")
    return bits


def autocast_bits(dtype: str) -> int:
    """Autocast in force at the call (a composite operator may cast inside itself); "" when it is off there."""
    return (1 + SCALAR_TYPES[dtype]) << 8 if dtype else 0


def strides_of(layout: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides that follow from the sizes in elements; a dimension of size 0 counts as 1, as in torch."""
    order = list(range(len(sizes) - 1, -1, -1))
    if layout == "channels_last" and len(sizes) >= 3:
        order = [1, *range(len(sizes) - 1, 1, -1), 0]
    strides, running = [0] * len(sizes), 1
    for d in order:
        strides[d] = running
        running *= max(1, sizes[d])
    return tuple(strides)


def mismatch(row: GuardRow, words: Sequence[int], tensors: Sequence[Seen]) -> str:
    """First thing in which a call differs from the row, as a reason of `states.REASONS`; "" when it matches."""
    if len(tensors) != len(row.tensors) or len(words) != len(row.words):
        return "arguments"
    symbols: dict[int, int] = {}
    for guard, seen in zip(row.tensors, tensors, strict=True):
        reason = _tensor_mismatch(guard, seen, symbols)
        if reason:
            return reason
    if tuple(words) != row.words:
        return "scalar"
    for guard, seen in zip(row.tensors, tensors, strict=True):
        if seen.address % guard.alignment:
            return "alignment"
        if guard.shares >= 0:
            other = tensors[guard.shares]
            if seen.storage != other.storage or (guard.same_address and seen.address != other.address):
                return "aliasing"
    for written in row.mutates:
        for k, seen in enumerate(tensors):
            late, early = max(k, written), min(k, written)
            if k != written and (seen.storage == tensors[written].storage) != (row.tensors[late].shares == early):
                return "aliasing"
    return ""


def _tensor_mismatch(guard: TensorGuard, seen: Seen, symbols: dict[int, int]) -> str:
    if len(seen.sizes) != len(guard.dims):
        return "shape"
    for (lo, hi, multiple, symbol), size in zip(guard.dims, seen.sizes, strict=True):
        if not lo <= size <= hi or (size % multiple and lo != hi):
            return "shape"
        if symbol >= 0 and symbols.setdefault(symbol, size) != size:
            return "shape"
    if seen.dtype != guard.dtype:
        return "dtype"
    # The stride of a dimension of one element moves no address, but eager's result layout may hang on it: an exact
    # tensor has exactly the recorded strides, one with a range the recorded or the natural one there.
    fixed = guard.exact or guard.layout == "strided"
    wanted = guard.strides if fixed else strides_of(guard.layout, seen.sizes)
    for size, stride, want, recorded in zip(seen.sizes, seen.strides, wanted, guard.strides, strict=True):
        if stride != want and (fixed or size != 1 or stride != recorded):
            return "stride"
    if seen.device[0] != guard.device[0] or (guard.device[1] >= 0 and seen.device[1] != guard.device[1]):
        return "device"
    return ""


def words_for_people(key: VariantKey) -> list[str]:
    """The guard as lines a person can read; used by `inspect`."""
    lines = []
    for k, spec in enumerate(key.tensors):
        dims = "x".join(_dim_words(d.lo, d.hi, d.multiple, d.symbol) for d in spec.dims) or "scalar"
        layout = f"strides {list(spec.strides)}" if spec.layout == "strided" else spec.layout.replace("_", " ")
        parts = [f"{spec.name or f'tensor {k}'}: {dims} {spec.dtype}", layout, spec.device]
        if spec.alignment > itemsize(spec.dtype):
            parts.append(f"aligned to {spec.alignment} bytes")
        if spec.shares >= 0:
            parts.append(f"sharing memory with {key.tensors[spec.shares].name or f'tensor {spec.shares}'}")
        if k in key.mutates:
            parts.append("written in place")
        lines.append(", ".join(parts))
    values = [f"{a.name}={a.value[1] if a.kind == 'number' else a.value}" for a in key.scalars]
    if values:
        lines.append("arguments: " + ", ".join(values))
    if key.autocast:
        lines.append(f"autocast to {key.autocast} in force")
    lines.append(
        "no gradients wanted" + (f", flags {', '.join(key.flags)}" if key.flags else ", default numerics flags")
    )
    return lines


def _dim_words(lo: int, hi: int, multiple: int, symbol: str) -> str:
    if lo == hi:
        return str(lo)
    return f"({symbol} {lo}..{hi}" + (f" in steps of {multiple})" if multiple > 1 else ")")
