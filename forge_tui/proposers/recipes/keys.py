"""Reading a variant key: arguments by name, layouts, and sizes as C++ text.

An exact size is baked as a number so that the compiler can unroll; a size of a shape family is read from the call.
"""

from __future__ import annotations

from typing import Any

from forge_tui.records.card import Arg, TensorSpec, VariantKey

FLOATS = ("float32", "bfloat16")
C_TYPES = {"float32": "float", "bfloat16": "bf16", "int64": "int64_t", "int32": "int32_t", "bool": "uint8_t"}


def argument(key: VariantKey, name: str) -> Arg | None:
    """The argument `name` of the call, or None when the schema has none."""
    return next((a for a in key.args if a.name == name), None)


def scalar(key: VariantKey, name: str, default: Any = None) -> Any:
    """Value of a non-tensor argument; `default` when it is absent or None."""
    arg = argument(key, name)
    if arg is None or arg.kind == "none":
        return default
    return arg.value[1] if arg.kind == "number" else arg.value


def tensor(key: VariantKey, name: str) -> tuple[int, TensorSpec] | None:
    """Index and spec of a tensor argument, None when it was not given."""
    arg = argument(key, name)
    if arg is None or arg.kind != "tensor":
        return None
    return arg.value, key.tensors[arg.value]


def contiguous(spec: TensorSpec) -> bool:
    """Row-major without gaps. Strides of size-1 dimensions don't matter."""
    if spec.layout == "contiguous":
        return True
    if any(not d.exact for d in spec.dims):
        return False
    expected = 1
    for size, stride in zip(reversed(spec.sizes), reversed(spec.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def not_plain(key: VariantKey, dtypes: tuple[str, ...] = FLOATS) -> str:
    """Why the tensors are not all contiguous, non-empty, of one of `dtypes`, with one fresh output; "" when they are."""
    if key.mutates or len(key.outputs) != 1 or any(a >= 0 for a in key.output_alias):
        return "does not write exactly one fresh output"
    for spec in (*key.tensors, *key.outputs):
        if spec.dtype not in dtypes:
            return f"{spec.name or 'tensor'} is {spec.dtype}; this kernel handles {', '.join(dtypes)}"
        if not contiguous(spec):
            return f"{spec.name or 'tensor'} is not contiguous"
        if any(d.lo == 0 for d in spec.dims):
            return "an empty tensor"
    return ""


def extent(place: str, spec: TensorSpec, dims: range) -> str:
    """C++ text of the product of some sizes; place is "inputs[0]" or "outputs[0]"."""
    fixed = 1
    factors = []
    for d in dims:
        if spec.dims[d].exact:
            fixed *= spec.dims[d].lo
        else:
            factors.append(f"a->{place}.sizes[{d}]")
    if not factors or fixed != 1:
        factors.insert(0, f"{fixed}L")
    return " * ".join(factors)


def example_extent(spec: TensorSpec, dims: range) -> int:
    """Product of some sizes of the captured example."""
    total = 1
    for d in dims:
        total *= spec.sizes[d]
    return total


def pointer(place: str, spec: TensorSpec, name: str, const: bool = True) -> str:
    """C++ declaration of a typed data pointer."""
    kind = ("const " if const else "") + C_TYPES[spec.dtype]
    return f"{kind}* {name} = ({kind}*)a->{place}.data;"


def number(value: float) -> str:
    """A double as C++ text, exactly."""
    if value != value:
        return '__builtin_nan("")'
    if value in (float("inf"), float("-inf")):
        return ("-" if value < 0 else "") + "__builtin_inf()"
    return float(value).hex()


def thread_counts(threads: int) -> tuple[int, ...]:
    """Team sizes worth trying: 1, 2, 4, ... and the limit itself."""
    counts = [1]
    while counts[-1] * 2 < threads:
        counts.append(counts[-1] * 2)
    if threads > 1:
        counts.append(threads)
    return tuple(counts)
