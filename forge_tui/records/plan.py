"""Launch plan v1: how a candidate's binary is run. The plan is data, never code.

Sizes are strings in the expression language of `expr`; symbols are the card's
size symbols (`in0_size1`, `out0_size0`, `in0_numel`, ...; see `symbols_of`) plus the
plan's own `constants`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forge_tui.records.card import VariantKey
from forge_tui.records.expr import parse, symbols_in

VERSION = 1
ARG_KINDS = ("input", "output", "workspace", "prepared", "scalar", "tensor_map", "triton_scratch")
SCALAR_TYPES = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "bool")
MAX_STEPS = 64
MAX_ARGS = 128


@dataclass(frozen=True)
class PlanArg:
    """One kernel parameter, in the kernel's own order.

    kind "input"/"output": `index` names the card's tensor; its data pointer is passed.
    kind "workspace"/"prepared": pointer at byte `offset` (expression).
    kind "scalar": C type `ctype`; the value is `value` (expression for integers, decimal text for floats) or the
        card's scalar number `index` when value is "".
    kind "tensor_map": TMA descriptor of tensor `index` ("in" or "out" in `value`), encoded by the launcher; `box` in elements.
    kind "triton_scratch": pointer to `offset` bytes per program, or null when that is 0.
    """

    kind: str
    index: int = 0
    ctype: str = ""
    value: str = ""
    offset: str = "0"
    box: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ARG_KINDS:
            raise ValueError(f"unknown argument kind {self.kind!r}; known: {', '.join(ARG_KINDS)}")
        if self.kind == "scalar" and self.ctype not in SCALAR_TYPES:
            raise ValueError(f"unknown scalar type {self.ctype!r}; known: {', '.join(SCALAR_TYPES)}")
        if self.index < 0:
            raise ValueError("argument index is negative")
        parse(self.offset)


@dataclass(frozen=True)
class Step:
    """One step of the plan.

    kind "kernel": launch `kernel` with grid, block and cluster (3 expressions each; cluster all "1" for none).
    kind "memset": fill `bytes` at workspace `offset` with `value`.
    kind "host": call the C entry `forge_launch` (tier T3).
    shared_bytes: dynamic shared memory; above 48 KiB the launcher raises the kernel's limit itself.
    """

    kind: str
    kernel: str = ""
    grid: tuple[str, str, str] = ("1", "1", "1")
    block: tuple[str, str, str] = ("1", "1", "1")
    cluster: tuple[str, str, str] = ("1", "1", "1")
    shared_bytes: str = "0"
    cooperative: bool = False
    dependent_launch: bool = False
    args: tuple[PlanArg, ...] = ()
    offset: str = "0"
    bytes: str = "0"
    value: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("kernel", "memset", "host"):
            raise ValueError(f"unknown step kind {self.kind!r}; known: kernel, memset, host")
        if self.kind == "kernel" and not self.kernel:
            raise ValueError("a kernel step names its kernel")
        if len(self.args) > MAX_ARGS:
            raise ValueError(f"more than {MAX_ARGS} kernel arguments")
        for text in (*self.grid, *self.block, *self.cluster, self.shared_bytes, self.offset, self.bytes):
            parse(text)
        if not 0 <= self.value <= 255:
            raise ValueError("memset value is one byte")


@dataclass(frozen=True)
class Workspace:
    """Scratch memory of one call. bytes: expression; zeroed: filled with zeros before every call."""

    bytes: str = "0"
    alignment: int = 256
    zeroed: bool = False

    def __post_init__(self) -> None:
        parse(self.bytes)
        if self.alignment < 1 or self.alignment & (self.alignment - 1) or self.alignment > 4096:
            raise ValueError("workspace alignment is a power of two up to 4096")


@dataclass(frozen=True)
class Prepare:
    """Optional repacking of parameters, redone when one of `inputs` changes; its cost is shown.

    entry: C entry `int forge_prepare(const forge_args*, void* prepared)` on the CPU, a kernel name on a GPU.
    """

    inputs: tuple[int, ...]
    bytes: str
    entry: str = "forge_prepare"

    def __post_init__(self) -> None:
        parse(self.bytes)


@dataclass(frozen=True)
class Plan:
    """Launch plan v1. constants: named integers usable in expressions. tunables: what the search may turn."""

    version: int
    steps: tuple[Step, ...]
    workspace: Workspace = Workspace()
    prepare: Prepare | None = None
    constants: dict[str, int] = field(default_factory=dict)
    tunables: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"plan version {self.version} is not known; this program knows {VERSION}")
        if not 1 <= len(self.steps) <= MAX_STEPS:
            raise ValueError(f"a plan has 1 to {MAX_STEPS} steps")


def host_plan(tunables: dict[str, Any] | None = None, workspace: Workspace | None = None) -> Plan:
    """The plan of a plain T3 candidate: call `forge_launch`, nothing else."""
    return Plan(VERSION, (Step("host"),), workspace or Workspace(), None, {}, tunables or {})


def symbols_of(key: VariantKey, sizes: tuple[tuple[int, ...], ...] | None = None) -> dict[str, int]:
    """Size symbols of a card: inK_sizeD, inK_strideD, inK_numel, outK_..., and range symbols by name.

    sizes: run-time sizes of the input tensors for a family; the captured example when None.
    """
    symbols: dict[str, int] = {}
    for prefix, specs in (("in", key.tensors), ("out", key.outputs)):
        for k, spec in enumerate(specs):
            actual = sizes[k] if sizes is not None and prefix == "in" else spec.sizes
            numel = 1
            for d, (size, stride) in enumerate(zip(actual, spec.strides, strict=True)):
                symbols[f"{prefix}{k}_size{d}"] = size
                symbols[f"{prefix}{k}_stride{d}"] = stride
                if spec.dims[d].symbol:
                    symbols[spec.dims[d].symbol] = size
                numel *= size
            symbols[f"{prefix}{k}_numel"] = numel
    return symbols


def check_against(plan: Plan, key: VariantKey) -> list[str]:
    """What is wrong with a plan for this card, one line each; empty when it fits."""
    known = set(symbols_of(key)) | set(plan.constants)
    wrong = []
    texts = [plan.workspace.bytes]
    for number, step in enumerate(plan.steps):
        texts += [*step.grid, *step.block, *step.cluster, step.shared_bytes, step.offset, step.bytes]
        for arg in step.args:
            texts.append(arg.offset)
            limit = {"input": len(key.tensors), "output": len(key.outputs)}.get(arg.kind)
            if arg.kind == "scalar" and not arg.value:
                limit = len(key.scalars)
            if limit is not None and arg.index >= limit:
                wrong.append(f"step {number}: {arg.kind} {arg.index} does not exist (the card has {limit})")
            if arg.kind == "scalar" and arg.value and arg.ctype not in ("f16", "bf16", "f32", "f64"):
                texts.append(arg.value)
    if plan.prepare is not None:
        texts.append(plan.prepare.bytes)
        for index in plan.prepare.inputs:
            if index >= len(key.tensors) or not key.tensors[index].parameter:
                wrong.append(f"prepare: input {index} is not a parameter of the model")
    for text in texts:
        unknown = symbols_in(parse(text)) - known
        if unknown:
            wrong.append(f"unknown symbol {min(unknown)!r} in {text!r}")
    return wrong
