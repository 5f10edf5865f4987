"""Fixtures of the recipe tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Path:
    """Folder of compiled kernels, kept between runs by content."""
    return Path(pytestconfig.cache.mkdir("recipes"))
