"""Program: try every layer, each in a forked process of its own, and print what happened as one JSON object.

Run by `profile.detect`. A layer is "on" or the reason why not; Landlock's ABI stands beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

from forge_tui.sandbox import landlock, privileges, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def attempt(action: Callable[[], None]) -> str:
    """Run `action` in a forked child: "on" when it returns, else its error, a signal's name, or silence."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            action()
            os.write(writer, b"on")
        except OSError as error:
            os.write(writer, str(error.strerror or error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    how = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(how):
        return f"ended by {signal.Signals(os.WTERMSIG(how)).name}"
    return said or "no answer"


def expect_refusal(action: Callable[[], object], what: str) -> None:
    """A layer that lets `what` pass is not on."""
    try:
        action()
    except OSError:
        return
    raise OSError(0, f"{what} was not refused")


def rlimits() -> None:
    privileges.limit_resources(10, 1 << 32, 1 << 33, 4096, 64, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    expect_refusal(lambda: os.ftruncate(os.memfd_create("trial"), 1 << 20), "a file over the limit")


def user_namespace() -> None:
    privileges.unshare(["user"])


def namespace(kind: str) -> Callable[[], None]:
    return lambda: privileges.unshare(["user", kind])


def pid_namespace() -> None:
    privileges.unshare(["user", "pid"])
    _in_child(lambda: None if os.getpid() == 1 else _fail("the child is not process 1"))


def mount_namespace() -> None:
    privileges.unshare(["user", "pid"])

    def own_proc() -> None:
        privileges.unshare(["mount"])
        privileges.mount_own_proc()
        if os.readlink("/proc/self") != "1":
            _fail("/proc still shows other processes")

    _in_child(own_proc)


def try_landlock() -> None:
    privileges.no_new_privileges()
    landlock.restrict([("/dev/null", landlock.READ)])
    expect_refusal(lambda: os.listdir("/"), "a folder outside")


def try_seccomp() -> None:
    reason = seccomp.supported()
    if reason:
        _fail(reason)
    privileges.no_new_privileges()
    seccomp.launcher_filter("run", os.getpid())
    expect_refusal(os.fork, "fork")


def capabilities() -> None:
    privileges.drop_capabilities()
    if os.geteuid() == 0:
        expect_refusal(lambda: os.setgroups([1]), "a privileged call")


def other_uid() -> None:
    if os.geteuid() != 0:
        _fail("only root can")
    privileges.become(privileges.OTHER_UID)
    if not os.access(sys.executable, os.X_OK):
        _fail("this interpreter can't be executed by another user")


def death_signal() -> None:
    privileges.die_with_parent(os.getppid())


def pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _in_child(action: Callable[[], None]) -> None:
    said = attempt(action)
    if said != "on":
        _fail(said)


def _fail(reason: str) -> None:
    raise OSError(0, reason)


def main() -> None:
    """Print the report."""
    report = {
        "rlimits": attempt(rlimits),
        "no_new_privs": attempt(privileges.no_new_privileges),
        "user_ns": attempt(user_namespace),
        "net_ns": attempt(namespace("net")),
        "ipc_ns": attempt(namespace("ipc")),
        "pid_ns": attempt(pid_namespace),
        "mount_ns": attempt(mount_namespace),
        "landlock": attempt(try_landlock),
        "seccomp": attempt(try_seccomp),
        "capabilities": attempt(capabilities),
        "other_uid": attempt(other_uid),
        "pdeathsig": attempt(death_signal),
        "subreaper": attempt(privileges.adopt_orphans),
        "pidfd": attempt(pidfd),
    }
    with contextlib.suppress(OSError):
        report["landlock_abi"] = str(landlock.abi())
    print(json.dumps(report))
