"""Fixtures of the launcher's tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tui.languages.cuda import NVCC_FLAGS
from forge_tui.launch import driver
from forge_tui.launch.device import Device
from forge_tui.records.problem import MachineProblem


@pytest.fixture(scope="session")
def device() -> Device:
    try:
        return Device.open(driver.load(), 0)
    except MachineProblem as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """CUDA source to cubin for the H100 and H200."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not on the path")

    def compile_source(source: str) -> bytes:
        folder: Path = tmp_path_factory.mktemp("cubin")
        (folder / "source.cu").write_text(source)
        command = [nvcc, *NVCC_FLAGS, "-arch=sm_90", "source.cu", "-o", "out.cubin"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
        return (folder / "out.cubin").read_bytes()

    return compile_source
