"""libcuda through ctypes: every call is checked, and a failing one says which call and the driver's own name for it."""

from __future__ import annotations

import ctypes
from typing import Any

from forge_tui.launch import structures
from forge_tui.records.problem import MachineProblem, Problem

LIBRARY = "libcuda.so.1"
# What went wrong inside a kernel; the context is lost afterwards (CUDA driver API, CUresult).
CRASHES = {
    700: "illegal address", 714: "hardware stack error", 715: "illegal instruction", 716: "misaligned address",
    717: "invalid address space", 718: "invalid program counter", 719: "launch failure", 710: "device-side assertion",
}  # fmt: skip
TIMEOUT = 702
OUT_OF_RESOURCES = 701
COOPERATIVE_TOO_LARGE = 720


class DriverError(Exception):
    """A driver call failed. code: CUresult; name: "CUDA_ERROR_..."; call: the function."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call, self.code, self.name = call, code, name

    def problem(self, what: str = "the launch") -> Problem:
        """Whose fault it is. A crash leaves the context unusable: the process that holds it must be replaced."""
        if self.code in CRASHES:
            return Problem("candidate", "crash", f"{what}: {CRASHES[self.code]} in a kernel ({self.name})")
        if self.code == TIMEOUT:
            return Problem("candidate", "timeout", f"{what}: the kernel ran too long ({self.name})")
        if self.code == COOPERATIVE_TOO_LARGE:
            line = f"{what}: the device can't hold all blocks of a cooperative launch at once ({self.name})"
            return Problem("candidate", "launch error", line)
        if self.code == structures.OUT_OF_MEMORY:
            return Problem("machine", "memory", f"{what}: the device is out of memory ({self.call})")
        return Problem("candidate", "launch error", f"{what}: {self.name} from {self.call}")


class Driver:
    """The loaded library. `call("cuInit", 0)` raises DriverError unless it succeeds."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._functions: dict[str, Any] = {}

    def call(self, name: str, *arguments: Any) -> None:
        code = self.code(name, *arguments)
        if code != structures.SUCCESS:
            raise DriverError(name, code, self.name_of(code))

    def code(self, name: str, *arguments: Any) -> int:
        """The CUresult of a call, for callers that expect a failure."""
        function = self._functions.get(name)
        if function is None:
            try:
                function = getattr(self._library, name)
            except AttributeError:
                raise MachineProblem(f"the NVIDIA driver is too old: it has no {name}") from None
            function.restype = ctypes.c_int
            self._functions[name] = function
        return int(function(*arguments))

    def name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self.code("cuGetErrorName", ctypes.c_int(code), ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return text.value.decode()


def load() -> Driver:
    """Load and initialise the driver. Raises MachineProblem, in words, where there is none or it refuses."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise MachineProblem(f"no NVIDIA driver: {LIBRARY} can't be loaded ({error})") from error
    driver = Driver(library)
    try:
        driver.call("cuInit", ctypes.c_uint(0))
    except DriverError as error:
        raise MachineProblem(f"the NVIDIA driver does not start: {error}") from error
    return driver
