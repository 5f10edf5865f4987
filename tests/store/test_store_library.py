"""The user's library: shared by sessions, insert-only, unknown is never a number."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from forge_tui.records.problem import MachineProblem, UserInputError
from forge_tui.store.library import Library

MANY = """
import sys
from pathlib import Path
from forge_tui.store.library import Library
library = Library.open(Path(sys.argv[1]))
for number in range(40):
    library.record_gain("recipe:softmax", "softmax", 1.2, 1.1, sys.argv[2], f"n{number}")
    library.put_ceiling("cpu", "copy bandwidth", 1 << 20, 10.0 + number, "GB/s")
library.close()
"""


def test_the_newest_ceiling_of_each_size_counts(tmp_path: Path) -> None:
    library = Library.open(tmp_path / "deep" / "library.db")
    assert library.ceiling("cpu", "copy bandwidth", 4096) is None
    library.put_ceiling("cpu", "copy bandwidth", 4096, 50.0, "GB/s", {"pairs": 20})
    library.put_ceiling("cpu", "copy bandwidth", 1 << 20, 20.0, "GB/s")
    library.put_ceiling("cpu", "copy bandwidth", 4096, 40.0, "GB/s")
    library.put_ceiling("gpu", "copy bandwidth", 4096, 4000.0, "GB/s")
    found = library.ceiling("cpu", "copy bandwidth", 4096)
    assert found is not None and (found.value, found.detail) == (40.0, None)
    assert [(c.size, c.value) for c in library.ceilings("cpu", "copy bandwidth")] == [(4096, 40.0), (1 << 20, 20.0)]
    assert stat.S_IMODE(library.path.stat().st_mode) == 0o600
    library.close()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_ceiling_that_is_no_measurement_is_refused(tmp_path: Path, value: float) -> None:
    library = Library.open(tmp_path / "library.db")
    with pytest.raises(ValueError, match="is no measurement"):
        library.put_ceiling("cpu", "matmul rate", 0, value, "GFLOP/s")
    library.close()


def test_hit_rates_count_each_candidate_once_and_failures_as_tries(tmp_path: Path) -> None:
    library = Library.open(tmp_path / "library.db")
    assert library.hit_rate("tool").rate is None
    for name, realised in (("n1", 1.5), ("n2", None), ("n3", 1.01), ("n1", 9.0)):
        library.record_gain("tool", "softmax", 1.5, realised, "s", name)
    library.record_gain("tool", "relu", None, 2.0, "s", "n4")
    softmax, all_of_it = library.hit_rate("tool", "softmax"), library.hit_rate("tool")
    assert (softmax.hits, softmax.tries) == (1, 3)
    assert (all_of_it.hits, all_of_it.tries) == (2, 4)
    assert softmax.calibration is not None and 0 < softmax.calibration < 0.1
    library.close()


def test_several_processes_may_make_and_write_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "library.db"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    children = [
        subprocess.Popen([sys.executable, "-c", MANY, str(path), f"s{n}"], env=environment, stderr=subprocess.PIPE)
        for n in range(3)
    ]
    for child in children:
        _, errors = child.communicate(timeout=90)
        assert child.returncode == 0, errors
    library = Library.open(path)
    assert library.hit_rate("recipe:softmax").tries == 120
    library.close()


def test_memory_comes_back_newest_first(tmp_path: Path) -> None:
    library = Library.open(tmp_path / "library.db")
    library.remember("pattern", "softmax", {"tile": 8})
    library.remember("pattern", "softmax", {"tile": 16})
    assert library.recall("pattern", "softmax") == [{"tile": 16}, {"tile": 8}]
    assert library.recall("pattern", "relu") == []
    library.close()


def test_foreign_newer_and_damaged_files_are_one_line(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(UserInputError, match="a database of another program"):
        Library.open(tmp_path / "other.db")
    Library.open(tmp_path / "newer.db").close()
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(UserInputError, match="needs a newer version"):
        Library.open(tmp_path / "newer.db")
    (tmp_path / "damaged.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(MachineProblem, match="is damaged"):
        Library.open(tmp_path / "damaged.db")
