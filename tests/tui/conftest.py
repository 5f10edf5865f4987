"""Fixed surroundings for the screen's tests: one time zone, no user colours, no multiplexer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def fixed_surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TMUX", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
