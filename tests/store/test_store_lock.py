"""Who owns a session: a live owner is respected, a dead one's lock is removed, and the line says which."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from forge_tui.records.problem import MachineProblem
from forge_tui.store import lock
from forge_tui.store.lock import OwnerLock, SessionLocked, read_owner

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from forge_tui.store.lock import OwnerLock
held = OwnerLock.acquire(Path(sys.argv[1]))
if len(sys.argv) > 2:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=(held._fd,), stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
else:
    print("held", flush=True)
time.sleep(60)
"""


def start_holder(path: Path, *more: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), *more],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_live_owner_is_respected_and_named(tmp_path: Path) -> None:
    path = tmp_path / "owner.lock"
    process, _ = start_holder(path)
    try:
        assert read_owner(path).state == "live"
        with pytest.raises(SessionLocked) as caught:
            OwnerLock.acquire(path)
        assert f"process {process.pid} on {socket.gethostname()} runs this session" in str(caught.value)
    finally:
        kill(process)


def test_a_stopped_owner_is_alive(tmp_path: Path) -> None:
    path = tmp_path / "owner.lock"
    process, _ = start_holder(path)
    try:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(SessionLocked):
            OwnerLock.acquire(path)
    finally:
        kill(process)


def test_a_dead_owners_lock_is_removed_and_said_so(tmp_path: Path) -> None:
    path = tmp_path / "owner.lock"
    process, _ = start_holder(path)
    kill(process)
    assert read_owner(path).state == "dead"
    mine = OwnerLock.acquire(path)
    assert (
        mine.removed
        == f"process {process.pid} on {socket.gethostname()} ran this session and died; its lock was removed"
    )
    assert read_owner(path).mine
    mine.release()
    assert read_owner(path).state == "none"


def test_children_of_a_dead_owner_do_not_keep_the_session(tmp_path: Path) -> None:
    path = tmp_path / "owner.lock"
    process, child = start_holder(path, "with a child")
    kill(process)
    try:
        mine = OwnerLock.acquire(path)
        assert "its children still held the lock" in mine.removed
        with pytest.raises(SessionLocked):
            OwnerLock.acquire(path)
        mine.release()
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_reused_process_number_is_not_mistaken_for_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "owner.lock"
    who = {"pid": 1, "started": "17", "host": socket.gethostname(), "boot": lock.boot_id(), "since": 1.0}
    path.write_text(json.dumps(who))
    assert read_owner(path).state == "dead"


def test_an_owner_from_before_a_restart_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "owner.lock"
    who = {"pid": os.getpid(), "started": lock.process_start(os.getpid()), "host": socket.gethostname()}
    path.write_text(json.dumps({**who, "boot": "another", "since": 1.0}))
    assert read_owner(path).state == "dead"


def test_an_owner_on_another_host_is_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "owner.lock"
    path.write_text(json.dumps({"pid": 5, "started": "1", "host": "elsewhere.example", "boot": "b", "since": 1.0}))
    owner = read_owner(path)
    assert (owner.state, owner.host) == ("elsewhere", "elsewhere.example")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "\x00" * 100])
def test_a_damaged_lock_file_that_nobody_holds_is_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "owner.lock"
    path.write_text(text)
    assert read_owner(path).state == "none"
    mine = OwnerLock.acquire(path)
    assert mine.held
    mine.release()
    mine.release()
    assert not path.exists()


def test_of_many_takers_one_wins(tmp_path: Path) -> None:
    path, won, lost = tmp_path / "owner.lock", list[OwnerLock](), list[SessionLocked]()
    begin = threading.Barrier(8)

    def take() -> None:
        begin.wait()
        try:
            won.append(OwnerLock.acquire(path))
        except SessionLocked as problem:
            lost.append(problem)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 7)
    won[0].release()


def test_a_folder_that_is_gone_is_a_machine_problem(tmp_path: Path) -> None:
    with pytest.raises(MachineProblem, match="can't be locked"):
        OwnerLock.acquire(tmp_path / "none" / "owner.lock")


def test_a_zombie_has_no_start_time() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 20
    while lock.process_start(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert lock.process_start(process.pid) == ""
    process.wait()
