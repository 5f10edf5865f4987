"""Program: compile source.cu with NVRTC, inside the compile sandbox: `nvrtc.py LIBRARY ARCH INCLUDE...`.

Reads source.cu and card.h in the current folder, writes candidate.cubin and source.ptx beside them, the log to stderr.
Exit code 12: the source has errors. Enumeration and signatures: nvrtc.h of CUDA 13.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path

SOURCE_HAS_ERRORS = 12
OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--extra-device-vectorization")


class _Nvrtc:
    def __init__(self, library: Path) -> None:
        for builtins in sorted(library.parent.glob("libnvrtc-builtins.so*")):
            with contextlib.suppress(OSError):  # must be in the global scope before the first compile
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(library))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: object) -> None:
        """One call; exits with NVRTC's own words when it fails."""
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            sys.exit(f"{name}: {self.library.nvrtcGetErrorString(code).decode()}")

    def fetch(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw


def main() -> None:
    """Entry point."""
    library, arch, includes = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    nvrtc = _Nvrtc(library)
    program = ctypes.c_void_p()
    sources = (ctypes.c_char_p * 1)(Path("card.h").read_bytes())
    names = (ctypes.c_char_p * 1)(b"card.h")
    nvrtc.call(
        "nvrtcCreateProgram", ctypes.byref(program), Path("source.cu").read_bytes(), b"source.cu", 1, sources, names
    )
    options = [f"--gpu-architecture={arch}", *OPTIONS, *(f"-I{folder}" for folder in includes)]
    encoded = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    failed = nvrtc.library.nvrtcCompileProgram(program, len(options), encoded)
    sys.stderr.write(nvrtc.fetch(program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace"))
    if failed:
        sys.exit(SOURCE_HAS_ERRORS)
    Path("candidate.cubin").write_bytes(nvrtc.fetch(program, "CUBIN"))
    Path("source.ptx").write_bytes(nvrtc.fetch(program, "PTX").rstrip(b"\0"))
