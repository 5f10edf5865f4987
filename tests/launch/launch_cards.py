"""Small cards for the launcher's tests."""

from __future__ import annotations

from forge_tui.records.card import Arg, Dim, TensorSpec, VariantKey
from forge_tui.records.plan import Plan, PlanArg, Step


def spec(*sizes: int, dtype: str = "float32", symbol: str = "") -> TensorSpec:
    """A contiguous tensor; with a symbol the first size is a range from its value to 1024."""
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size
    dims = [Dim(n, n) for n in sizes]
    if symbol:
        dims[0] = Dim(sizes[0], 1024, 1, symbol)
    return TensorSpec("x", tuple(dims), dtype, "contiguous", tuple(strides), "cuda:0", 16)


def key(*inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = (), scalars: tuple[Arg, ...] = ()) -> VariantKey:
    args = tuple(Arg(f"t{k}", "tensor", k) for k in range(len(inputs)))
    return VariantKey("forge::test", (*args, *scalars), inputs, outputs, (), (-1,) * len(outputs))


def plan(*steps: Step, **others: object) -> Plan:
    return Plan(1, steps, **others)  # type: ignore[arg-type]


def scalar(ctype: str, value: str = "", index: int = 0) -> PlanArg:
    return PlanArg("scalar", index, ctype, value)
