"""Build a small C++ library against the running interpreter's torch: no Python headers, cached per torch version.

Used by the cast runtime (dispatch hooks) and by the judge (eager's timing loop). Standard library and torch only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch


def cached_library(sources: tuple[Path, ...], name: str, cache: Path, limit_s: float = 180.0) -> Path | str:
    """Path of the shared library built from sources[0] (the others are headers it includes), or the reason why not.

    The file name carries a hash of the sources, the torch version and the machine, so a stale build is never loaded.
    Two processes may build at once: each writes its own file and renames it into place.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    digest.update(f"{torch.__version__} {platform.machine()} {platform.libc_ver()}".encode())
    target = cache / f"{name}-{torch.__version__}-{digest.hexdigest()[:12]}.so"
    if target.exists():
        return target
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        return "no C++ compiler (g++) on the path"
    root = Path(torch.__file__).parent
    include = root / "include"
    if not (include / "ATen").is_dir():
        return f"torch {torch.__version__} here ships no C++ headers"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        output = Path(scratch) / "library.so"
        command = [
            compiler, "-O2", "-std=c++20", "-fPIC", "-shared", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", f"-I{sources[0].parent}",
            str(sources[0]), "-o", str(output), f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return f"building {name} took longer than {limit_s:.0f} s"
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            return f"building {name} against torch {torch.__version__} failed: {(errors or ['no message'])[0][:300]}"
        output.replace(target)
    return target
