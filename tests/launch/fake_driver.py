"""A driver library that launches nothing and remembers every call, for the order of things without a device."""

from __future__ import annotations

import ctypes
from typing import Any


class FakeLibrary:
    """sizes: parameter sizes of each kernel by name. fails: function name -> code it returns."""

    def __init__(self, sizes: dict[str, list[int]], fails: dict[str, int] | None = None) -> None:
        self.sizes, self.fails = sizes, fails or {}
        self.calls: list[tuple[Any, ...]] = []
        self.kernels: list[str] = []
        self.attributes: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            handler = getattr(type(self), f"_{name}", None)
            if name in self.fails:
                return self.fails[name]
            return int(handler(self, *arguments)) if handler else 0

        return type("Function", (), {"__call__": staticmethod(function), "restype": None})()

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def _cuGetErrorName(self, code: Any, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_OF_THE_TEST"
        return 0

    def _cuModuleLoadData(self, module: Any, data: Any) -> int:
        module._obj.value = 0x10
        return 0

    def _cuModuleGetFunction(self, function: Any, module: Any, name: Any) -> int:
        if name.value.decode() not in self.sizes:
            return 500
        self.kernels.append(name.value.decode())
        function._obj.value = 0x100 + len(self.kernels)
        return 0

    def _cuFuncGetParamInfo(self, function: Any, index: Any, offset: Any, size: Any) -> int:
        sizes = self.sizes[self.kernels[function.value - 0x101]]
        if index.value >= len(sizes):
            return 1
        size._obj.value = sizes[index.value]
        return 0

    def _cuDeviceGetAttribute(self, value: Any, attribute: Any, device: Any) -> int:
        value._obj.value = {97: 232448, 75: 9, 76: 0}.get(attribute.value, 0)
        return 0

    def _cuFuncSetAttribute(self, function: Any, attribute: Any, value: Any) -> int:
        self.attributes[attribute.value] = value.value
        return 0

    def _cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: Any) -> int:
        # The buffers change with the next launch: keep what this one says.
        c = config._obj
        attributes = [(c.attributes[i].id, c.attributes[i].value.number) for i in range(c.count)]
        self.calls[-1] = (
            "cuLaunchKernelEx", (c.grid.x, c.grid.y, c.grid.z), (c.block.x, c.block.y, c.block.z), c.shared_bytes, c.stream, attributes,
        )  # fmt: skip
        kernel = self.kernels[function.value - 0x101]
        self.calls.append(
            ("parameters", *(ctypes.string_at(parameters[i], n) for i, n in enumerate(self.sizes[kernel])))
        )
        return 0

    def _cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        graph._obj.value = 0x20
        return 0

    def _cuGraphInstantiateWithFlags(self, executable: Any, graph: Any, flags: Any) -> int:
        executable._obj.value = 0x30
        return 0
