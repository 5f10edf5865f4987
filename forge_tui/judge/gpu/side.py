"""The judge's handle of a run worker on a device: spawned confined, told where the memory lies, killed when it hangs.

Invariant, as on the CPU: whatever happens in the candidate's launches becomes a `Rejected` with a kind and a check.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from forge_tui.judge.gpu.buffers import GpuBuffers
from forge_tui.judge.sides import Rejected, RunSide
from forge_tui.judge.wire import Channel, Reply
from forge_tui.records.boot import boot_command
from forge_tui.records.codec import to_json
from forge_tui.records.plan import Plan
from forge_tui.records.problem import REJECTION_KINDS, HarnessProblem
from forge_tui.sandbox.child import spawn
from forge_tui.sandbox.confinement import Limits, run_confinement
from forge_tui.sandbox.profile import Profile

MEMORY_BYTES = 32 << 30  # address space that the driver reserves at its start
PASSED_ON = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
# What the driver reads about itself and the bus when it starts.
DRIVER_READS = (
    "/proc/driver",
    "/proc/devices",
    "/proc/modules",
    "/sys/bus",
    "/sys/devices",
    "/sys/module",
    "/sys/class",
)


def device_nodes() -> tuple[str, ...]:
    """NVIDIA's device files on this machine."""
    found = [*Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("*")]
    return tuple(sorted(str(p) for p in found if not p.is_dir()))


def driver_folders() -> tuple[str, ...]:
    """Folders that this process has NVIDIA's driver libraries loaded from."""
    folders = set()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.split(None, 5)[5:]
        if path and "/libcuda.so" in path[0]:
            folders.add(str(Path(path[0]).parent))
    return tuple(sorted(folders))


class GpuRunSide(RunSide):
    """One confined run worker with one candidate on one device."""

    def __init__(self, buffers: GpuBuffers, profile: Profile, python: str, limit_s: float) -> None:
        super().__init__(buffers, profile, python, 1, limit_s)
        self.lent = buffers
        self.target = ""
        self.functions: dict[str, str] = {}

    def begin(self, binary: Path, plan: Plan) -> None:
        """Spawn, attach the memory, lock down, probe. The candidate is not loaded yet. Raises HarnessProblem."""
        self._binary, self._plan = binary, plan
        limits = Limits(cpu_s=int(self.limit_s) + 60, memory_bytes=MEMORY_BYTES, open_files=1024)
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        reads = (str(binary), *driver_folders(), *(p for p in DRIVER_READS if Path(p).exists()))
        confinement = run_confinement(reads, python=self._python, limits=limits, environment=environment)
        confinement = replace(confinement, devices=device_nodes())
        command = boot_command(self._python, "forge_tui.judge.gpu.worker", flags=("-I", "-S"))
        self._process = spawn(command, confinement, channel=True, profile=self.profile)
        if self._process.channel is None:
            raise HarnessProblem("the sandbox gave no channel to the run worker")
        self._channel = Channel(self._process.channel)
        message = {
            "do": "map", "device": self.lent.device.number, "key": to_json(self.lent.key),
            "layout": self.lent.layout(plan, 0, 1), "handles": self.lent.handles(),
        }  # fmt: skip
        self.target = str((self._prepare(message, None).facts or {}).get("target", ""))
        facts = self._prepare({"do": "confine"}, None).facts
        self.canaries = {str(k): str(v) for k, v in (facts or {}).items()}

    def load(self) -> None:
        """Load the binary and check the plan against it. Raises Rejected."""
        message = {"do": "load", "path": str(self._binary), "plan": to_json(self._plan)}
        facts = self._ask(message, "load").facts
        self.functions = {str(k): str(v) for k, v in (facts or {}).items()}

    def once(self, from_set: int, slot: int) -> int:
        """One call into the judge's slot; 0, since a failure is raised."""
        torch.cuda.synchronize(self.lent.device.number)
        return super().once(from_set, slot)

    def run(self, n: int, first: int, keep: tuple[int, int]) -> tuple[int, int]:
        """n calls (whole rotations) into poisoned slots; (claimed ns, outside ns). Raises Rejected."""
        if n % self.lent.sets:
            raise HarnessProblem(f"a batch of {n} calls is not made of rotations over {self.lent.sets} sets")
        self.lent.poison_all()
        torch.cuda.synchronize(self.lent.device.number)
        reply, outside = self._exchange({"do": "batch", "n": n}, "launch")
        self.lent.shift = (first + keep[0]) % self.lent.sets
        return reply.ns, outside

    def _exchange(self, message: dict[str, Any], check: str) -> tuple[Reply, int]:
        reply, outside = super()._exchange(message, check)
        if reply.status == "ok":
            return reply, outside
        self.kill()
        if reply.status != "fault":
            raise Rejected("protocol", "protocol", f"the worker answered {reply.status!r}")
        kind = str((reply.facts or {}).get("kind", ""))
        kind = kind if kind in REJECTION_KINDS else "launch error"
        raise Rejected(kind, "plan" if kind == "bad plan" else check, reply.line)

    def _fault(self, name: str, address: int, check: str, said: str) -> Rejected:
        return Rejected("crash", check, f"the driver crashed with {name} on this binary or launch", said)
