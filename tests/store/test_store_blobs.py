"""Content-addressed files: whole or absent, never wrong, private."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.records.problem import MachineProblem, UserInputError
from forge_tui.store.blobs import Blobs


@settings(max_examples=50, deadline=None)  # files are written: their time says nothing
@given(st.binary(max_size=5000))
def test_what_was_put_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("blobs")
    blobs = Blobs(folder)
    (folder / "given").write_bytes(data)
    address = blobs.put(data)
    assert (
        address == hashlib.sha256(data).hexdigest() == blobs.put(memoryview(data)) == blobs.put_file(folder / "given")
    )
    assert blobs.read(address) == data
    assert list(blobs.addresses()) == [address]


def test_a_flipped_byte_is_found_and_the_line_names_the_file(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    address = blobs.put(b"kernel" * 1000)
    path = blobs.path(address)
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)
    with pytest.raises(MachineProblem, match=f"{path} has changed on disk"):
        blobs.read(address)
    assert "has changed on disk" in blobs.fault(address)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    with pytest.raises(MachineProblem, match="is missing"):
        blobs.read("0" * 64)
    assert "can't be read" in blobs.fault("0" * 64)


@pytest.mark.parametrize("address", ["", "../../etc/passwd", "0" * 63, "G" * 64, "0" * 64 + "\n", "A" * 64])
def test_what_is_no_address_never_becomes_a_path(tmp_path: Path, address: str) -> None:
    with pytest.raises(UserInputError, match="is not the address"):
        Blobs(tmp_path).path(address)


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        path = Blobs(tmp_path / "blobs").path(Blobs(tmp_path / "blobs").put(b"x"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_half_written_files_are_removed_and_others_kept(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    address = blobs.put(b"whole")
    (tmp_path / "0123.part").write_bytes(b"half")
    (blobs.path(address).parent / "4567.part").write_bytes(b"half")
    assert blobs.remove_half_written() == 2
    assert list(blobs.addresses()) == [address]
    assert not list(tmp_path.glob("**/*.part"))


def test_many_writers_of_one_content_make_one_file(tmp_path: Path) -> None:
    blobs, data = Blobs(tmp_path), b"same" * 10_000
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(blobs.put(data))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 8
    assert [path.name for path in tmp_path.glob("*/*")] == [found[0]]


def test_a_name_appears_only_with_its_whole_content(tmp_path: Path) -> None:
    blobs, wrong, stop = Blobs(tmp_path), list[str](), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            wrong.extend(fault for address in blobs.addresses() if (fault := blobs.fault(address)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(30):
        blobs.put(bytes([number]) * 300_000)
    time.sleep(0.01)
    stop.set()
    watcher.join()
    assert not wrong


def test_a_missing_source_is_a_machine_problem_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(MachineProblem, match="could not be stored"):
        Blobs(tmp_path / "blobs").put_file(tmp_path / "none")
    assert list((tmp_path / "blobs").iterdir()) == []
