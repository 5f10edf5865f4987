"""The launcher: `boot.isolated_command("forge_tui.sandbox.stage1", CONTROL, STATUS)`, both inherited descriptors.

It reads one JSON line from CONTROL, builds the layers it is told to build, executes the target, and stays as its keeper.
Invariants: single-threaded throughout; a layer that was asked for and fails means no target at all; when CONTROL
reaches its end (the caller closed it or died) everything below is killed; what it says goes to STATUS as JSON lines:
{"started": {...layers}, "init": pid} or {"error": line}, then {"ended": {...}} once.

keeper (outside) -> init of the pid namespace (reaps, dies with the keeper) -> target. Without a pid namespace the keeper
is the subreaper and parent of the target.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time

from forge_tui.sandbox import landlock, privileges, seccomp
from forge_tui.sandbox.processes import end_descendants

TYPE_CHECKING = False
if TYPE_CHECKING:  # the typing module alone would cost a fifth of the launcher's start
    from collections.abc import Callable
    from resource import struct_rusage
    from typing import Any, NoReturn

    Config = dict[str, Any]

CONFIG_LIMIT = 1 << 20


def main() -> None:
    """Entry point."""
    control, status = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    config = json.loads(_read_line(control))
    layers: dict[str, str] = dict(config["absent"])
    namespaces = list(config["namespaces"])
    try:
        if namespaces:
            privileges.unshare([n for n in namespaces if n != "mount"])
            layers.update({f"{name}_ns": "on" for name in namespaces})
        else:
            privileges.adopt_orphans()
            layers["subreaper"] = "on"
        ready, told = os.pipe()
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            os.close(control)
            os.close(ready)
            if "pid" in namespaces:
                _run_or_explain(told, lambda: _init(config, layers, status, told))
            _run_or_explain(told, lambda: _target(config, layers, keeper, told))
        os.close(told)
        _go_quiet(config)
        privileges.hide_memory()
        _announce(status, ready, child, watched=control)
        _keep(child, control, status, own_namespace="pid" in namespaces)
    except OSError as error:
        _say(status, {"error": str(error)})
        sys.exit(125)


def _run_or_explain(told: int, action: Callable[[], None]) -> NoReturn:
    """Body of a forked child: it must end here, and the keeper must learn why."""
    try:
        action()
    except (OSError, ValueError, KeyError, TypeError) as error:
        with contextlib.suppress(OSError):
            os.write(told, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
    finally:
        os._exit(125)


def _init(config: Config, layers: dict[str, str], status: int, told: int) -> None:
    """Process 1 of the namespace: starts the target, reaps what ends, reports how the target ended, takes all along."""
    privileges.die_with_parent(0)  # the keeper is outside, so its number here is 0
    if "mount" in config["namespaces"]:
        privileges.unshare(["mount"])
        privileges.mount_own_proc()
    target = os.fork()
    if target == 0:
        _run_or_explain(told, lambda: _target(config, layers, 1, told))
    os.close(told)
    _go_quiet(config)
    privileges.hide_memory()
    while True:
        pid, how, usage = os.wait4(-1, 0)
        if pid == target:
            _say(status, {"ended": _ending(how, usage)})
            os._exit(0)


def _target(config: Config, layers: dict[str, str], parent: int, told: int) -> None:
    """Apply the layers in the one order that works, then become the target. Raises OSError when a layer fails."""
    os.chdir(str(config["cwd"]))
    wanted = config["layers"]
    limits = config["limits"]
    uid = int(config["uid"])
    if uid:
        _change_user(uid, config, layers)
    privileges.drop_capabilities()
    layers["capabilities"] = "on"
    privileges.die_with_parent(parent)
    layers["pdeathsig"] = "on"
    privileges.limit_resources(*limits)
    layers["rlimits"] = "on"
    privileges.no_new_privileges()
    layers["no_new_privs"] = "on"
    if "landlock" in wanted:
        rules = [(path, landlock.READ) for path in config["read"]]
        rules += [(path, landlock.WRITE) for path in config["write"]]
        rules += [(path, landlock.DEVICE) for path in ("/dev/null", *config["devices"])]
        rules.append(("/proc/self/task", landlock.WRITE))  # CUDA's start-up names its threads there
        landlock.restrict(rules)
        layers["landlock"] = "on"
    if "seccomp" in wanted:
        seccomp.launcher_filter(str(config["role"]), os.getpid())
        layers["seccomp"] = "on"
    os.write(told, json.dumps({"layers": layers}).encode() + b"\n")
    argv = [str(a) for a in config["argv"]]
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve(argv[0], argv, dict(config["environment"]))


def _change_user(uid: int, config: Config, layers: dict[str, str]) -> None:
    """Root without user namespaces: take another id if it can still reach all that the target needs."""
    for path in config["write"]:
        os.chown(path, uid, uid)
    probe = os.fork()
    if probe == 0:
        privileges.become(uid)
        needed = [config["argv"][0], *config["read"], *config["write"]]
        reachable = all(os.access(p, os.R_OK) for p in needed if os.path.lexists(p))
        os._exit(0 if reachable and os.access(needed[0], os.X_OK) else 1)
    if os.waitpid(probe, 0)[1] != 0:
        layers["other_uid"] = "the interpreter or a needed file can't be reached by another user"
        return
    privileges.become(uid)
    layers["other_uid"] = "on"


def _announce(status: int, ready: int, child: int, watched: int) -> None:
    """Pass on what the target said before it was executed: its layers, or the error that stopped it."""
    told = b""
    while True:
        for fd in select.select([ready, watched], [], [])[0]:
            if fd == watched:  # the caller is gone already
                os.kill(child, signal.SIGKILL)
            else:
                piece = os.read(ready, 65536)
                told += piece
                if not piece:
                    os.close(ready)
                    lines = [json.loads(line) for line in told.splitlines()]
                    errors = [line["error"] for line in lines if "error" in line]
                    if errors or not lines:
                        _say(status, {"error": errors[0] if errors else "the launcher's child ended without a word"})
                    else:
                        _say(status, {"started": lines[0]["layers"], "child": child})
                    return


def _keep(child: int, control: int, status: int, own_namespace: bool) -> None:
    """Wait for the child or for the end of CONTROL; leave nothing behind."""
    handle = os.pidfd_open(child)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.register(control, select.POLLIN | select.POLLHUP)
    ended = False
    while not ended:
        for fd, _ in poller.poll():
            if fd == handle:
                ended = True
            elif not os.read(control, 4096):
                poller.unregister(control)
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    _, how, usage = os.wait4(child, 0)
    if not own_namespace:
        _say(status, {"ended": _ending(how, usage)})
        end_descendants(os.getpid(), time.monotonic() + 3.0)
    elif how != 0:
        _say(status, {"ended": _ending(how, usage)})  # init was killed: what it watched over died with it
    os._exit(0)


def _ending(how: int, usage: struct_rusage) -> dict[str, float | int]:
    return {"status": how, "user_s": usage.ru_utime, "system_s": usage.ru_stime, "peak_kib": usage.ru_maxrss}


def _go_quiet(config: Config) -> None:
    """Give up the target's pipes and descriptors, so that their end means the target's end."""
    for fd in config["pass_fds"]:
        os.close(fd)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _say(status: int, message: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(status, json.dumps(message).encode() + b"\n")


def _read_line(fd: int) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(fd, 65536)
        if not piece or len(text) > CONFIG_LIMIT:
            sys.exit(125)
        text += piece
    return text
