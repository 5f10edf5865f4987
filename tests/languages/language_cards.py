"""Small cards for the language tests."""

from __future__ import annotations

from forge_tui.records.card import Arg, Dim, TensorSpec, VariantKey


def tensor(*dims: int | Dim, dtype: str = "float32", name: str = "x") -> TensorSpec:
    made = tuple(d if isinstance(d, Dim) else Dim(d, d) for d in dims)
    strides, step = [], 1
    for d in reversed(made):
        strides.append(step)
        step *= d.lo
    return TensorSpec(name, made, dtype, "contiguous", tuple(reversed(strides)))


def softmax_key(spec: TensorSpec | None = None) -> VariantKey:
    spec = spec or tensor(128, 1024)
    args = (Arg("self", "tensor", 0), Arg("dim", "int", -1), Arg("dtype", "none"))
    return VariantKey("aten::softmax.int", args, (spec,), (spec,))
