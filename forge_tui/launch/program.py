"""A candidate's binary on a device: loaded, checked, bound to memory, launched, captured in a graph."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from forge_tui.launch import structures
from forge_tui.launch.binary import Image, read_image
from forge_tui.launch.device import Device, Pointer, Stream
from forge_tui.launch.driver import DriverError
from forge_tui.launch.packing import pointer_bytes
from forge_tui.launch.steps import KernelLaunch, Memset, Parameter, Resolved, resolve
from forge_tui.launch.tensor_map import encode
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import Plan
from forge_tui.records.problem import Problem


@dataclass(frozen=True)
class Function:
    """One kernel on the device. registers, shared_bytes (static), local_bytes: the driver's own figures."""

    handle: int
    name: str
    registers: int
    shared_bytes: int
    local_bytes: int


class Program:
    """A loaded candidate. Memory needs are `workspace_bytes` (aligned to `workspace_alignment`) and `prepared_bytes`."""

    def __init__(
        self, device: Device, key: VariantKey, resolved: Resolved, modules: list[int], functions: list[Function]
    ):
        self.device, self.key, self.resolved, self.functions = device, key, resolved, tuple(functions)
        self._modules = modules
        self.workspace_bytes, self.workspace_alignment = resolved.workspace_bytes, resolved.workspace_alignment
        self.prepared_bytes = resolved.prepared_bytes

    def bind(
        self, inputs: Sequence[Pointer], outputs: Sequence[Pointer], workspace: Pointer = 0, prepared: Pointer = 0
    ) -> Call | Problem:
        """A call on these addresses (of first elements). They must stay valid until its work is done."""
        wrong = self._misfit(inputs, outputs, workspace, prepared)
        if wrong:
            return Problem("harness", "buffers", wrong)
        made: list[_Launch | _Fill] = []
        if self.resolved.zeroed_bytes:
            made.append(_Fill(workspace, self.resolved.zeroed_bytes, 0))
        for step in self.resolved.steps:
            if isinstance(step, Memset):
                if step.nbytes:
                    made.append(_Fill(workspace + step.offset, step.nbytes, step.value))
                continue
            data = []
            for parameter in step.parameters:
                found = self._data(parameter, inputs, outputs, workspace, prepared)
                if isinstance(found, Problem):
                    return found
                data.append(found)
            made.append(_Launch(self.functions[step.entry], step, data))
        return Call(self.device, tuple(made))

    def unload(self) -> None:
        for module in self._modules:
            self.device.driver.call("cuModuleUnload", ctypes.c_void_p(module))
        self._modules.clear()

    def _misfit(
        self, inputs: Sequence[Pointer], outputs: Sequence[Pointer], workspace: Pointer, prepared: Pointer
    ) -> str:
        for kind, given, specs in (("input", inputs, self.key.tensors), ("output", outputs, self.key.outputs)):
            if len(given) != len(specs):
                return f"{len(given)} {kind}s were given, the card has {len(specs)}"
            for index, (pointer, spec) in enumerate(zip(given, specs, strict=True)):
                if pointer % spec.alignment:
                    return f"{kind} {index} is at {pointer:#x}; the card says aligned to {spec.alignment} bytes"
        if self.workspace_bytes and (not workspace or workspace % self.workspace_alignment):
            return f"the plan needs {self.workspace_bytes} bytes of workspace aligned to {self.workspace_alignment}"
        return "the plan needs prepared data" if self.prepared_bytes and not prepared else ""

    def _data(
        self,
        parameter: Parameter,
        inputs: Sequence[Pointer],
        outputs: Sequence[Pointer],
        workspace: Pointer,
        prepared: Pointer,
    ) -> bytes | Problem:
        if parameter.kind == "constant":
            return parameter.data
        if parameter.kind == "tensor_map":
            out = parameter.where == "out"
            spec = (self.key.outputs if out else self.key.tensors)[parameter.index]
            return encode(self.device.driver, spec, (outputs if out else inputs)[parameter.index], parameter.box)
        if parameter.kind == "input":
            return pointer_bytes(inputs[parameter.index] + parameter.offset)
        if parameter.kind == "output":
            return pointer_bytes(outputs[parameter.index] + parameter.offset)
        return pointer_bytes((workspace if parameter.kind == "workspace" else prepared) + parameter.offset)


class Call:
    """A program with its addresses, ready to be launched any number of times, in a stream or under capture."""

    def __init__(self, device: Device, parts: tuple[_Launch | _Fill, ...]) -> None:
        self._device, self._parts = device, parts

    def launch(self, stream: Stream) -> Problem | None:
        """Enqueue all steps on `stream`. Faults inside kernels show at the next wait, not here."""
        try:
            for part in self._parts:
                part.enqueue(self._device, stream)
        except DriverError as error:
            return error.problem()
        return None


class _Fill:
    def __init__(self, pointer: Pointer, nbytes: int, value: int) -> None:
        self._arguments = (pointer, value, nbytes)

    def enqueue(self, device: Device, stream: Stream) -> None:
        device.fill(*self._arguments, stream)


class _Launch:
    """Keeps the parameter buffers and the launch attributes alive; only the stream changes between launches."""

    def __init__(self, function: Function, step: KernelLaunch, data: list[bytes]) -> None:
        # A tensor map must lie on a multiple of 64 bytes on the host too (cuda.h, CUtensorMap).
        self._data = [_aligned(d) for d in data]
        addresses = [ctypes.addressof(d) for d in self._data]
        self._parameters = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        attributes = []
        if step.cooperative:
            attributes.append(_attribute(structures.COOPERATIVE, number=1))
        if step.cluster != (1, 1, 1):
            attributes.append(_attribute(structures.CLUSTER_DIMENSION, cluster=structures.Dimensions(*step.cluster)))
        if step.dependent_launch:
            attributes.append(_attribute(structures.PROGRAMMATIC_SERIALIZATION, number=1))
        self._attributes = (structures.LaunchAttribute * max(1, len(attributes)))(*attributes)
        self._config = structures.LaunchConfig(
            structures.Dimensions(*step.grid), structures.Dimensions(*step.block), step.shared_bytes, None,
            self._attributes, len(attributes),
        )  # fmt: skip
        self._function = ctypes.c_void_p(function.handle)

    def enqueue(self, device: Device, stream: Stream) -> None:
        self._config.stream = stream
        device.driver.call("cuLaunchKernelEx", ctypes.byref(self._config), self._function, self._parameters, None)


def _aligned(data: bytes) -> ctypes.Array[ctypes.c_char]:
    room = ctypes.create_string_buffer(len(data) + 64)
    start = -ctypes.addressof(room) % 64
    view = (ctypes.c_char * len(data)).from_buffer(room, start)
    view.raw = data
    return view


def _attribute(
    number_of: int, *, number: int | None = None, cluster: structures.Dimensions | None = None
) -> structures.LaunchAttribute:
    value = structures.AttributeValue()
    if cluster is not None:
        value.cluster = cluster
    if number is not None:
        value.number = number
    return structures.LaunchAttribute(number_of, b"", value)


def load_program(
    device: Device, data: bytes, plan: Plan, key: VariantKey, sizes: tuple[tuple[int, ...], ...] | None = None
) -> Program | Problem:
    """Load a cubin or a Triton archive, check the plan against it, raise the kernels' limits. Launches nothing."""
    image = read_image(data, plan)
    if isinstance(image, Problem):
        return image
    resolved = resolve(plan, key, image, sizes)
    if isinstance(resolved, Problem):
        return resolved
    modules: list[int] = []
    found = _functions(device, image, resolved, modules)
    if isinstance(found, Problem):
        for module in modules:  # a lost context has taken them along: nothing to check
            device.driver.code("cuModuleUnload", ctypes.c_void_p(module))
        return found
    return Program(device, key, resolved, modules, found)


def _functions(device: Device, image: Image, resolved: Resolved, modules: list[int]) -> list[Function] | Problem:
    """One function per kernel step; loaded modules are added to `modules`, whatever happens."""
    try:
        for cubin in image.cubins:
            module = ctypes.c_void_p()
            device.driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(cubin))
            modules.append(module.value or 0)
    except DriverError as error:
        return Problem("candidate", "load error", f"the binary does not load on {device.target}: {error}")
    functions: list[Function] = []
    try:
        for step in resolved.steps:
            if isinstance(step, KernelLaunch):
                found = _function(device, image, step, modules)
                if isinstance(found, Problem):
                    return found
                functions.append(found)
    except DriverError as error:
        return error.problem("loading")
    return functions


def _function(device: Device, image: Image, step: KernelLaunch, modules: list[int]) -> Function | Problem:
    entry = image.entries[step.entry]
    driver, handle = device.driver, ctypes.c_void_p()
    name = entry.symbol
    module = ctypes.c_void_p(modules[entry.image])
    if driver.code("cuModuleGetFunction", ctypes.byref(handle), module, ctypes.c_char_p(name.encode())):
        return Problem("candidate", "bad plan", f"step {step.step}: kernel {name[:60]} is not in the binary")
    wrong = misfit(name, [p.nbytes for p in step.parameters], parameter_sizes(device, handle.value or 0))
    if wrong:
        return Problem("candidate", "bad plan", f"step {step.step}: {wrong}")
    static = _function_attribute(device, handle, structures.FUNCTION_SHARED)
    most = device.attribute(structures.DEVICE_MOST_SHARED)
    if static + step.shared_bytes > most:
        line = (
            f"step {step.step}: {static} + {step.shared_bytes} bytes of shared memory; this device gives a block {most}"
        )
        return Problem("candidate", "bad plan", line)
    if static + step.shared_bytes > 48 * 1024:
        _set(device, handle, structures.FUNCTION_MAX_DYNAMIC_SHARED, step.shared_bytes)
    if step.cluster[0] * step.cluster[1] * step.cluster[2] > structures.PORTABLE_CLUSTER:
        _set(device, handle, structures.FUNCTION_NON_PORTABLE_CLUSTER, 1)
    registers = _function_attribute(device, handle, structures.FUNCTION_REGISTERS)
    local = _function_attribute(device, handle, structures.FUNCTION_LOCAL)
    return Function(handle.value or 0, name, registers, static, local)


def parameter_sizes(device: Device, function: int) -> list[int]:
    """Bytes of each parameter, as the driver reads them from the binary (driver 12.4 and newer)."""
    sizes: list[int] = []
    while True:
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        code = device.driver.code(
            "cuFuncGetParamInfo", ctypes.c_void_p(function), ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)
        )  # fmt: skip
        if code == structures.INVALID_VALUE:
            return sizes
        if code != structures.SUCCESS:
            raise DriverError("cuFuncGetParamInfo", code, device.driver.name_of(code))
        sizes.append(size.value)


def misfit(name: str, passed: Sequence[int], taken: Sequence[int]) -> str:
    """How the plan's parameters differ from the binary's, "" when they agree. Sizes in bytes."""
    if len(passed) != len(taken):
        return f"kernel {name[:60]} takes {len(taken)} parameters, the plan passes {len(passed)}"
    for position, (given, wanted) in enumerate(zip(passed, taken, strict=True)):
        if given != wanted:
            return f"parameter {position} of {name[:60]} has {wanted} bytes, the plan passes {given}"
    return ""


def _function_attribute(device: Device, handle: ctypes.c_void_p, attribute: int) -> int:
    value = ctypes.c_int()
    device.driver.call("cuFuncGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), handle)
    return value.value


def _set(device: Device, handle: ctypes.c_void_p, attribute: int, value: int) -> None:
    device.driver.call("cuFuncSetAttribute", handle, ctypes.c_int(attribute), ctypes.c_int(value))
