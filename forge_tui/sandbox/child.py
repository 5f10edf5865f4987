"""Start, watch and end a confined child from a synchronous process; the async twin runs one to its end.

Invariants: a child starts by exec of the launcher, never by fork of the caller; its output is drained at all times and
kept up to a cap; `kill` returns when nothing that the child started is alive; descriptors are closed exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Any

from forge_tui.records.problem import HarnessProblem, MachineProblem
from forge_tui.sandbox import privileges
from forge_tui.sandbox.boot import isolated_command
from forge_tui.sandbox.confinement import Confinement
from forge_tui.sandbox.processes import descendants, end_descendants
from forge_tui.sandbox.profile import Profile, detect

OUTPUT_KEPT = 256 << 10  # bytes of stdout and of stderr each; the rest is read and dropped
START_LIMIT_S = 20.0
KILL_LIMIT_S = 5.0
ADDRESS_SLACK = 4096 << 20  # shared mappings, stacks and libraries beside private memory


@dataclass(frozen=True)
class Ended:
    """How the target ended. code: exit code, None after a signal. signal: its name, "" after an exit.

    cpu_s, peak_bytes: of the target and the children it waited for; None when the kernel's report was lost.
    """

    code: int | None
    signal: str
    wall_s: float
    cpu_s: float | None = None
    peak_bytes: int | None = None

    @property
    def line(self) -> str:
        return f"signal {self.signal}" if self.signal else f"exit code {self.code}"


@dataclass(frozen=True)
class Finished:
    """A child that ran to its end or its limit. timed_out: it was killed at the wall limit."""

    ended: Ended
    stdout: str
    stderr: str
    timed_out: bool
    layers: dict[str, str]


class ConfinedProcess:
    """A running confined child; made by `spawn`. Use it from one thread at a time.

    pid: the launcher's process id. channel: our end of a stream socket whose other end the child finds in FORGE_FD,
    or None. layers: what is in force for this very child, name -> "on" or the reason.
    """

    def __init__(
        self, popen: subprocess.Popen[bytes], control: int, status: int, channel: socket.socket | None
    ) -> None:
        self.pid = popen.pid
        self.channel = channel
        self.layers: dict[str, str] = {}
        self._popen = popen
        self._control = control
        self._control_lock = threading.Lock()
        self._started_at = time.monotonic()
        self._started = threading.Event()
        self._error = ""
        self._child = 0
        self._report: dict[str, Any] | None = None
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._ended: Ended | None = None
        self._drain = threading.Thread(target=self._watch, args=(status,), name="sandbox output", daemon=True)
        self._drain.start()

    @property
    def stdout(self) -> str:
        """What the child printed, control bytes stripped: untrusted text."""
        return printable(bytes(self._kept["stdout"]))

    @property
    def stderr(self) -> str:
        return printable(bytes(self._kept["stderr"]))

    @property
    def alive(self) -> bool:
        return self._ended is None and self._popen.poll() is None

    @property
    def target_pid(self) -> int | None:
        """Process id of the target as the caller sees it, or None when it is gone or can't be told."""
        if not self._child:
            return None
        if self.layers.get("pid_ns") != "on":
            return self._child
        below = descendants(self._child)
        return min(below) if below else None

    def wait(self, timeout: float | None = None) -> Ended | None:
        """How the child ended, or None when it still runs after `timeout` seconds."""
        if self._ended is None:
            try:
                self._popen.wait(timeout)
            except subprocess.TimeoutExpired:
                return None
            self._drain.join(KILL_LIMIT_S)
            self._ended = self._ending()
            self._close()
        return self._ended

    def kill(self) -> Ended:
        """End the child and everything it started, and wait for that. Safe to call at any time, more than once.

        Raises HarnessProblem when something refuses to go.
        """
        if self._ended is None:
            self._close_control()  # the launcher kills what it keeps, then itself
            if self.wait(KILL_LIMIT_S) is None:
                end_descendants(self.pid, time.monotonic() + KILL_LIMIT_S)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._popen.kill()
                if self.wait(KILL_LIMIT_S) is None:
                    raise HarnessProblem(f"confined process {self.pid} could not be killed")
        if self._ended is None:
            raise HarnessProblem(f"confined process {self.pid} has no ending")
        return self._ended

    def interrupt(self) -> None:
        """End the child from another thread than the one that waits for it; returns when it is gone or won't go."""
        self._close_control()
        self._drain.join(KILL_LIMIT_S)

    def await_start(self) -> None:
        """Wait until the target is being executed. Raises HarnessProblem with the launcher's reason."""
        started = self._started.wait(START_LIMIT_S)
        if not started or self._error or not self.layers:
            reason = self._error or ("it ended without a word" if started else "it gave no sign of life")
            self.kill()
            said = self.stderr.strip().splitlines()
            raise HarnessProblem(f"the sandbox could not start: {reason}" + (f" ({said[-1]})" if said else ""))

    def _watch(self, status: int) -> None:
        """Drain output and the launcher's reports until all three end."""
        text = b""
        with selectors.DefaultSelector() as selector:
            for name, fd in (("stdout", self._popen.stdout), ("stderr", self._popen.stderr)):
                if fd is not None:
                    selector.register(fd.fileno(), selectors.EVENT_READ, name)
            selector.register(status, selectors.EVENT_READ, "status")
            while selector.get_map():
                for key, _ in selector.select():
                    piece = os.read(key.fd, 65536)
                    if not piece:
                        selector.unregister(key.fd)
                        if key.data == "status":
                            self._started.set()
                    elif key.data == "status":
                        *lines, text = (text + piece).split(b"\n")
                        for line in lines:
                            self._hear(json.loads(line))
                    else:
                        kept = self._kept[key.data]
                        kept += piece[: max(0, OUTPUT_KEPT - len(kept))]
        os.close(status)

    def _hear(self, report: dict[str, Any]) -> None:
        if "ended" in report:
            self._report = self._report or report["ended"]
            return
        if "error" in report:
            self._error = str(report["error"])
        else:
            self._child = int(report["child"])
            self.layers = {str(k): str(v) for k, v in report["started"].items()}
        self._started.set()

    def _ending(self) -> Ended:
        wall = time.monotonic() - self._started_at
        if self._report is None:
            return Ended(None, "SIGKILL", wall)
        how = int(self._report["status"])
        cpu = float(self._report["user_s"]) + float(self._report["system_s"])
        peak = int(self._report["peak_kib"]) * 1024
        if os.WIFSIGNALED(how):
            return Ended(None, signal_name(os.WTERMSIG(how)), wall, cpu, peak)
        return Ended(os.WEXITSTATUS(how), "", wall, cpu, peak)

    def _close_control(self) -> None:
        with self._control_lock:
            if self._control >= 0:
                os.close(self._control)
                self._control = -1

    def _close(self) -> None:
        self._close_control()
        for stream in (self._popen.stdout, self._popen.stderr):
            if stream is not None and not self._drain.is_alive():
                stream.close()


def spawn(
    argv: list[str],
    confinement: Confinement,
    *,
    cwd: str = "/",
    channel: bool = False,
    profile: Profile | None = None,
) -> ConfinedProcess:
    """Start `argv` (first word: absolute path) under `confinement`, with the layers of `profile` (default: detected).

    channel: make a stream socket pair; ours is `.channel`, the child's number is in its FORGE_FD. The child's stdin is
    empty. Returns when all layers are in force and the target is being executed. Raises HarnessProblem when a layer of
    the profile can't be built or the target not be executed, MachineProblem when the launcher can't be started.
    """
    profile = profile or detect()
    ours, theirs = socket.socketpair() if channel else (None, None)
    control_read, control = os.pipe()
    status, status_write = os.pipe()
    passed = [*confinement.pass_fds, *([theirs.fileno()] if theirs is not None else [])]
    environment = dict(confinement.environment) | {"FORGE_PARENT": str(os.getpid())}
    if theirs is not None:
        environment["FORGE_FD"] = str(theirs.fileno())
    try:
        popen = subprocess.Popen(
            isolated_command("forge_tui.sandbox.stage1", str(control_read), str(status_write)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            pass_fds=(control_read, status_write, *passed),
            start_new_session=True,
        )
    except OSError as error:
        for fd in (control, status):
            os.close(fd)
        if ours is not None:
            ours.close()
        raise MachineProblem(f"the sandbox launcher could not be started: {error}") from None
    finally:
        os.close(control_read)
        os.close(status_write)
        if theirs is not None:
            theirs.close()
    process = ConfinedProcess(popen, control, status, ours)
    with contextlib.suppress(BrokenPipeError):
        os.write(control, _configuration(argv, confinement, cwd, environment, passed, profile))
    process.await_start()
    return process


def run(
    argv: list[str], confinement: Confinement, limit_s: float, *, cwd: str = "/", profile: Profile | None = None
) -> Finished:
    """Run a child to its end, or kill it after `limit_s` seconds. Raises as `spawn`."""
    process = spawn(argv, confinement, cwd=cwd, profile=profile)
    return _finish(process, limit_s)


async def run_async(
    argv: list[str], confinement: Confinement, limit_s: float, *, cwd: str = "/", profile: Profile | None = None
) -> Finished:
    """`run` beside an event loop. Cancelling the task kills the child and waits for its end."""
    starting = asyncio.create_task(asyncio.to_thread(spawn, argv, confinement, cwd=cwd, profile=profile))
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(HarnessProblem, MachineProblem):
            (await starting).kill()
        raise
    try:
        return await asyncio.to_thread(_finish, process, limit_s)
    except asyncio.CancelledError:
        await asyncio.to_thread(process.interrupt)
        raise


def _finish(process: ConfinedProcess, limit_s: float) -> Finished:
    ended = process.wait(limit_s)
    timed_out = ended is None
    final = ended or process.kill()
    return Finished(final, process.stdout, process.stderr, timed_out, process.layers)


def _configuration(
    argv: list[str],
    confinement: Confinement,
    cwd: str,
    environment: dict[str, str],
    passed: list[int],
    profile: Profile,
) -> bytes:
    limits = confinement.limits
    own_count = profile.has("user_ns")  # else the number counts all processes of the user
    change_user = profile.has("other_uid") and not own_count
    wanted = [name for name in ("landlock", "seccomp") if profile.has(name)]
    config = {
        "argv": argv,
        "role": confinement.role,
        "cwd": cwd,
        "environment": environment,
        "pass_fds": passed,
        "namespaces": profile.namespaces,
        "layers": wanted,
        "absent": {name: state for name, state in profile.layers.items() if state != "on"},
        "uid": privileges.OTHER_UID if change_user else 0,
        "read": confinement.read,
        "write": confinement.write,
        "devices": confinement.devices,
        "limits": [
            limits.cpu_s,
            limits.memory_bytes,
            limits.memory_bytes + ADDRESS_SLACK,
            limits.file_bytes,
            limits.open_files,
            limits.processes if own_count or change_user else max(limits.processes, 4096),
        ],
    }
    return json.dumps(config).encode() + b"\n"


def printable(raw: bytes) -> str:
    """Untrusted bytes as text: line ends and tabs stay, every other control character becomes a blank."""
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    return "".join(c if c in "\n\t" or c.isprintable() else " " for c in text)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
