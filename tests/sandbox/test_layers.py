"""The sandbox's promises, kept as this user and as a plain user, with namespaces and without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forge_tui
from forge_tui.sandbox.profile import LAYERS, detect, profile_of

PLAIN_UID = 65534
NAMES = (
    "layers", "canaries", "unlocked_canaries", "canaries_without_landlock", "fork_bomb", "process_limit", "secret_seen", "tree_kill",
    "daemon_of_an_ended_worker", "caller_dies", "files", "memory", "processor_time", "metadata",
)  # fmt: skip

if not sys.platform.startswith("linux"):
    pytest.skip("the layers are Linux's", allow_module_level=True)


def readable_python() -> str | None:
    """An interpreter (3.10 or later) that a plain user can execute."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 10))"
        try:
            done = subprocess.run(
                [candidate, "-I", "-c", code], user=PLAIN_UID, group=PLAIN_UID, extra_groups=[], check=False
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


def observe(user: str, profile: str) -> dict[str, Any]:
    """Run all scenarios once as `user` ("this user" or "plain user")."""
    folder = Path(tempfile.mkdtemp(prefix="forge-sandbox-"))
    try:
        folder.chmod(0o777)
        copy = folder / "package"
        package = Path(forge_tui.__file__).parent
        shutil.copytree(
            package / "sandbox", copy / "forge_tui" / "sandbox", ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copytree(
            package / "records", copy / "forge_tui" / "records", ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(package / "__init__.py", copy / "forge_tui")
        shutil.copy(Path(__file__).with_name("scenarios.py"), copy)
        work = folder / "work"
        work.mkdir()
        work.chmod(0o777)
        python: str | None = sys.executable
        as_user: dict[str, Any] = {}
        if user == "plain user":
            python = readable_python()
            if python is None:
                pytest.skip("no interpreter here that a plain user can execute")
            as_user = {"user": PLAIN_UID, "group": PLAIN_UID, "extra_groups": []}
        done = subprocess.run(
            [str(python), str(copy / "scenarios.py"), str(work), profile, *NAMES],
            capture_output=True, text=True, timeout=60, check=False, cwd="/", **as_user,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(
    scope="module",
    params=[(u, p) for u in ("this user", "plain user") for p in ("detected", "no-userns")],
    ids=lambda value: f"{value[0]}, {value[1]}".replace(" ", "_"),
)
def seen(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    user, profile = request.param
    if user == "plain user" and os.geteuid() != 0:
        pytest.skip("already a plain user: covered by 'this user'")
    if not detect().has("landlock") or not detect().has("seccomp"):
        pytest.skip(f"this kernel lacks layers: {detect().line}")
    yield observe(user, profile) | {"user": user, "profile": profile}


def test_every_canary_of_a_locked_worker_is_refused(seen: dict[str, Any]) -> None:
    assert set(seen["canaries"].values()) == {"refused"}, seen["canaries"]


def test_canaries_can_fail_when_the_second_stage_is_left_out(seen: dict[str, Any]) -> None:
    assert seen["unlocked_canaries"]["start a thread"] == "allowed"
    assert seen["unlocked_canaries"]["start a program"] == "allowed"


def test_canaries_see_that_landlock_is_missing_and_leave_nothing_behind(seen: dict[str, Any]) -> None:
    found = seen["canaries_without_landlock"]
    assert found["write outside"] == found["read a forbidden file"] == "allowed"
    assert not list(Path("/tmp").glob("forge-canary-*"))


def test_each_layer_reports_on_or_a_reason(seen: dict[str, Any]) -> None:
    layers = seen["layers"]
    for name in ("rlimits", "no_new_privs", "capabilities", "landlock", "seccomp", "pdeathsig"):
        assert layers[name] == "on"
    assert all(state for state in layers.values())
    if seen["profile"] == "no-userns":
        assert layers["user_ns"] == "left out by the test"


def test_a_run_worker_cannot_fork_even_before_it_is_locked(seen: dict[str, Any]) -> None:
    assert seen["fork_bomb"] == 0


def test_processes_of_a_plain_user_in_a_namespace_stop_at_the_limit(seen: dict[str, Any]) -> None:
    if seen["user"] != "plain user" or seen["layers"]["user_ns"] != "on":
        pytest.skip("RLIMIT_NPROC counts per namespace for plain users only")
    assert seen["process_limit"] < 20


def test_a_key_in_the_parents_environment_is_not_readable(seen: dict[str, Any]) -> None:
    assert seen["secret_seen"] is False


def test_setsid_double_fork_and_ignored_sigterm_do_not_survive_kill(seen: dict[str, Any]) -> None:
    assert seen["tree_kill"] == dict.fromkeys(seen["tree_kill"], True)


def test_a_daemon_left_by_a_worker_that_ended_is_gone(seen: dict[str, Any]) -> None:
    assert seen["daemon_of_an_ended_worker"] == {"code": True, "beat": True, "silent": True}


def test_the_tree_dies_with_a_caller_that_is_killed(seen: dict[str, Any]) -> None:
    assert seen["caller_dies"]["silent"]


def test_writing_works_in_the_scratch_folder_only_and_up_to_the_size_limit(seen: dict[str, Any]) -> None:
    files = seen["files"]
    assert files["inside"] == "allowed"
    assert files["outside"].startswith("PermissionError") and files["left"] is False
    assert files["secret"].startswith("PermissionError")
    assert files["large"] == "OSError 27"  # EFBIG


def test_memory_and_processor_time_are_bounded(seen: dict[str, Any]) -> None:
    assert seen["memory"] == "refused"
    assert seen["processor_time"] in ("SIGKILL", "SIGXCPU")


def test_a_worker_cannot_touch_metadata_priorities_or_other_processes(seen: dict[str, Any]) -> None:
    assert seen["metadata"] == dict.fromkeys(("chmod", "utime", "priority", "kill", "limits"), "refused")


def test_detection_names_every_layer_and_one_line_for_people() -> None:
    profile = detect()
    assert set(profile.layers) == set(LAYERS)
    assert profile.line.startswith(profile.name)
    assert all(profile.layers.values())


ON = dict.fromkeys(LAYERS, "on")


@pytest.mark.parametrize(
    ("off", "name"),
    [
        ((), "full"),
        (("user_ns", "net_ns", "ipc_ns", "pid_ns", "mount_ns"), "full"),  # another user id stands in
        (("user_ns", "net_ns", "other_uid"), "no-userns"),
        (("landlock",), "minimal"),
        (("seccomp",), "minimal"),
        (("no_new_privs",), "minimal"),
    ],
)
def test_the_profile_is_named_by_the_layers_that_are_on(off: tuple[str, ...], name: str) -> None:
    assert profile_of(ON | dict.fromkeys(off, "refused (EPERM)")).name == name


def test_a_missing_layer_is_named_with_its_reason() -> None:
    profile = profile_of(ON | {"landlock": "Function not implemented"})
    assert "landlock (Function not implemented)" in profile.line
    assert not profile.has("landlock")
