"""Operator cards: one optimisation target = operator + variant key + captured inputs.

The variant key carries shape families from the start: every dimension is exact
or a range with divisibility, so a decode loop needs few cards instead of one
per length.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from forge_tui.records.codec import dumps
from forge_tui.records.dtype import SHORT, itemsize


@dataclass(frozen=True)
class Dim:
    """One dimension. Exact when lo == hi; else lo..hi in steps of `multiple`, named `symbol`."""

    lo: int
    hi: int
    multiple: int = 1
    symbol: str = ""

    def __post_init__(self) -> None:
        if self.lo < 0 or self.hi < self.lo or self.multiple < 1:
            raise ValueError(f"dimension {self.lo}..{self.hi} step {self.multiple} is not a range")
        if self.lo != self.hi and not self.symbol:
            raise ValueError("a dimension that is a range needs a symbol")

    @property
    def exact(self) -> bool:
        return self.lo == self.hi

    def admits(self, size: int) -> bool:
        return self.lo <= size <= self.hi and size % self.multiple == 0


LAYOUTS = ("strided", "contiguous", "channels_last")


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor argument or result must look like.

    strides: in elements, of the captured example; they bind when layout is
        "strided", else strides follow from the sizes.
    device: "cpu", "cuda:0".
    alignment: bytes; a power of two <= 64 that the data pointer was divisible by in every recorded call.
    parameter: a parameter or buffer of the model (its values persist between calls).
    shares: index of an earlier input whose storage this one overlaps, or -1.
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: str
    layout: str
    strides: tuple[int, ...]
    device: str = "cpu"
    alignment: int = 16
    parameter: bool = False
    shares: int = -1

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"unknown layout {self.layout!r}")
        if len(self.strides) != len(self.dims):
            raise ValueError("strides and dims differ in length")
        itemsize_or_error(self.dtype)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the captured example (the low end of a range)."""
        return tuple(d.lo for d in self.dims)

    @property
    def numel(self) -> int:
        total = 1
        for d in self.dims:
            total *= d.lo
        return total

    @property
    def touched_bytes(self) -> int:
        """Bytes of distinct elements; a stride-0 dimension counts once."""
        total = itemsize(self.dtype)
        for d, stride in zip(self.dims, self.strides, strict=True):
            total *= 1 if stride == 0 and d.lo > 0 else d.lo
        return total

    @property
    def window(self) -> int:
        """Elements between the first and one past the last element touched."""
        if any(d.lo == 0 for d in self.dims):
            return 0
        return 1 + sum((d.lo - 1) * s for d, s in zip(self.dims, self.strides, strict=True))


def itemsize_or_error(dtype: str) -> int:
    try:
        return itemsize(dtype)
    except KeyError:
        raise ValueError(f"unknown dtype {dtype!r}") from None


# Kinds of an argument. "number" is a wrapped number: `x + 1` reaches the operator as a 0-dim
# tensor whose VALUE is the argument, so it is guarded like a scalar.
ARG_KINDS = (
    "tensor", "tensor_list", "none", "number", "int", "float", "bool", "str",
    "int_list", "float_list", "bool_list", "dtype", "device", "layout", "memory_format",
)  # fmt: skip


@dataclass(frozen=True)
class Arg:
    """One argument in the operator's schema order.

    value: for "tensor" the index into VariantKey.tensors, for "tensor_list" a list of them
    (-1 for a None element), for "number" [dtype, value], else the plain value.
    """

    name: str
    kind: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.kind not in ARG_KINDS:
            raise ValueError(f"unknown argument kind {self.kind!r}")


@dataclass(frozen=True)
class VariantKey:
    """Everything that must match before a generated kernel may run.

    op: "aten::softmax.int" (overload name after the dot, none when default).
    tensors: input tensors in the order the schema lists them (lists flattened, None left out).
    outputs: results exactly as eager returned them. Empty specs for pure in-place operators.
    mutates: indices into `tensors` that the operator writes.
    output_alias: per output the input it aliases, or -1 for fresh memory.
    autocast: dtype name when the call was made with autocast active, else "".
    flags: numerics flags in force, such as "deterministic" or "matmul=high".
    """

    op: str
    args: tuple[Arg, ...]
    tensors: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    mutates: tuple[int, ...] = ()
    output_alias: tuple[int, ...] = ()
    autocast: str = ""
    flags: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return all(d.exact for t in (*self.tensors, *self.outputs) for d in t.dims)

    @property
    def scalars(self) -> tuple[Arg, ...]:
        """Non-tensor arguments in schema order: the `scalars` array of the C ABI."""
        return tuple(a for a in self.args if a.kind not in ("tensor", "tensor_list"))

    @property
    def writes(self) -> tuple[int, ...]:
        """Output indices that need memory of their own."""
        return tuple(i for i, a in enumerate(self.output_alias) if a < 0)

    @property
    def base_op(self) -> str:
        """Operator without namespace and overload: "softmax"."""
        return self.op.split("::")[-1].split(".")[0]

    def digest(self) -> str:
        """Content hash of the key: 16 hex digits, the card's identity."""
        return hashlib.sha256(dumps(self).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TensorBlob:
    """Where one captured tensor's bytes lie.

    blob: sha256 of the touched storage window (raw little-endian bytes), or "" when only statistics were kept.
    sizes, strides: in elements, relative to the window's first element.
    stats: mean, std, min, max as finite floats; empty for integers without data or empty tensors.
    """

    blob: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    nbytes: int
    parameter: str = ""
    stats: tuple[float, ...] = ()


@dataclass(frozen=True)
class CapturedCall:
    """One recorded invocation: call index in the run and its input tensors, saved before the call."""

    index: int
    tensors: tuple[TensorBlob, ...]


@dataclass(frozen=True)
class Card:
    """One optimisation target.

    calls: times the operator ran with this key in one run of the workload.
    self_time_us: time inside those calls, summed over one run; None when not measured.
    share: part of the model's time, 0..1; None when not measured.
    op_class: error-rule class (judge.rules); "" means none known, and the card is "weak".
    bytes_moved: distinct bytes read plus written by one call.
    flops: multiply-adds counted as two; None when the operator has no formula here.
    synthetic: inputs or weights are not the user's real ones.
    state: "open" or "refused" (with the reason).
    """

    card_id: str
    key: VariantKey
    calls: int
    modules: tuple[str, ...]
    samples: tuple[CapturedCall, ...]
    op_class: str
    bytes_moved: int
    flops: int | None = None
    self_time_us: float | None = None
    share: float | None = None
    synthetic: bool = False
    state: str = "open"
    reason: str = ""

    @property
    def title(self) -> str:
        """Short name for lists: "softmax 128x1024 f32"."""
        specs = self.key.tensors or self.key.outputs
        if not specs:
            return self.key.base_op
        shapes = ",".join("x".join(_dim(d) for d in t.dims) or "1" for t in specs[:2] if t.dims or len(specs) == 1)
        return f"{self.key.base_op} {shapes} {SHORT.get(specs[0].dtype, specs[0].dtype)}"


def _dim(d: Dim) -> str:
    return str(d.lo) if d.exact else f"{d.lo}..{d.hi}"
