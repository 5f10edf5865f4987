"""The card's operator, called from its key: eager as the user runs it (E) and a wider reference (R).

Invariants: inputs given here are never changed (an operator that writes its inputs gets copies); numerics flags
of the key are set for the call and put back; running out of memory is a machine problem, never a candidate's.

`results` of a call, everywhere in this room: the outputs that own their memory, in key order, then the inputs
that the operator writes, in the order of `key.mutates`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from forge_tui.judge.samples import compact, like, torch_dtype
from forge_tui.records.card import Arg, VariantKey
from forge_tui.records.problem import HarnessProblem, MachineProblem

Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Reference:
    """R of one trial. reduced: not computed in a wider type than the card's own (line says why)."""

    results: Results
    reduced: bool
    line: str = ""


class OperatorRefused(Exception):
    """The operator itself raised on these inputs. The message is its own first line."""


def written(key: VariantKey) -> tuple[int, ...]:
    """Indices of the outputs that own their memory (an output without alias entry counts as fresh)."""
    alias = key.output_alias
    return tuple(i for i in range(len(key.outputs)) if i >= len(alias) or alias[i] < 0)


def result_names(key: VariantKey) -> tuple[str, ...]:
    """What each result is called in messages: "output 0", "input 1 (written in place)"."""
    outputs = [f"output {i}" for i in written(key)]
    return (*outputs, *(f"input {i} (written in place)" for i in key.mutates))


def operator_of(key: VariantKey) -> Any:
    """The overload in torch.ops. Raises HarnessProblem when this torch doesn't have it."""
    namespace, _, rest = key.op.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None) if namespace and name else None
    found = getattr(packet, overload or "default", None) if packet is not None else None
    if found is None:
        raise HarnessProblem(f"torch {torch.__version__} here has no operator {key.op}")
    return found


def call_operator(key: VariantKey, tensors: Results, wide: torch.dtype | None = None) -> tuple[Any, Results]:
    """Call the operator. Returns (its raw outputs flattened, None kept; the tensors it was given, after the call).

    wide: upcast floating inputs narrower than this and floating dtype arguments to it; scalars are rounded to float32
    first, as kernels do for float32 and narrower inputs. `tensors` is left as it was.
    Raises OperatorRefused, MachineProblem (out of memory), HarnessProblem.
    """
    operator = operator_of(key)
    given = _private(key, tensors, wide)
    narrow = all(spec.dtype not in ("float64", "complex128") for spec in key.tensors)
    positional, named = [], {}
    keyword_only = {a.name for a in operator._schema.arguments if a.kwarg_only}
    for arg in key.args:
        value = _value(arg, given, wide, narrow)
        if arg.name in keyword_only:
            named[arg.name] = value
        else:
            positional.append(value)
    try:
        raw = operator(*positional, **named)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, MemoryError) as error:
        # RuntimeError includes torch.OutOfMemoryError; torch's CPU allocator raises a plain one.
        text = str(error)
        if isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
            raise MachineProblem(f"out of memory while computing the reference of {key.op}") from None
        raise OperatorRefused(f"{key.op}: {text.splitlines()[0] if text else type(error).__name__}") from None
    return _flatten(raw), given


def results_of(key: VariantKey, tensors: Results, wide: torch.dtype | None = None) -> Results:
    """One call's results (see the module text). Raises as call_operator does."""
    outputs, after = call_operator(key, tensors, wide)
    if key.outputs and len(outputs) != len(key.outputs):
        raise HarnessProblem(f"{key.op} returned {len(outputs)} outputs, its key lists {len(key.outputs)}")
    picked = [outputs[i] for i in written(key)] if key.outputs else []
    if any(t is None for t in picked):
        raise HarnessProblem(f"{key.op} left out an output that its key lists")
    return (*picked, *(after[i] for i in key.mutates))


def eager(key: VariantKey, tensors: Results) -> Results:
    """E: the operator under the flags and autocast mode of the capture."""
    device = tensors[0].device.type if tensors else "cpu"
    with numerics(key), contextlib.ExitStack() as stack:
        if key.autocast:
            stack.enter_context(torch.autocast(device, dtype=torch_dtype(key.autocast)))
        return results_of(key, tensors)


def reference(key: VariantKey, tensors: Results) -> Reference:
    """R: float64 from upcast inputs; where no float64 kernel exists float32, and then `reduced`.

    Integer and index tensors are passed untouched. Raises OperatorRefused when neither runs.
    """
    with _exact_numerics():
        try:
            with _default_dtype(torch.float64):
                found = results_of(key, tensors, torch.float64)
            wider = all(not t.is_floating_point() or t.dtype == torch.float64 for t in found)
            if wider:
                return Reference(found, False)
            line = "the operator has no float64 result"
        except OperatorRefused as refused:
            line = f"no float64 reference ({refused})"
        return Reference(results_of(key, tensors, torch.float32), True, line)


@contextlib.contextmanager
def numerics(key: VariantKey) -> Iterator[None]:
    """Grad off and the key's numerics flags on, for the time of the block."""
    precision, deterministic = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    try:
        for flag in key.flags:
            name, _, value = flag.partition("=")
            if name == "deterministic":
                torch.use_deterministic_algorithms(True, warn_only=True)
            elif name == "matmul" and value:
                torch.set_float32_matmul_precision(value)
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        if torch.are_deterministic_algorithms_enabled() != deterministic:  # the setter imports Inductor: seconds
            torch.use_deterministic_algorithms(deterministic)


@contextlib.contextmanager
def _exact_numerics() -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    # Operators on integers (true division, mean) answer in the default type.
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _private(key: VariantKey, tensors: Results, wide: torch.dtype | None) -> Results:
    """The tensors to call with: upcast where asked, copied where the operator writes."""
    given = []
    for i, t in enumerate(tensors):
        target = _widened(t.dtype, wide)
        # Strides are kept: layout can choose the algorithm, as in convolutions.
        given.append(like(t, compact(t), target) if target != t.dtype or i in key.mutates else t)
    return tuple(given)


def _widened(dtype: torch.dtype, wide: torch.dtype | None) -> torch.dtype:
    if wide is None or dtype.itemsize >= (2 * wide.itemsize if dtype.is_complex else wide.itemsize):
        return dtype
    if dtype.is_floating_point:
        return wide
    if dtype.is_complex:
        return torch.complex128 if wide == torch.float64 else torch.complex64
    return dtype


def _value(arg: Arg, tensors: Results, wide: torch.dtype | None, narrow: bool) -> Any:
    value = arg.value
    if arg.kind == "tensor":
        return tensors[value]
    if arg.kind == "tensor_list":
        return [None if i < 0 else tensors[i] for i in value]
    if arg.kind == "none" or value is None:
        return None
    if arg.kind == "number":
        return _scalar(value[1], wide, narrow)
    if arg.kind in ("int", "float", "bool"):
        return _scalar(value, wide, narrow)
    if arg.kind == "float_list":
        return [_scalar(v, wide, narrow) for v in value]
    if arg.kind == "dtype":
        return _widened(torch_dtype(value), wide)
    if arg.kind == "device":
        return torch.device(value)
    if arg.kind in ("layout", "memory_format"):
        return getattr(torch, str(value).removeprefix("torch."))
    return list(value) if isinstance(value, (list, tuple)) else value


def _scalar(value: Any, wide: torch.dtype | None, narrow: bool) -> Any:
    if isinstance(value, str):
        value = float(value)  # JSON has no infinities: they are recorded as "inf", "-inf", "nan"
    if isinstance(value, float) and wide is not None and narrow:
        # Kernels compute with the scalar in float32; 0.1 in float64 would be another operator.
        return float(torch.tensor(value, dtype=torch.float32))
    return value


def _flatten(raw: Any) -> list[Any]:
    if raw is None or isinstance(raw, torch.Tensor):
        return [raw]
    flat = []
    for item in raw:
        flat.extend(_flatten(item) if isinstance(item, (list, tuple)) else [item])
    return flat
