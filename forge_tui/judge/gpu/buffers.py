"""Device memory the judge lends to one candidate's worker: rotating input sets, output slots, workspace.

Invariants as on the CPU: red zones on both sides of every buffer, poisoned outputs and workspace, exactly the card's
strides, no stronger alignment than the card guarantees (up to 64 bytes). Memory shared by IPC can be written by the
worker, so inputs are compared with the judge's own copy, which no worker sees. Call k of a batch uses input set and
output slot (first + k) mod sets.
"""

from __future__ import annotations

from typing import Any

import torch

from forge_tui.judge.buffers import (
    POISONS,
    ZONE_PATTERN,
    Buffers,
    Place,
    Planner,
    copy_strided,
    slot_specs,
    window_bytes,
)
from forge_tui.judge.gpu.memory import DeviceArena
from forge_tui.judge.gpu.zones import Zones, fill
from forge_tui.judge.reference import written
from forge_tui.launch import ipc
from forge_tui.launch.device import Device
from forge_tui.launch.driver import DriverError
from forge_tui.records.card import TensorSpec, VariantKey
from forge_tui.records.dtype import itemsize
from forge_tui.records.plan import Plan
from forge_tui.records.problem import HarnessProblem, MachineProblem

MAX_SETS = 128
MAX_PLACES = 1024  # buffers named in one frame to the worker
CACHES = 2  # the sets together hold so many times the second-level cache
MEMORY_SHARE = 0.25  # of what is free
FULL_ALIGNMENT = 256  # where the card saw its cap of 64 or more: every CUDA allocator gives at least this


def set_count(one_set: int, l2_bytes: int, free_bytes: int, tensors: int) -> int:
    """Rotating sets: beyond the cache, inside the memory, at least two."""
    wanted = -(-CACHES * l2_bytes // max(1, one_set))
    fitting = int(free_bytes * MEMORY_SHARE) // max(1, one_set)
    return max(2, min(wanted, fitting, MAX_SETS, MAX_PLACES // max(1, tensors)))


class GpuBuffers(Buffers):
    """Stands in for `Buffers` wherever a candidate is examined or timed; overrides all of it.

    control: per set, what eager's last batch computed (see eager.GpuEager). shift: the slot that call 0 of the last
    batch's kept calls wrote.
    """

    def __init__(
        self,
        key: VariantKey,
        device: Device,
        placement: int,
        workspace_bytes: int = 0,
        workspace_alignment: int = 256,
    ) -> None:
        self.key, self.device = key, device
        self.slots = slot_specs(key)
        self.shift = 0
        self.control_results: list[list[torch.Tensor]] = []
        one_set = sum(window_bytes(t) for t in (*key.tensors, *self.slots))
        free, _ = torch.cuda.mem_get_info(device.number)
        self.sets = set_count(one_set, device.l2_bytes, free, len(key.tensors) + len(self.slots))
        self.rotated_bytes = self.sets * one_set
        planner = Planner(placement)
        self.input_at = [self._input_set(planner) for _ in range(self.sets)]
        self.input_zones, input_size = planner.zones, planner.finish()
        planner = Planner(placement + 1)
        self.slot_at = [[planner.place(window_bytes(t), FULL_ALIGNMENT) for t in self.slots] for _ in range(self.sets)]
        self.slot_zones, slot_size = planner.zones, planner.finish()
        planner = Planner(placement + 2)
        self.workspace_at = planner.place(workspace_bytes, max(FULL_ALIGNMENT, workspace_alignment))
        self.work_zones, work_size = planner.zones, planner.finish()
        self._arenas: list[DeviceArena] = []
        try:
            self._in, self._copy, self._out, self._work = (
                self._arena(size) for size in (input_size, input_size, slot_size, work_size)
            )
        except MachineProblem:
            self.close()
            raise
        for arena in self._arenas:
            arena.bytes.view(torch.int16).fill_(int.from_bytes(ZONE_PATTERN, "little", signed=True))
        self._zones = {
            name: Zones(arena.bytes, zones, ZONE_PATTERN)
            for name, arena, zones in (
                ("input", self._in, self.input_zones),
                ("output", self._out, self.slot_zones),
                ("workspace", self._work, self.work_zones),
            )
        }
        torch.cuda.synchronize(device.number)

    def _arena(self, size: int) -> DeviceArena:
        made = DeviceArena(self.device, size)
        self._arenas.append(made)
        return made

    def _input_set(self, planner: Planner) -> list[Place]:
        places: list[Place] = []
        for spec in self.key.tensors:
            shared = self.key.tensors[spec.shares] if 0 <= spec.shares < len(places) else None
            if shared is not None and (shared.dims, shared.strides, shared.dtype) == (
                spec.dims,
                spec.strides,
                spec.dtype,
            ):
                places.append(places[spec.shares])
            else:
                places.append(planner.place(window_bytes(spec), alignment_given(spec)))
        return places

    def handles(self) -> dict[str, str]:
        """IPC handles of what a worker may see, in hexadecimal. Raises MachineProblem where IPC is refused."""
        arenas = {"in": self._in, "out": self._out, "work": self._work}
        try:
            return {name: ipc.export(self.device, arena.pointer).hex() for name, arena in arenas.items()}
        except DriverError as error:
            raise MachineProblem(
                f"this machine refuses to share device memory between processes ({error}); the GPU judge needs that"
            ) from None

    def input_tensors(self, index: int) -> list[torch.Tensor]:
        """The judge's view of one input set."""
        places = zip(self.input_at[index], self.key.tensors, strict=True)
        return [self._in.tensor(p.offset, p.nbytes, s) for p, s in places]

    def write_set(self, index: int, tensors: tuple[torch.Tensor, ...] | list[torch.Tensor]) -> None:
        """Copy one trial's inputs into set `index`. Raises HarnessProblem when they don't fit the card."""
        if len(tensors) != len(self.key.tensors):
            raise HarnessProblem(f"a trial has {len(tensors)} inputs, the card {len(self.key.tensors)}")
        for place, spec, value in zip(self.input_at[index], self.key.tensors, tensors, strict=True):
            if tuple(value.shape) != spec.sizes or str(value.dtype) != f"torch.{spec.dtype}":
                raise HarnessProblem(
                    f"trial input {spec.name!r} is {value.dtype} {tuple(value.shape)}, not as the card says"
                )
            for arena in (self._in, self._copy):
                copy_strided(arena.tensor(place.offset, place.nbytes, spec), value)

    def poison_slot(self, slot: int, which: int, from_set: int) -> None:
        """Poison slot and workspace with pattern `which`."""
        self.shift = 0
        for place in self.slot_at[slot]:
            fill(self._out.bytes, place.offset, place.offset + place.nbytes, POISONS[which % 2])
        at = self.workspace_at
        fill(self._work.bytes, at.offset, at.offset + at.nbytes, POISONS[which % 2])

    def poison_all(self) -> None:
        """Poison every slot, so that no result of an earlier batch is found in place."""
        for places in self.slot_at:
            for place in places:
                fill(self._out.bytes, place.offset, place.offset + place.nbytes, POISONS[0])

    def slot_tensors(self, slot: int, control: bool = False) -> list[torch.Tensor]:
        """Results of a slot, or of the kept call number `slot` of the last batch. Copy before the next call."""
        at = (slot + self.shift) % self.sets
        if control:
            return self.control_results[at]
        places = zip(self.slot_at[at], self.slots, strict=True)
        return [self._out.tensor(p.offset, p.nbytes, s) for p, s in places]

    def survived(self, slot: int, output: int, which: int) -> torch.Tensor:
        """Per element of a fresh result: True where it still holds poison `which`, byte for byte."""
        place, spec = self.slot_at[slot][output], self.slots[output]
        device = self._out.bytes.device
        if place.nbytes == 0:
            return torch.zeros(spec.sizes, dtype=torch.bool, device=device)
        # Slots lie on multiples of four bytes, so the pattern starts with its first byte.
        poison = torch.tensor(list(POISONS[which]), dtype=torch.uint8, device=device)
        got = self._out.bytes[place.offset : place.offset + place.nbytes]
        same = got == poison.repeat(-(-place.nbytes // 4))[: place.nbytes]
        return same.view(-1, itemsize(spec.dtype)).all(dim=1).as_strided(spec.sizes, spec.strides)

    def inputs_changed(self, only: int | None = None) -> bool:
        """Whether any byte of an input set (of set `only`) differs from the judge's own copy."""
        if only is None:  # gaps included: the copy has the same pattern there
            return not torch.equal(self._in.bytes.view(torch.int64), self._copy.bytes.view(torch.int64))
        for place in self.input_at[only]:
            start, stop = place.offset, place.offset + place.nbytes
            if not torch.equal(self._in.bytes[start:stop], self._copy.bytes[start:stop]):
                return True
        return False

    def broken_zone(self) -> str:
        """Where a red zone was written, or ""."""
        for name, zones in self._zones.items():
            number = zones.broken()
            if number == 0:
                return f"the memory before the first {name} buffer was written"
            if number > 0:
                return f"the memory after {name} buffer {number - 1} was written"
        return ""

    def status(self) -> tuple[int, int, int]:
        """A worker without host code of a candidate notes no signal."""
        return 0, 0, 0

    def layout(self, plan: Plan | None, prepared_bytes: int, threads: int) -> dict[str, Any]:
        """What the run worker needs to bind calls: JSON values only."""
        return {
            "inputs": [[p.offset for p in places] for places in self.input_at],
            "outputs": [[p.offset for p in places] for places in self.slot_at],
            "workspace": self.workspace_at.offset,
        }

    @property
    def fds(self) -> list[int]:
        return []

    def close(self) -> None:
        """Free everything. No view may be used afterwards."""
        self._zones = {}
        self.control_results = []
        for arena in self._arenas:
            arena.close()


def alignment_given(spec: TensorSpec) -> int:
    """What the card saw; its own allocator's where the card saw 64, the most it records."""
    return FULL_ALIGNMENT if spec.alignment >= 64 else max(itemsize(spec.dtype), spec.alignment)


def unsuited(key: VariantKey) -> str:
    """Why a card can't be judged on the device yet, or ""."""
    if key.mutates:
        return "it writes its inputs: in-place operators aren't judged on a GPU yet"
    if len(written(key)) != len(key.outputs):
        return "an output is a view of an input: such operators aren't judged on a GPU yet"
    if any(not t.device.startswith("cuda") for t in key.tensors):
        return "an input is not on the GPU"
    return ""
