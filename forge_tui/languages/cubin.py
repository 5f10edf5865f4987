"""What a cubin says about itself: its kernels, their parameters and resources, and whether a launch plan fits them.

Read from the ELF file with our own reader, so no NVIDIA tool is needed. The attribute numbers of .nv.info are not
documented by NVIDIA; these were read off cubins that nvcc 13.0 wrote for kernels with known parameters (tests do it
again), and a missing attribute reads None, which means unknown.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from forge_tui.languages import elf
from forge_tui.languages.elf import Elf, ElfError
from forge_tui.records.card import VariantKey
from forge_tui.records.expr import ExprError, value_of
from forge_tui.records.plan import Plan, PlanArg, Step, symbols_of
from forge_tui.records.problem import Problem

EM_CUDA = 190
_KERNEL_MARK = 0x10  # st_other of an entry function
_MAX_THREADS, _REQUIRED_THREADS, _FRAME_SIZE, _PARAMETER, _PARAMETER_BYTES, _REGISTERS = (
    0x05,
    0x10,
    0x11,
    0x17,
    0x19,
    0x2F,
)
_VALUE_FORMAT = 4  # attribute with a length and a payload; the other formats carry 2 bytes in place
SCALAR_BYTES = {
    "i8": 1, "u8": 1, "bool": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4, "i64": 8, "u64": 8,
    "f64": 8,
}  # fmt: skip
TENSOR_MAP_BYTES = 128  # CUtensorMap
BLOCK_LIMIT = 1024  # threads of a block on every compute capability (CUDA programming guide, table of limits)
# Most shared memory of one block, opted in (same table).
SHARED_LIMIT = {
    "sm_70": 96, "sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_87": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227,
    "sm_103": 227, "sm_120": 99,
}  # fmt: skip
_ENTRY_LINE = re.compile(r"Compiling entry function '([^']+)'")
_SPILL_LINE = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED_LINE = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")


@dataclass(frozen=True)
class Kernel:
    """One entry function. parameters: (offset, bytes) in order. None: not stated. Sizes in bytes, shared without dynamic."""

    name: str
    parameters: tuple[tuple[int, int], ...]
    registers: int | None = None
    stack_bytes: int | None = None
    max_threads: int | None = None
    required_threads: tuple[int, int, int] | None = None
    shared_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    code_bytes: int | None = None


def kernels_of(data: bytes) -> dict[str, Kernel]:
    """Entry functions of a cubin by name. Raises ElfError for bytes that are none."""
    binary = Elf(data)
    if binary.machine != EM_CUDA:
        raise ElfError(f"machine {binary.machine} is not CUDA")
    symbols = binary.symbols(elf.SHT_SYMTAB)
    found = {
        s.name: Kernel(s.name, (), code_bytes=s.size)
        for s in symbols
        if s.kind == elf.STT_FUNC and not s.undefined and s.other & _KERNEL_MARK
    }
    by_number = {index + 1: s.name for index, s in enumerate(symbols)}
    table = binary.section(".nv.info")
    for attribute, payload in _attributes(binary.content(table)) if table else ():
        if attribute in (_REGISTERS, _FRAME_SIZE) and len(payload) >= 8:
            number, value = struct.unpack_from("<II", payload)
            name = by_number.get(number, "")
            if name in found:
                changed = {"registers": value} if attribute == _REGISTERS else {"stack_bytes": value}
                found[name] = replace(found[name], **changed)
    return {name: _own_attributes(binary, kernel) for name, kernel in found.items()}


def _own_attributes(binary: Elf, kernel: Kernel) -> Kernel:
    section = binary.section(f".nv.info.{kernel.name}")
    if section is None:
        return kernel
    parameters: dict[int, tuple[int, int]] = {}
    for attribute, payload in _attributes(binary.content(section)):
        if attribute == _PARAMETER and len(payload) >= 12:
            _, ordinal, offset, packed = struct.unpack_from("<IHHI", payload)
            parameters[ordinal] = (offset, packed >> 18)
        elif attribute in (_MAX_THREADS, _REQUIRED_THREADS) and len(payload) >= 12:
            x, y, z = struct.unpack_from("<III", payload)
            if attribute == _MAX_THREADS:
                kernel = replace(kernel, max_threads=x * y * z)
            else:
                kernel = replace(kernel, required_threads=(x, y, z))
    return replace(kernel, parameters=tuple(parameters[k] for k in sorted(parameters)))


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) pairs of one .nv.info section."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, length = struct.unpack_from("<BBH", content, at)
        if form == _VALUE_FORMAT:
            if at + 4 + length > len(content):
                raise ElfError("an attribute runs past its section")
            yield attribute, content[at + 4 : at + 4 + length]
            at += 4 + length
        else:
            yield attribute, content[at + 2 : at + 4]
            at += 4


def add_compiler_report(kernels: dict[str, Kernel], log: str) -> dict[str, Kernel]:
    """Spills and static shared memory from ptxas -v, where its log has them."""
    found = dict(kernels)
    current = ""
    for line in log.splitlines():
        entry, spills, used = _ENTRY_LINE.search(line), _SPILL_LINE.search(line), _USED_LINE.search(line)
        if entry:
            current = entry[1]
        elif current not in found:
            continue
        elif spills:
            found[current] = replace(found[current], spill_store_bytes=int(spills[2]), spill_load_bytes=int(spills[3]))
        elif used:
            found[current] = replace(found[current], shared_bytes=int(used[2] or 0))
    return found


def check_plan(plan: Plan, key: VariantKey, kernels: Mapping[str, Kernel], target: str) -> Problem | None:
    """The first thing of a plan that the binary contradicts."""
    symbols = symbols_of(key) | plan.constants
    for number, step in enumerate(plan.steps):
        if step.kind == "kernel":
            wrong = _step(step, kernels, symbols if key.exact else {}, target)
            if wrong:
                return Problem("candidate", "bad plan", f"step {number}: {wrong}")
    if plan.prepare is not None and plan.prepare.entry not in kernels:
        return Problem("candidate", "bad plan", f"prepare: {_absent(plan.prepare.entry, kernels)}")
    return None


def _step(step: Step, kernels: Mapping[str, Kernel], symbols: Mapping[str, int], target: str) -> str:
    kernel = kernels.get(step.kernel)
    if kernel is None:
        return _absent(step.kernel, kernels)
    if len(kernel.parameters) != len(step.args):
        return f"kernel {step.kernel} takes {len(kernel.parameters)} parameters, the plan passes {len(step.args)}"
    for position, (arg, (_, size)) in enumerate(zip(step.args, kernel.parameters, strict=True)):
        passed = argument_bytes(arg)
        if passed != size:
            what = f"{arg.kind} {arg.ctype}".strip()
            return f"parameter {position} of {step.kernel} has {size} bytes, the plan passes {what} with {passed}"
    return _launch(step, kernel, symbols, target) if symbols else ""


def _launch(step: Step, kernel: Kernel, symbols: Mapping[str, int], target: str) -> str:
    try:
        block = tuple(value_of(text, symbols) for text in step.block)
        grid = tuple(value_of(text, symbols) for text in step.grid)
        dynamic = value_of(step.shared_bytes, symbols)
    except ExprError as error:
        return str(error)
    threads = block[0] * block[1] * block[2]
    limit = min(BLOCK_LIMIT, kernel.max_threads or BLOCK_LIMIT)
    if min(block) < 1 or threads > limit or block[2] > 64:
        return f"a block of {block[0]}x{block[1]}x{block[2]} threads; kernel {step.kernel} allows 1 to {limit}"
    if kernel.required_threads is not None and block != kernel.required_threads:
        return f"kernel {step.kernel} requires blocks of {'x'.join(map(str, kernel.required_threads))} threads"
    if min(grid) < 1 or grid[0] > 0x7FFFFFFF or max(grid[1:]) > 65535:
        return f"a grid of {grid[0]}x{grid[1]}x{grid[2]} blocks can't be launched"
    shared = SHARED_LIMIT.get(target)
    if dynamic < 0 or (shared is not None and dynamic + (kernel.shared_bytes or 0) > shared * 1024):
        return f"{dynamic} bytes of dynamic shared memory; {target} has {shared} KiB a block"
    return ""


def argument_bytes(arg: PlanArg) -> int:
    """Bytes an argument occupies in the parameter buffer."""
    if arg.kind == "scalar":
        return SCALAR_BYTES[arg.ctype]
    return TENSOR_MAP_BYTES if arg.kind == "tensor_map" else 8


def _absent(name: str, kernels: Mapping[str, Kernel]) -> str:
    mangled = [k for k in kernels if f"{len(name)}{name}" in k]
    if mangled:
        return f'kernel {name} is called {mangled[0][:60]} in the binary: declare it extern "C"'
    return f"kernel {name[:60]} is not in the binary, which has {', '.join(sorted(kernels))[:200] or 'none'}"
