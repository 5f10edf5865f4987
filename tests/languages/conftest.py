"""Shared by the language tests: real toolchains, probed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_tui.languages.cache import CompileCache
from forge_tui.languages.cpp import Cpp
from forge_tui.languages.cuda import Cuda
from forge_tui.languages.language import Toolchain
from forge_tui.records.problem import Problem


@pytest.fixture(scope="session")
def gcc() -> Toolchain:
    found = Cpp(cache=None).probe()
    if isinstance(found, Problem):
        pytest.skip(found.line)
    return found


@pytest.fixture(scope="session")
def nvcc() -> Toolchain:
    found = Cuda(cache=None, arch="sm_90").probe()
    if isinstance(found, Problem):
        pytest.skip(found.line)
    return found


@pytest.fixture
def cpp() -> Cpp:
    return Cpp(cache=None)


@pytest.fixture
def cuda() -> Cuda:
    return Cuda(cache=None, arch="sm_90")


@pytest.fixture
def cached_cpp(tmp_path: Path) -> Cpp:
    return Cpp(cache=CompileCache(tmp_path / "cache"))
