"""kill -9 at the worst moments: nothing stored changes, nothing is paid twice, nothing keeps running."""

from __future__ import annotations

from pathlib import Path

import pytest
from killing import series


@pytest.mark.slow
def test_a_run_killed_at_every_kind_of_moment_finishes_with_nothing_lost(tmp_path: Path) -> None:
    kills = ["llm", "compile", "timing", "commit", "rename"]
    result, calls, code = series(tmp_path, kills, attempts=6)
    assert result.faults == []
    assert result.orphans == []
    assert set(result.kills) == set(kills)
    assert code in (0, 1), (tmp_path / "lives.log").read_text()[-3000:]
    assert calls["seen"] <= calls["asked"]
    assert calls.get("replied", 0) >= 6
