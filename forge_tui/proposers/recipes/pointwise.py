"""Element by element: activations, arithmetic with simple broadcasting, in place or not.

The operands are walked as a matrix of rows x columns that the output's dimensions fold into; each operand is either
full, one row for all rows, one value per row, or one value. Exact operators stay exact: the vector and the tail do
the same arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_tui.proposers.recipes import vector
from forge_tui.proposers.recipes.keys import (
    C_TYPES,
    FLOATS,
    argument,
    contiguous,
    example_extent,
    extent,
    number,
    scalar,
    thread_counts,
)  # fmt: skip
from forge_tui.proposers.recipes.recipe import Point, Recipe, Source, Space
from forge_tui.records.card import Dim, TensorSpec, VariantKey

UNARY = ("relu", "silu", "sigmoid", "tanh", "gelu", "rsqrt", "sqrt", "neg", "pow", "exp")
BINARY = {"add": "x + y", "sub": "x - y", "mul": "x * y", "div": "x / y"}
_POWERS = {2.0: "x * x", 3.0: "x * x * x", 0.5: "vsqrt(x)", -0.5: "1.0f / vsqrt(x)", 1.0: "x", -1.0: "1.0f / x"}
OPS = frozenset(
    {f"aten::{op}{end}" for op in UNARY if op != "pow" for end in ("", "_")}
    | {f"aten::{op}{end}.Tensor" for op in BINARY for end in ("", "_")}
    | {"aten::pow.Tensor_Scalar"}
)


@dataclass(frozen=True)
class _Operand:
    """walk: how it is read: "full", "row", "column", "one" or "number" (a value of the key)."""

    index: int
    walk: str
    value: float = 0.0


@dataclass(frozen=True)
class _Shape:
    """The call folded to rows x columns; `at` output dimensions form the rows. place: where the result lies."""

    place: str
    out: TensorSpec
    at: int
    operands: tuple[_Operand, ...]


def _operand_names(key: VariantKey) -> tuple[str, ...]:
    return ("self", "other") if key.base_op.rstrip("_") in BINARY else ("self",)


def _shape(key: VariantKey) -> _Shape | str:
    """How to walk the call, or why it can't be walked."""
    if key.mutates:
        if len(key.mutates) != 1 or key.writes:
            return "writes more than its first argument"
        place, out = f"inputs[{key.mutates[0]}]", key.tensors[key.mutates[0]]
        if any(t.shares >= 0 for t in key.tensors):
            return "arguments share memory and one of them is written"
    elif len(key.outputs) != 1 or any(a >= 0 for a in key.output_alias):
        return "does not write exactly one fresh output"
    else:
        place, out = "outputs[0]", key.outputs[0]
    if out.dtype not in FLOATS:
        return f"the result is {out.dtype}; this kernel handles {', '.join(FLOATS)}"
    if any(d.lo == 0 for d in out.dims):
        return "an empty tensor"
    operands: list[tuple[_Operand, TensorSpec | None]] = []
    for name in _operand_names(key):
        arg = argument(key, name)
        if arg is None or arg.kind not in ("tensor", "number", "int", "float"):
            return f"argument {name} is not a tensor or a number"
        if arg.kind == "tensor":
            spec = key.tensors[arg.value]
            if spec.dtype not in FLOATS:
                return f"{name} is {spec.dtype}"
            operands.append((_Operand(arg.value, "full"), spec))
        else:
            operands.append((_Operand(-1, "number", float(scalar(key, name))), None))
    return _fold(place, out, operands)


def _fold(place: str, out: TensorSpec, operands: list[tuple[_Operand, TensorSpec | None]]) -> _Shape | str:
    """Choose the split of the output's dimensions under which every operand is whole or constant on either side."""
    specs = [spec for _, spec in operands if spec is not None]
    if _same_storage_order(out, specs):
        return _Shape(place, out, 0, tuple(o for o, _ in operands))
    if not contiguous(out) or not all(contiguous(s) for s in specs):
        return "operands differ in layout"
    for at in range(len(out.dims) + 1):
        walks = [_walk(out, spec, at) if spec is not None else "number" for _, spec in operands]
        if all(walks):
            placed = tuple(_Operand(o.index, walk, o.value) for (o, _), walk in zip(operands, walks, strict=True))
            return _Shape(place, out, at, placed)
    return "broadcasting over several separate dimensions"


def _same_storage_order(out: TensorSpec, specs: list[TensorSpec]) -> bool:
    """True when all tensors have the output's sizes and the same gapless order of elements, such as channels last."""
    for spec in specs:
        if spec.dims != out.dims:
            return False
        if contiguous(spec) and contiguous(out):
            continue
        exact = all(d.exact for d in (*spec.dims, *out.dims))
        if exact and spec.strides == out.strides and spec.window == spec.numel and 0 not in spec.strides:
            continue
        return False
    return True


def _walk(out: TensorSpec, spec: TensorSpec, at: int) -> str:
    """ "full", "row", "column" or "one" for a split after `at` dimensions; "" when the operand is neither."""
    lead = len(out.dims) - len(spec.dims)
    dims: list[Dim | None] = [None] * lead + list(spec.dims)
    outer = _side(out.dims[:at], dims[:at])
    inner = _side(out.dims[at:], dims[at:])
    if not outer or not inner:
        return ""
    return {
        ("full", "full"): "full", ("constant", "full"): "row", ("full", "constant"): "column",
        ("constant", "constant"): "one", ("any", "full"): "full", ("any", "constant"): "one",
        ("full", "any"): "full", ("constant", "any"): "one", ("any", "any"): "full",
    }[outer, inner]  # fmt: skip


def _side(out: tuple[Dim, ...], dims: list[Dim | None]) -> str:
    """ "any" (only size-1 dimensions), "full" or "constant"; "" when mixed."""
    kinds = set()
    for wanted, have in zip(out, dims, strict=True):
        if wanted.exact and wanted.lo == 1:
            continue
        if have is None or (have.exact and have.lo == 1):
            kinds.add("constant")
        elif have == wanted:
            kinds.add("full")
        else:
            return ""
    return "" if len(kinds) > 1 else (kinds.pop() if kinds else "any")


def _refuses(key: VariantKey) -> str:
    shape = _shape(key)
    if isinstance(shape, str):
        return shape
    name = key.base_op.rstrip("_")
    if name in ("add", "sub") and scalar(key, "alpha", 1) != 1:
        return "alpha is not 1"
    if name == "div" and argument(key, "rounding_mode") is not None:
        return "rounded division"
    if name == "pow" and float(scalar(key, "exponent")) not in _POWERS:
        return f"exponent {scalar(key, 'exponent')}; this kernel handles {', '.join(map(str, _POWERS))}"
    if name == "gelu" and scalar(key, "approximate", "none") not in ("none", "tanh"):
        return f"approximate={scalar(key, 'approximate')}"
    return ""


def _forms(key: VariantKey) -> tuple[str, ...]:
    name = key.base_op.rstrip("_")
    if name == "gelu":
        return ("table", "exp") if scalar(key, "approximate", "none") == "tanh" else ("table",)
    return ("direct",)


def _space(key: VariantKey, threads: int) -> Space:
    return {"form": _forms(key), "width": (16, 8), "unroll": (1, 2, 4), "threads": thread_counts(threads)}


def _starts(key: VariantKey, threads: int) -> list[Point]:
    forms = _forms(key)
    shape = _shape(key)
    size = example_extent(shape.out, range(len(shape.out.dims))) if isinstance(shape, _Shape) else 0
    # A parallel region costs one to two microseconds; below ~16k elements one core is done before that.
    first = 1 if size < 16_384 else threads
    other = threads if first == 1 else 1
    return [
        {"form": forms[0], "width": 16, "unroll": 2, "threads": first},
        {"form": forms[-1], "width": 8, "unroll": 4, "threads": first},
        {"form": forms[0], "width": 16, "unroll": 4, "threads": other},
    ]


def _expression(key: VariantKey, form: str) -> tuple[list[str], str, str]:
    """Pieces needed, C++ statements of `op`, and words for the technique."""
    name = key.base_op.rstrip("_")
    if name in BINARY:
        return [], f"return {BINARY[name]};", name
    if name == "gelu":
        tanh = scalar(key, "approximate", "none") == "tanh"
        if form == "exp":
            text = "return x / (1.0f + vexp_added(-1.5957691216f * (x + 0.044715f * x * x * x)));"
            return [vector.EXP_ADDED], text, "gelu as x * sigmoid"
        text = "const vf t = tail(x < 0.0f ? -x : x);\n  return x * (x < 0.0f ? t : 1.0f - t);"
        return [vector.table(vector.TANH_TAIL if tanh else vector.NORMAL_TAIL)], text, "gelu from a table in registers"
    if name == "pow":
        text = _POWERS[float(scalar(key, "exponent"))]
        return ([vector.SQRT] if "vsqrt" in text else []), f"return {text};", "power as products"
    pieces, text = {
        "relu": ([], "return x < 0.0f ? vf{} : x;"),
        "silu": ([vector.EXP_ADDED], "return x / (1.0f + vexp_added(-x));"),
        "sigmoid": ([vector.EXP_ADDED], "return 1.0f / (1.0f + vexp_added(-x));"),
        "tanh": ([vector.EXP_ADDED, vector.TANH], "return vtanh(x);"),
        "rsqrt": ([vector.SQRT], "return 1.0f / vsqrt(x);"),
        "sqrt": ([vector.SQRT], "return vsqrt(x);"),
        "neg": ([], "return -x;"),
        "exp": ([vector.EXP], "return vexp(x);"),
    }[name]
    return list(pieces), text, f"{name}, exp as polynomial" if pieces and "vexp" in text else name


_KERNEL = """
INLINE vf op(@PARAMETERS@) {
  @STATEMENTS@
}

@TEMPLATE@INLINE void piece(@POINTERS@, @OUT@* out, long n) {
  long i = 0;
  for (; i + @UNROLL@ * W <= n; i += @UNROLL@ * W) {
    vf v[@UNROLL@];
#pragma GCC unroll 4
    for (int k = 0; k < @UNROLL@; ++k) v[k] = op(@VECTORS_K@);
#pragma GCC unroll 4
    for (int k = 0; k < @UNROLL@; ++k) store(out + i + k * W, v[k]);
  }
  for (; i + W <= n; i += W) store(out + i, op(@VECTORS@));
  if (i < n) store(out + i, op(@REST@), n - i);
}

extern "C" int forge_launch(const forge_args* a) {
@DATA@
  const long rows = @ROWS@, columns = @COLUMNS@;
  split(rows * columns, 16, a->threads, [&](long from, long to) {
    while (from < to) {
      const long row = from / columns, column = from - row * columns;
      const long n = to - from < columns - column ? to - from : columns - column;
      piece(@ARGUMENTS@, out + from, n);
      from += n;
    }
  });
  return 0;
}
"""


def _source(key: VariantKey, point: Point) -> Source:
    shape = _shape(key)
    if isinstance(shape, str):
        raise ValueError(f"no kernel for this key: {shape}")
    pieces, statements, words = _expression(key, point["form"])
    names = ("x", "y")[: len(shape.operands)]
    data, pointers, arguments = [], [], []
    read: dict[str, list[str]] = {"@VECTORS_K@": [], "@VECTORS@": [], "@REST@": []}
    for name, operand in zip(names, shape.operands, strict=True):
        if operand.walk == "number":
            for into in read.values():
                into.append(f"splat((float){number(operand.value)})")
            continue
        kind = C_TYPES[key.tensors[operand.index].dtype]
        data.append(f"  const {kind}* {name} = (const {kind}*)a->inputs[{operand.index}].data;")
        if operand.walk in ("column", "one"):
            pointers.append(f"float {name}")
            arguments.append(f"get({name}[{'row' if operand.walk == 'column' else '0'}])")
            for into in read.values():
                into.append(f"splat({name})")
        else:
            pointers.append(f"const {kind}* {name}")
            arguments.append(f"{name} + {'from' if operand.walk == 'full' else 'column'}")
            read["@VECTORS_K@"].append(f"load({name} + i + k * W)")
            read["@VECTORS@"].append(f"load({name} + i)")
            read["@REST@"].append(f"load({name} + i, n - i, 1.0f)")
    out = C_TYPES[shape.out.dtype]
    data.append(f"  {out}* out = ({out}*)a->{shape.place}.data;")
    rank = len(shape.out.dims)
    replacements = {
        "@PARAMETERS@": ", ".join(f"vf {name}" for name in names),
        "@STATEMENTS@": statements,
        "@TEMPLATE@": "",
        "@POINTERS@": ", ".join(pointers),
        "@OUT@": out,
        "@UNROLL@": str(point["unroll"]),
        "@DATA@": "\n".join(data),
        "@ROWS@": extent(shape.place, shape.out, range(shape.at)),
        "@COLUMNS@": extent(shape.place, shape.out, range(shape.at, rank)),
        "@ARGUMENTS@": ", ".join(arguments),
        **{mark: ", ".join(texts) for mark, texts in read.items()},
    }
    body = _KERNEL
    for mark, text in replacements.items():
        body = body.replace(mark, text)
    dtypes = [t.dtype for t in (*key.tensors, shape.out)]
    text = vector.assemble(point["width"], point["threads"], pieces, body, dtypes)
    return Source(text, f"{words}, {point['width']} lanes x {point['unroll']}, {point['threads']} thread(s)")


RECIPE = Recipe(
    name="pointwise", ops=OPS, refuses=_refuses, space=_space, starts=_starts, source=_source,
    target="arithmetic per element and call overhead",
)  # fmt: skip
