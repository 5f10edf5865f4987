"""A session and an open store for each test that asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tui.records.workload import WorkloadSpec
from forge_tui.store.session import Session
from forge_tui.store.store import Store


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.create(tmp_path / "demo", "demo", WorkloadSpec("example:resnet50"))


@pytest.fixture
def store(session: Session) -> Iterator[Store]:
    opened = Store.open(session)
    yield opened
    opened.close()
