"""Finding a CUDA compiler and a device: nvcc first, NVRTC where only that is present, the architecture of device 0.

No CUDA context is made here: the device is asked for through NVML.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ARCH = "sm_90"
_VERSION = re.compile(r"release [\d.]+, V([\d.]+)")


@dataclass(frozen=True)
class Compiler:
    """kind: "nvcc" or "nvrtc". path: program or library. includes: folders with CUDA's headers (NVRTC only)."""

    kind: str
    path: str
    version: str
    includes: tuple[str, ...] = ()


def find_nvcc(cuda_home: str | None) -> Compiler | None:
    """nvcc of CUDA_HOME, of the path, of /usr/local/cuda or of the nvidia packages of this interpreter."""
    places = [Path(cuda_home) / "bin" / "nvcc"] if cuda_home else []
    on_path = shutil.which("nvcc")
    places += [Path(on_path)] if on_path else []
    places += [Path("/usr/local/cuda/bin/nvcc"), *(folder / "bin" / "nvcc" for folder in _wheel_folders())]
    for place in places:
        if place.is_file():
            try:
                said = subprocess.run(
                    [str(place), "--version"],
                    capture_output=True,
                    text=True,
                    timeout=30,
                    check=False,
                    stdin=subprocess.DEVNULL,
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            match = _VERSION.search(said.stdout)
            if said.returncode == 0 and match:
                return Compiler("nvcc", str(place), match[1])
    return None


def find_nvrtc(cuda_home: str | None) -> Compiler | None:
    """libnvrtc with the headers beside it."""
    roots = [Path(cuda_home)] if cuda_home else []
    roots += [Path("/usr/local/cuda"), *_wheel_folders()]
    for root in roots:
        for folder in ("lib64", "lib"):
            libraries = sorted((root / folder).glob("libnvrtc.so.*"), key=lambda p: len(p.name))
            if libraries:
                includes = [r / "include" for r in dict.fromkeys((root, *roots)) if (r / "include").is_dir()]
                version = libraries[-1].name.removeprefix("libnvrtc.so.")
                return Compiler("nvrtc", str(libraries[0]), version, tuple(str(i) for i in includes))
    return None


def device_architecture() -> str | None:
    """ "sm_90" of device 0, or None without a driver or device."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
        return f"sm_{major}{minor}"
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _wheel_folders() -> list[Path]:
    """Folders of NVIDIA's packages in this interpreter (nvidia/cu13, nvidia/cuda_nvrtc, ...)."""
    spec = importlib.util.find_spec("nvidia")
    folders: list[Path] = []
    for place in (spec.submodule_search_locations or []) if spec else []:
        folders += sorted(p for p in Path(place).iterdir() if p.is_dir())
    return folders
