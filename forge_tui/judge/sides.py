"""The judge's handles of its two kinds of workers: the hostile run worker and the trusted eager worker.

Invariants: whatever a run worker does (crash, hang, lie, exit early, answer twice) becomes a `Rejected` with a kind
and a check; whatever an eager worker does is the harness's problem. Both kinds get the same allocator and OpenMP
settings, so neither side owns an advantage. A killed worker leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_tui.judge.buffers import Buffers
from forge_tui.judge.wire import Channel, ProtocolBroken, Reply, WorkerGone, WorkerSilent
from forge_tui.records.boot import boot_command
from forge_tui.records.card import VariantKey
from forge_tui.records.codec import to_json
from forge_tui.records.frames import TRUSTED_LIMIT
from forge_tui.records.problem import HarnessProblem, MachineProblem
from forge_tui.sandbox import probe
from forge_tui.sandbox.child import ConfinedProcess, Ended, spawn
from forge_tui.sandbox.confinement import Limits, run_confinement
from forge_tui.sandbox.profile import Profile

# glibc's own steady state after a 32 MiB block was freed once (its dynamic maximum), fixed on both sides so that a
# worker's history does not decide whether a call pays page faults. 10000 spins are about 0.7 ms (SETTLE_S is longer).
ALLOCATION = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "GOMP_SPINCOUNT": "10000",
}
EAGER_START_S = 150.0  # importing torch and, the first time, building the native loop
MAP_S = 30.0
PASSED_ON = (
    "PATH",
    "LANG",
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "XDG_CACHE_HOME",
    "CXX",
)
MEMORY_BYTES = 6 << 30


@dataclass
class Rejected(Exception):
    """The candidate failed. kind: one of REJECTION_KINDS. check: the check that says so. stage: last one reached."""

    kind: str
    check: str
    line: str
    detail: str = ""
    stage: str = "compiled"

    def __str__(self) -> str:
        return self.line


class EagerSide:
    """One trusted worker; serves one card at a time and is kept for the session."""

    def __init__(self, cache: Path, threads: int) -> None:
        ours, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= ALLOCATION | {"OMP_NUM_THREADS": str(threads), "FORGE_FD": str(theirs.fileno())}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
        try:
            self._process = subprocess.Popen(
                boot_command(sys.executable, "forge_tui.judge.eager_worker", str(cache)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            raise MachineProblem(f"the eager worker could not be started: {error}") from None
        finally:
            theirs.close()
        self._channel = Channel(ours, TRUSTED_LIMIT)
        self.method = ""
        self.limit_s = 60.0

    def hello(self) -> str:
        """The loop it will use, or why it is only a Python loop; waits for the build."""
        return self._ask({"do": "hello"}, EAGER_START_S).line

    def open(self, key: VariantKey, buffers: Buffers, threads: int, mode: str = "native") -> str:
        """Map a card's buffers; returns the loop's name for the record. mode: "native", "python" or "compile"."""
        layout = buffers.layout(None, 0, threads)
        message = {"do": "map", "key": to_json(key), "layout": layout, "mode": mode}
        self.method = self._ask(message, EAGER_START_S, buffers.control_fds).line
        return self.method

    def run(self, n: int, first: int, keep: tuple[int, int]) -> tuple[int, int]:
        """n calls; (claimed ns, outside ns). Raises HarnessProblem."""
        message = {"do": "batch", "n": n, "first": first, "keep_from": keep[0], "keep_to": keep[1]}
        reply, outside = self._timed(message, self.limit_s, None)
        return reply.ns, outside

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _ask(self, message: dict[str, Any], limit_s: float, fds: list[int] | None = None) -> Reply:
        return self._timed(message, limit_s, fds)[0]

    def _timed(self, message: dict[str, Any], limit_s: float, fds: list[int] | None) -> tuple[Reply, int]:
        try:
            reply, outside = self._channel.ask(message, limit_s, fds)
        except (ProtocolBroken, WorkerGone, WorkerSilent) as error:
            self.kill()
            raise HarnessProblem(f"the eager worker failed at {message['do']!r}: {error}") from None
        if reply.status != "ok":
            raise HarnessProblem(f"eager can't be timed: {reply.line}")
        return reply, outside

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()


class RunSide:
    """One sandboxed run worker with one candidate."""

    def __init__(self, buffers: Buffers, profile: Profile, python: str, threads: int, limit_s: float) -> None:
        self.buffers = buffers
        self.profile = profile
        self.threads = threads
        self.limit_s = limit_s
        self.canaries: dict[str, str] = {}
        self.prepare_ns = 0
        self._binary = Path()
        self._python = python
        self._bases: dict[str, int] = {}
        self._process: ConfinedProcess | None = None
        self._channel: Channel | None = None
        self.ended: Ended | None = None

    def start(self, plumbing: Path, binary: Path, layout: dict[str, Any], extra: dict[str, Any]) -> None:
        """Spawn, map the buffers, lock down and probe; the candidate is not loaded yet.

        extra: {"warm": OpenMP libraries, "strict": bool, "read": more paths}. Raises HarnessProblem.
        """
        self._binary = binary
        limits = Limits(cpu_s=int(self.limit_s * self.threads) + 30, memory_bytes=MEMORY_BYTES)
        confinement = run_confinement(
            (str(binary), str(plumbing), *extra.get("read", ())),
            python=self._python,
            limits=limits,
            environment=ALLOCATION,
            threads=self.threads,
        )
        command = boot_command(self._python, "forge_tui.judge.worker", flags=("-I", "-S"))
        self._process = spawn(command, confinement, channel=True, profile=self.profile)
        if self._process.channel is None:
            raise HarnessProblem("the sandbox gave no channel to the run worker")
        self._channel = Channel(self._process.channel)
        message = {"do": "map", "layout": layout, "plumbing": str(plumbing), "warm": ["", *extra.get("warm", ())]}
        self._bases = {k: int(v) for k, v in (self._prepare(message, self.buffers.fds).facts or {}).items()}
        facts = self._prepare({"do": "confine", "strict": extra.get("strict", True)}, None).facts
        self.canaries = {str(k): str(v) for k, v in (facts or {}).items()}

    def _prepare(self, message: dict[str, Any], fds: list[int] | None) -> Reply:
        """A request from before the candidate is loaded: only our own code can fail it."""
        if self._channel is None:
            raise HarnessProblem("the run worker was not started")
        try:
            reply, _ = self._channel.ask(message, MAP_S, fds)
        except (ProtocolBroken, WorkerGone, WorkerSilent) as error:
            self.kill()
            said = self._said()
            raise HarnessProblem(f"the run worker did not start: {error}" + (f" ({said})" if said else "")) from None
        if reply.status != "ok":
            raise HarnessProblem(f"the run worker failed at {message['do']!r}: {reply.line}")
        return reply

    def load(self) -> None:
        """Load the candidate into the confined worker. Raises Rejected (load error, crash in a constructor)."""
        reply = self._ask({"do": "load", "path": str(self._binary)}, "load")
        if reply.status != "ok":
            raise Rejected("load error", "load", f"the binary does not load: {reply.line}")

    @property
    def allowed(self) -> list[str]:
        """Canaries that got through: what this worker's sandbox does not refuse."""
        return probe.allowed(self.canaries)

    def once(self, from_set: int, slot: int) -> int:
        """One call into the judge's slot; what forge_launch returned."""
        return self._ask({"do": "once", "set": from_set, "slot": slot}, "launch").code

    def run(self, n: int, first: int, keep: tuple[int, int]) -> tuple[int, int]:
        """n calls with fresh memory each; (claimed ns, outside ns). Raises Rejected."""
        message = {"do": "batch", "n": n, "first": first, "keep_from": keep[0], "keep_to": keep[1]}
        reply, outside = self._exchange(message, "launch")
        if reply.code:
            raise launch_failure(reply.code, "timed")
        self.prepare_ns = reply.prepare_ns
        return reply.ns, outside

    def check_quiet(self) -> None:
        """Raises Rejected when bytes wait that nobody asked for."""
        if self._channel is not None and self._channel.stray():
            raise Rejected("protocol", "protocol", "the worker sent bytes that nobody asked for")

    def _ask(self, message: dict[str, Any], check: str) -> Reply:
        return self._exchange(message, check)[0]

    def _exchange(self, message: dict[str, Any], check: str) -> tuple[Reply, int]:
        if self._channel is None:
            raise HarnessProblem("the run worker was not started")
        try:
            reply, outside = self._channel.ask(message, self.limit_s)
        except ProtocolBroken as error:
            self.kill()
            raise Rejected("protocol", "protocol", f"the worker broke the protocol: {error}", self._said()) from None
        except WorkerSilent:
            self.kill()
            raise Rejected("timeout", check, f"no answer within {self.limit_s:.0f} s; the worker was killed") from None
        except WorkerGone:
            raise self._death(check) from None
        if reply.status == "no memory":
            raise Rejected("resource limit", check, "no memory left for the outputs of one call")
        if reply.status == "failed":
            raise HarnessProblem(f"the run worker failed: {reply.line}")
        return reply, outside

    def _death(self, check: str) -> Rejected:
        """Why the worker ended. The signal's address is a claim: it only chooses the words of a rejection."""
        if self._process is None:
            return Rejected("crash", check, "the worker ended")
        # Closing its socket does not end a process: one that lives on without us is killed.
        ended = self._process.wait(0.5) or self._process.kill()
        self.ended = ended
        said = self._said()
        number, address, _ = self.buffers.status()
        if ended.signal in ("SIGSEGV", "SIGBUS"):
            return self._fault(ended.signal, address if number else 0, check, said)
        if ended.signal == "SIGSYS":
            return Rejected("sandbox", "sandbox", "it tried a system call that the sandbox forbids (SIGSYS)", said)
        if ended.signal == "SIGXCPU":
            return Rejected("timeout", check, "it used more processor time than allowed", said)
        if "bad_alloc" in said or "emory" in said:
            return Rejected("resource limit", check, "it ran out of the memory it is allowed", said)
        if "Thread creation failed" in said or "not permitted" in said or "temporarily unavailable" in said:
            line = "it tried to start a thread or process that the sandbox forbids"
            return Rejected("sandbox", "sandbox", line, said)
        if ended.signal == "SIGKILL":
            return Rejected(
                "resource limit", check, "the worker was killed from outside, most likely for its memory", said
            )
        if ended.signal:
            return Rejected("crash", check, f"it crashed with {ended.signal}", said)
        return Rejected("protocol", "protocol", f"the worker ended early with exit code {ended.code}", said)

    def _fault(self, name: str, address: int, check: str, said: str) -> Rejected:
        base = self._bases.get("in", 0)
        inside = address - base if base else -1
        if 0 <= inside < self.buffers.inputs.size:
            zone = any(start <= inside < stop for start, stop in self.buffers.input_zones)
            if zone:
                return Rejected("out of bounds", "guard", "it wrote outside a buffer, next to an input", said)
            return Rejected("changed its inputs", "hash", "it wrote into an input it must only read", said)
        return Rejected("crash", check, f"it crashed with {name} (illegal memory access)", said)

    def _said(self) -> str:
        return self._process.stderr[-2000:] if self._process is not None else ""

    def kill(self) -> None:
        """End the worker with everything it started. Raises HarnessProblem when something won't go."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self.ended = self._process.kill()


def launch_failure(code: int, stage: str = "compiled") -> Rejected:
    """What a non-zero return of forge_launch means."""
    if code > 0:
        return Rejected(
            "declined", "launch", f"forge_launch declined the card's own inputs (returned {code})", stage=stage
        )
    return Rejected("launch error", "launch", f"forge_launch returned {code}", stage=stage)
