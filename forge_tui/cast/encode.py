"""An entry as the flat list of 64-bit values that native/entry.h decodes. The two files change together."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forge_tui.cast.guards import GuardRow, symbol_numbers
from forge_tui.cast.words import SCALAR_TYPES, CannotGuard, Parameter
from forge_tui.records.card import VariantKey
from forge_tui.records.dtype import DTYPES
from forge_tui.records.expr import ExprError, Node, evaluate, parse, symbols_in
from forge_tui.records.plan import Plan, symbols_of

LAYOUTS = {"strided": 0, "contiguous": 1, "channels_last": 2}
OPERATORS = {"+": 4, "-": 5, "*": 6, "/": 7, "ceildiv": 8, "min": 9, "max": 10}
NONE, INT, DOUBLE, BOOLEAN, INT_LIST, DOUBLE_LIST, TEXT = range(7)  # forge_scalar_kind


@dataclass(frozen=True)
class OutputRow:
    """One result. alias: input it is, or -1 for fresh memory. sizes: per dimension (b, a, input, dimension) for
    b + a * that input's size; input -1 for the constant b.
    """

    alias: int
    sizes: tuple[tuple[int, int, int, int], ...]
    strides: tuple[int, ...]
    dtype: str
    layout: str


def output_rows(key: VariantKey, returns: Sequence[str]) -> tuple[OutputRow, ...]:
    """How to make each result of the schema (types in `returns`). Raises CannotGuard."""
    if any(kind != "Tensor" for kind in returns):
        raise CannotGuard(f"{key.op} returns something other than tensors")
    if not key.outputs and len(returns) == 1 and key.mutates:
        return (OutputRow(key.mutates[0], (), (), "float32", "strided"),)
    if len(key.outputs) != len(returns):
        raise CannotGuard(
            f"{key.op} returns {len(returns)} tensors in this torch version, the card has {len(key.outputs)}"
        )
    if len(returns) > 8:
        raise CannotGuard(f"{key.op} returns more than 8 tensors")
    places = {
        dim.symbol: (k, d) for k, spec in enumerate(key.tensors) for d, dim in enumerate(spec.dims) if not dim.exact
    }
    rows = []
    for k, spec in enumerate(key.outputs):
        alias = key.output_alias[k] if k < len(key.output_alias) else -1
        if alias >= 0 and alias not in key.mutates:
            raise CannotGuard(f"{key.op} returns a view of its input")
        sizes = []
        for dim in spec.dims:
            if not dim.exact and spec.layout == "strided":
                raise CannotGuard(f"{key.op}: an output has a size range but fixed strides")
            sizes.append((dim.lo, 0, -1, -1) if dim.exact else _affine(key.op, dim.symbol, places))
        rows.append(OutputRow(alias, tuple(sizes), spec.strides, spec.dtype, spec.layout))
    return tuple(rows)


def _affine(op: str, text: str, places: dict[str, tuple[int, int]]) -> tuple[int, int, int, int]:
    """An output size in words of one input size: "s0", "2*s0+3"."""
    try:
        node = parse(text)
        names = symbols_in(node)
        if len(names) == 1 and names <= set(places):
            name = next(iter(names))
            at = [evaluate(node, {name: v}) for v in (0, 1, 2, 1000)]
            offset, factor = at[0], at[1] - at[0]
            if factor > 0 and [offset + factor * v for v in (0, 1, 2, 1000)] == at:
                return offset, factor, *places[name]
    except ExprError as error:
        raise CannotGuard(f"{op}: output size {text!r}: {error}") from None
    raise CannotGuard(f"{op}: output size {text!r} does not follow from an input size")


def scalars_of(key: VariantKey) -> list[tuple[int, Any]]:
    """(kind, value) of each forge_scalar: the same mapping the judge's worker uses."""
    return [_scalar(arg.kind, arg.value) for arg in key.scalars]


def _scalar(kind: str, value: Any) -> tuple[int, Any]:
    if kind == "number":
        value = value[1]
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    if kind == "none" or value is None:
        return NONE, None
    if kind == "dtype":
        return INT, DTYPES[str(value).removeprefix("torch.")][0]
    if kind == "int":
        return INT, int(value)
    if kind == "float":
        return DOUBLE, float(value)
    if kind == "bool":
        return BOOLEAN, int(value)
    if kind in ("int_list", "bool_list"):
        return INT_LIST, [int(v) for v in value]
    if kind == "float_list":
        return DOUBLE_LIST, [float(v) for v in value]
    return TEXT, str(value)


def program(text: str, key: VariantKey, plan: Plan) -> list[int]:
    """A size expression as a postfix program over run-time sizes. Raises CannotGuard for symbols of outputs of a family."""
    code: list[int] = []
    _compile(parse(text), key, plan, code)
    return code


def _compile(node: Node, key: VariantKey, plan: Plan, code: list[int]) -> None:
    if isinstance(node, int):
        code += [0, node]
    elif isinstance(node, str):
        code += _symbol(node, key, plan)
    else:
        operator, left, right = node
        _compile(left, key, plan, code)
        _compile(right, key, plan, code)
        code.append(OPERATORS[operator])


def _symbol(name: str, key: VariantKey, plan: Plan) -> list[int]:
    if name in plan.constants:
        return [0, plan.constants[name]]
    for k, spec in enumerate(key.tensors):
        if name == f"in{k}_numel":
            return [3, k]
        for d, dim in enumerate(spec.dims):
            if name in (f"in{k}_size{d}", dim.symbol or None):
                return [1, k, d]
            if name == f"in{k}_stride{d}":
                return [2, k, d]
    if key.exact:
        return [0, symbols_of(key)[name]]
    raise CannotGuard(f"the plan uses {name!r}, which does not follow from an input size")


def encode(
    key: VariantKey,
    plan: Plan,
    row: GuardRow,
    schema: Sequence[Parameter],
    returns: Sequence[str],
    launch: int,
    prepare: int,
    cast_bit: int,
) -> list[int]:
    """The list. launch, prepare: addresses of the C entries (prepare 0 for none). cast_bit: 0..63. Raises CannotGuard."""
    out = [len(row.words), *row.words, len(row.tensors)]
    symbols = symbol_numbers(key)
    if len(symbols) > 32:
        raise CannotGuard("too many size symbols")
    for guard in row.tensors:
        out += [
            len(guard.dims),
            SCALAR_TYPES[guard.dtype],
            DTYPES[guard.dtype][0],
            *guard.device,
            LAYOUTS[guard.layout],
        ]
        out += [guard.alignment, guard.shares, int(guard.same_address), 0]
        for (lo, hi, multiple, symbol), stride in zip(guard.dims, guard.strides, strict=True):
            out += [lo, hi, multiple if lo != hi else 1, symbol, stride]
    outputs = output_rows(key, returns)
    out.append(len(outputs))
    for made in outputs:
        out += [made.alias, len(made.sizes), SCALAR_TYPES[made.dtype], DTYPES[made.dtype][0], LAYOUTS[made.layout]]
        for size, stride in zip(made.sizes, made.strides, strict=True):
            out += [*size, stride]
    out += [len(key.mutates), *key.mutates, row.flags]
    scalars = scalars_of(key)
    out.append(len(scalars))
    for kind, value in scalars:
        out += [kind, *_scalar_values(kind, value)]
    out += _plan_values(key, plan)
    return [*out, launch, prepare if plan.prepare else 0, cast_bit]


def _plan_values(key: VariantKey, plan: Plan) -> list[int]:
    workspace = [] if plan.workspace.bytes.strip() == "0" else program(plan.workspace.bytes, key, plan)
    out = [len(workspace), *workspace, plan.workspace.alignment, int(plan.workspace.zeroed)]
    memsets = [step for step in plan.steps if step.kind == "memset"]
    out.append(len(memsets))
    for step in memsets:
        offset, length = program(step.offset, key, plan), program(step.bytes, key, plan)
        out += [len(offset), *offset, len(length), *length, step.value]
    if plan.prepare is None:
        return [*out, 0, 0]
    length = program(plan.prepare.bytes, key, plan)
    return [*out, len(plan.prepare.inputs), *plan.prepare.inputs, len(length), *length]


def _scalar_values(kind: int, value: Any) -> list[int]:
    if kind == NONE:
        return [0]
    if kind == INT_LIST:
        return [len(value), *value]
    if kind == DOUBLE_LIST:
        return [len(value), *(_bits(v) for v in value)]
    if kind == TEXT:
        data = value.encode()
        return [len(data), *data]
    return [1, _bits(value) if kind == DOUBLE else value]


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def as_array(values: Sequence[int]) -> Any:
    """A ctypes array of int64; words above 2^63 wrap to their signed form."""
    return (ctypes.c_int64 * len(values))(*(v - (1 << 64) if v >= 1 << 63 else v for v in values))
