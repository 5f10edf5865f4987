"""A plan with its symbols replaced by numbers: what is launched, with how much of everything. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forge_tui.launch import packing
from forge_tui.launch.binary import Entry, Image
from forge_tui.records.card import VariantKey
from forge_tui.records.expr import ExprError, value_of
from forge_tui.records.plan import Plan, PlanArg, Step, symbols_of
from forge_tui.records.problem import Problem

Triple = tuple[int, int, int]
MOST_WORKSPACE = 1 << 40


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter. kind "constant": `data`; "input", "output": tensor `index`; "workspace", "prepared": pointer
    at byte `offset`; "tensor_map": descriptor of tensor `index` ("in" or "out" in `where`) with `box` elements.
    """

    kind: str
    data: bytes = b""
    index: int = 0
    offset: int = 0
    where: str = ""
    box: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        return len(self.data) if self.kind == "constant" else 128 if self.kind == "tensor_map" else 8


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel step in numbers. entry: index of the kernel step."""

    step: int
    entry: int
    grid: Triple
    block: Triple
    cluster: Triple
    shared_bytes: int
    cooperative: bool
    dependent_launch: bool
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Memset:
    """Fill `nbytes` of the workspace from byte `offset`."""

    step: int
    offset: int
    nbytes: int
    value: int


@dataclass(frozen=True)
class Resolved:
    """workspace_bytes: all a call needs, Triton's scratch included. zeroed_bytes: filled with zeros before the steps."""

    steps: tuple[KernelLaunch | Memset, ...]
    workspace_bytes: int
    workspace_alignment: int
    zeroed_bytes: int
    prepared_bytes: int


def resolve(
    plan: Plan, key: VariantKey, image: Image, sizes: tuple[tuple[int, ...], ...] | None = None
) -> Resolved | Problem:
    """The plan for the card's own sizes, or for run-time `sizes` of the inputs of a family."""
    symbols = symbols_of(key, sizes) | plan.constants
    try:
        workspace = value_of(plan.workspace.bytes, symbols)
        prepared = value_of(plan.prepare.bytes, symbols) if plan.prepare else 0
        if not 0 <= workspace <= MOST_WORKSPACE or not 0 <= prepared <= MOST_WORKSPACE:
            return _bad(f"a workspace of {workspace} bytes")
        steps: list[KernelLaunch | Memset] = []
        end, entry = workspace, 0
        for number, step in enumerate(plan.steps):
            if step.kind == "host":
                return _bad(f"step {number} calls host code; a device plan has kernel and memset steps only")
            if step.kind == "memset":
                found: KernelLaunch | Memset | str = _memset(number, step, symbols, workspace)
            else:
                found, end = _kernel(number, entry, step, image.entries[entry], key, symbols, end)
                entry += 1
            if isinstance(found, str):
                return _bad(f"step {number}: {found}")
            steps.append(found)
    except (ExprError, packing.PackError) as error:
        return _bad(str(error))
    zeroed = workspace if plan.workspace.zeroed else 0
    return Resolved(tuple(steps), end, plan.workspace.alignment, zeroed, prepared)


def _memset(number: int, step: Step, symbols: Mapping[str, int], workspace: int) -> Memset | str:
    offset, nbytes = value_of(step.offset, symbols), value_of(step.bytes, symbols)
    if offset < 0 or nbytes < 0 or offset + nbytes > workspace:
        return f"fills bytes {offset} to {offset + nbytes} of a workspace of {workspace}"
    return Memset(number, offset, nbytes, step.value)


def _kernel(
    number: int, entry: int, step: Step, own: Entry, key: VariantKey, symbols: dict[str, int], end: int
) -> tuple[KernelLaunch | str, int]:
    """The launch, and the workspace's end behind the scratch it takes."""
    grid, block, cluster = (_triple(texts, symbols) for texts in (step.grid, step.block, step.cluster))
    if own.block:
        block = (own.block, 1, 1)
    if own.cluster > 1:
        grid, cluster = (grid[0] * own.cluster, grid[1], grid[2]), (own.cluster, 1, 1)
    if min(grid) < 1 or min(block) < 1 or min(cluster) < 1 or block[0] * block[1] * block[2] > 1024:
        return f"a grid of {_by(grid)}, blocks of {_by(block)}, clusters of {_by(cluster)} can't be launched", end
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        return f"a grid of {_by(grid)} is not made of whole clusters of {_by(cluster)}", end
    programs = grid[0] * grid[1] * grid[2]
    parameters: list[Parameter] = []
    for arg in step.args:
        if arg.kind == "triton_scratch":
            found, end = _scratch(value_of(arg.offset, symbols), 1, programs, end)
        else:
            found = _parameter(arg, key, symbols)
        parameters.append(found)
    for nbytes in own.scratch or ():
        found, end = _scratch(nbytes, own.scratch_align, programs, end)
        parameters.append(found)
    shared = own.shared_bytes or value_of(step.shared_bytes, symbols)
    if shared < 0 or end > MOST_WORKSPACE:
        return f"{shared} bytes of shared memory, {end} of workspace", end
    made = KernelLaunch(
        number, entry, grid, block, cluster, shared, step.cooperative, step.dependent_launch, tuple(parameters)
    )
    return made, end


def _parameter(arg: PlanArg, key: VariantKey, symbols: dict[str, int]) -> Parameter:
    if arg.kind == "scalar":
        card_value = None if arg.value else key.scalars[arg.index].value if arg.index < len(key.scalars) else None
        return Parameter("constant", packing.scalar_of(arg, symbols, card_value))
    if arg.kind == "tensor_map":
        specs = key.outputs if arg.value == "out" else key.tensors
        if arg.value not in ("in", "out") or arg.index >= len(specs) or len(arg.box) != len(specs[arg.index].dims):
            raise packing.PackError(f"tensor map of {arg.value or 'nothing'} {arg.index} with box {list(arg.box)}")
        return Parameter("tensor_map", index=arg.index, where=arg.value, box=arg.box)
    if arg.kind in ("input", "output") and arg.index >= len(key.tensors if arg.kind == "input" else key.outputs):
        raise packing.PackError(f"{arg.kind} {arg.index} does not exist")
    return Parameter(arg.kind, index=arg.index, offset=value_of(arg.offset, symbols))


def _scratch(nbytes: int, align: int, programs: int, end: int) -> tuple[Parameter, int]:
    """Null where a kernel wants none, else its own slice behind the workspace."""
    if nbytes <= 0:
        return Parameter("constant", packing.pointer_bytes(0)), end
    align = max(align, 256)
    start = -(-end // align) * align
    return Parameter("workspace", offset=start), start + nbytes * programs


def _triple(texts: tuple[str, str, str], symbols: Mapping[str, int]) -> Triple:
    x, y, z = (value_of(text, symbols) for text in texts)
    return x, y, z


def _by(sizes: Triple) -> str:
    return "x".join(map(str, sizes))


def _bad(line: str) -> Problem:
    return Problem("candidate", "bad plan", line)
