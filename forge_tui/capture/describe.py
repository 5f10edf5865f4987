"""One operator call in words: a cheap signature to group calls by, and the VariantKey made once per group.

Values that JSON can't hold keep their meaning: a non-finite float argument is the text "inf", "-inf" or "nan"
(Python's float() reads it back). Scalars compare by type and value: 1, 1.0 and True are three arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forge_tui.records.card import Arg, Dim, TensorSpec, VariantKey
from forge_tui.records.dtype import DTYPES

MAX_ALIGNMENT = 64
_PLAIN = {int: "int", float: "float", bool: "bool", str: "str"}
_NAMED = (
    (torch.dtype, "dtype"),
    (torch.device, "device"),
    (torch.layout, "layout"),
    (torch.memory_format, "memory_format"),
)
_NUMBER_DTYPE = {bool: "bool", int: "int64", float: "float64"}


class Undescribable(Exception):
    """The call can't be a card; the message is the reason shown to the user."""


@dataclass(frozen=True)
class Parameter:
    """One argument of an operator's schema."""

    name: str
    kwarg_only: bool
    has_default: bool
    default: Any
    takes_tensor: bool
    writes: bool


@dataclass(frozen=True)
class Operator:
    """What the schema says about an operator. name: "aten::softmax.int", the overload left out when it is the default."""

    name: str
    parameters: tuple[Parameter, ...]
    tags: frozenset[str]

    @property
    def base(self) -> str:
        return self.name.split("::")[-1].split(".")[0]


def operator_of(op: Any) -> Operator:
    """Read an OpOverload's schema."""
    schema = op._schema
    parameters = tuple(
        Parameter(
            a.name,
            bool(a.kwarg_only),
            bool(a.has_default_value()),
            a.default_value if a.has_default_value() else None,
            "Tensor" in str(a.type),
            a.alias_info is not None and bool(a.alias_info.is_write),
        )
        for a in schema.arguments
    )
    overload = schema.overload_name
    return Operator(
        schema.name + (f".{overload}" if overload else ""),
        parameters,
        frozenset(str(t).split(".")[-1] for t in op.tags),
    )


@dataclass(frozen=True)
class Call:
    """One call with its arguments in schema order. tensors: inputs, lists flattened, None left out."""

    operator: Operator
    values: tuple[Any, ...]
    tensors: tuple[Tensor, ...]


def call_of(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Put positional, keyword and default arguments into schema order."""
    values = []
    for index, parameter in enumerate(operator.parameters):
        if index < len(args):
            values.append(args[index])
        elif parameter.name in kwargs:
            values.append(kwargs[parameter.name])
        else:
            values.append(parameter.default)
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [item for item in value if isinstance(item, Tensor)]
    return Call(operator, tuple(values), tuple(tensors))


def signature(call: Call, persistent: frozenset[int], state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hashable identity of a variant. persistent: storage pointers of parameters and buffers; state: flags in force."""
    seen = call.tensors
    return (
        call.operator.name,
        state,
        tuple(_value_signature(v, persistent) for v in call.values),
        shares_of(seen) if len(seen) > 1 else (),
    )


def _value_signature(value: Any, persistent: frozenset[int]) -> Any:
    if isinstance(value, Tensor):
        return tensor_signature(value, persistent)
    if isinstance(value, (list, tuple)):
        return tuple(_value_signature(v, persistent) for v in value)
    if isinstance(value, float):
        return ("float", value.hex())
    if value is None or isinstance(value, (int, str)):
        return (type(value).__name__, value)
    return (type(value).__name__, str(value))


def tensor_signature(tensor: Tensor, persistent: frozenset[int] = frozenset()) -> tuple[Any, ...]:
    """Metadata of one tensor as a hashable value."""
    if tensor.layout is not torch.strided:
        return (str(tensor.layout), tensor.dtype, tuple(tensor.shape))
    pointer = tensor.untyped_storage().data_ptr() if persistent else 0
    return (tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride(), pointer in persistent)


def shares_of(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Per tensor the first earlier one whose memory it overlaps, or -1."""
    spans: list[tuple[int, int]] = []
    found = []
    for tensor in tensors:
        start, end = span_of(tensor)
        found.append(next((i for i, (a, b) in enumerate(spans) if a < end and start < b), -1))
        spans.append((start, end))
    return tuple(found)


def span_of(tensor: Tensor) -> tuple[int, int]:
    """First byte and one past the last byte that the tensor touches; an empty span when it has no memory."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return (0, 0)
    start = tensor.data_ptr()
    elements = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (start, start + elements * tensor.element_size())


def alignment_of(tensor: Tensor) -> int:
    """Largest power of two <= 64 that divides the data pointer; 64 for an empty tensor."""
    pointer = tensor.data_ptr()
    return min(MAX_ALIGNMENT, pointer & -pointer) if pointer else MAX_ALIGNMENT


def results_of(result: Any) -> tuple[Tensor, ...]:
    """Tensors an operator returned, in order. Raises Undescribable when it returns something else beside them."""
    if isinstance(result, Tensor):
        return (result,)
    if isinstance(result, (list, tuple)):
        if all(isinstance(item, Tensor) for item in result):
            return tuple(result)
        if any(isinstance(item, Tensor) for item in result):
            raise Undescribable("returns values that are no tensors")
    return ()


def variant_key(
    call: Call, results: tuple[Tensor, ...], persistent: frozenset[int], autocast: str, flags: tuple[str, ...]
) -> VariantKey:
    """The key of one call, alignment left at its cap. Raises Undescribable with the reason."""
    shares = shares_of(call.tensors)
    args: list[Arg] = []
    specs: list[TensorSpec] = []
    mutates: list[int] = []

    def add(name: str, tensor: Tensor) -> int:
        specs.append(tensor_spec(name, tensor, persistent, shares[len(specs)]))
        return len(specs) - 1

    for parameter, value in zip(call.operator.parameters, call.values, strict=True):
        if isinstance(value, Tensor):
            index = add(parameter.name, value)
            args.append(Arg(parameter.name, "tensor", index))
            mutates += [index] if parameter.writes else []
        elif isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
            indices = [-1 if v is None else add(f"{parameter.name}{n}", v) for n, v in enumerate(value)]
            args.append(Arg(parameter.name, "tensor_list", indices))
            mutates += [i for i in indices if i >= 0] if parameter.writes else []
        else:
            args.append(_plain_argument(parameter, value))
    spans = [span_of(t) for t in call.tensors]
    outputs = [tensor_spec(f"out{n}", t, frozenset(), -1) for n, t in enumerate(results)]
    aliases = []
    for result in results:
        start, end = span_of(result)
        aliases.append(next((i for i, (a, b) in enumerate(spans) if a < end and start < b), -1))
    if mutates and all(alias in mutates for alias in aliases):
        outputs, aliases = [], []  # a pure in-place operator returns what it wrote
    return VariantKey(
        call.operator.name, tuple(args), tuple(specs), tuple(outputs), tuple(mutates), tuple(aliases), autocast, flags
    )


def tensor_spec(name: str, tensor: Tensor, persistent: frozenset[int], shares: int) -> TensorSpec:
    """Spec of one live tensor. Raises Undescribable for layouts and dtypes that no candidate can be given."""
    if tensor.layout is not torch.strided:
        raise Undescribable(f"{str(tensor.layout).removeprefix('torch.')} tensor")
    if tensor.is_quantized:
        raise Undescribable("quantized tensor")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise Undescribable(f"{dtype} tensor")
    if tensor.is_conj() or tensor.is_neg():
        raise Undescribable("conjugate or negative view")
    return TensorSpec(
        name,
        tuple(Dim(n, n) for n in tensor.shape),
        dtype,
        layout_of(tensor),
        tuple(tensor.stride()),
        str(tensor.device),
        MAX_ALIGNMENT,
        bool(persistent) and tensor.untyped_storage().data_ptr() in persistent,
        shares,
    )


def layout_of(tensor: Tensor) -> str:
    """ "contiguous", "channels_last" (4 dimensions) or "strided"."""
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    return "strided"


def _plain_argument(parameter: Parameter, value: Any) -> Arg:
    name = parameter.name
    if value is None:
        return Arg(name, "none")
    if type(value) in _PLAIN:
        plain = finite(value)
        if parameter.takes_tensor and type(value) in _NUMBER_DTYPE:
            return Arg(name, "number", [_NUMBER_DTYPE[type(value)], plain])
        return Arg(name, _PLAIN[type(value)], plain)
    for kind, word in _NAMED:
        if isinstance(value, kind):
            return Arg(name, word, str(value).removeprefix("torch."))
    if isinstance(value, (list, tuple)):
        kinds = {type(v) for v in value}
        if not kinds or kinds == {int}:
            return Arg(name, "int_list", list(value))
        if kinds == {bool}:
            return Arg(name, "bool_list", list(value))
        if kinds <= {float, int}:
            return Arg(name, "float_list", [finite(float(v)) for v in value])
    raise Undescribable(f"argument {name} is a {type(value).__name__}")


def finite(value: Any) -> Any:
    """The value, or its text when it is a float that JSON can't hold."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
