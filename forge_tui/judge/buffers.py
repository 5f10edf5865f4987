"""Memory the judge owns and lends to workers: input sets, output slots, workspace, all in sealed memfds.

Invariants:
- Inputs lie in a memfd sealed FUTURE_WRITE|SHRINK|GROW after the judge mapped it: the judge can write new contents,
  no worker can. Outputs, written inputs and workspace lie in memfds sealed SHRINK|GROW.
- Every buffer has red zones on both sides, filled with a pattern that reads as NaN in every float type and is
  compared byte by byte afterwards.
- A buffer starts exactly at the alignment its card guarantees, never at twice that, so that a kernel which assumes
  more fails here and not in the user's model. Its window has exactly the card's strides.
- Slot buffers are poisoned before every checked call with one of two patterns.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
from dataclasses import dataclass
from typing import Any

import torch

from forge_tui.judge.plumbing import MAX_INPUTS, MAX_OUTPUTS, STATUS_BYTES
from forge_tui.judge.reference import written
from forge_tui.records.card import TensorSpec, VariantKey
from forge_tui.records.dtype import itemsize
from forge_tui.records.plan import Plan
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError

F_ADD_SEALS = 1033
SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 2, 4, 16
PAGE = 4096
RED_ZONE = 4096  # bytes; an eighth of the buffer, up to 64 KiB, when that is more
# 0xFFC5 in both halves is a NaN in f16, bf16, f32 and f64 and a large negative number in every signed integer.
ZONE_PATTERN = b"\xc5\xff"
# Outputs and workspace: once as NaN, once as a finite number near 0.35 (f32 0x3eb53e9d; f16 and bf16 finite too), small
# enough that adding to it shows. No byte is the same in both.
POISONS = (b"\xed\xff\xed\xff", b"\x9d\x3e\xb5\x3e")
SET_BUDGET = 48 << 20  # bytes of inputs over all rotating sets; past the L2 of the CPUs this was measured on
MAX_SETS = 8


@dataclass(frozen=True)
class Place:
    """One buffer in an arena: byte offset of its first element and the bytes of its window."""

    offset: int
    nbytes: int


class Arena:
    """One memfd with the judge's mapping. Raises MachineProblem when the machine has no memory for it."""

    def __init__(self, name: str, size: int) -> None:
        self.size = (max(size, PAGE) + PAGE - 1) // PAGE * PAGE
        try:
            self.fd = os.memfd_create(f"forge-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, self.size)
            self.map = mmap.mmap(self.fd, self.size)
        except (OSError, AttributeError) as error:
            raise MachineProblem(f"no memory for a {self.size >> 20} MiB test buffer: {error}") from None
        self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)

    def seal(self, read_only: bool) -> bool:
        """Seal the size, and with read_only every later write mapping. False when the kernel can't."""
        seals = SEAL_SHRINK | SEAL_GROW | (SEAL_FUTURE_WRITE if read_only else 0)
        try:
            fcntl.fcntl(self.fd, F_ADD_SEALS, seals)
        except OSError:
            return False
        return True

    def fill(self, start: int, stop: int, pattern: bytes) -> None:
        """Fill bytes [start, stop) with `pattern`, whose phase is fixed to the arena's start."""
        self.map[start:stop] = _pattern(pattern, start, stop)

    def intact(self, start: int, stop: int, pattern: bytes) -> bool:
        # Slices of a map compare by memcmp on this thread: no OpenMP team wakes up for a few kilobytes.
        return self.map[start:stop] == _pattern(pattern, start, stop)

    def tensor(self, place: Place, spec: TensorSpec) -> torch.Tensor:
        """The tensor at `place`, with the card's strides, on the judge's own mapping."""
        dtype = getattr(torch, spec.dtype)
        if place.nbytes == 0:
            return torch.empty(spec.sizes, dtype=dtype)
        window = self.bytes[place.offset : place.offset + place.nbytes].view(dtype)
        return window.as_strided(spec.sizes, spec.strides)

    def close(self) -> None:
        """Give the memory back once no tensor looks at it any more."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _pattern(pattern: bytes, start: int, stop: int) -> bytes:
    step = len(pattern)
    phase = start % step
    return (pattern * ((stop - start + phase) // step + 1))[phase : phase + stop - start]


class Planner:
    """Places buffers one after the other with red zones between them. placement: seed of the odd multiples used."""

    def __init__(self, placement: int) -> None:
        self.random = random.Random(placement)
        self.cursor = 0
        self.zones: list[tuple[int, int]] = []

    def place(self, nbytes: int, alignment: int) -> Place:
        start = self.cursor
        gap = max(RED_ZONE, min(nbytes // 8, 64 << 10))
        first = start + gap
        step = 2 * alignment
        offset = (first + step - 1) // step * step + alignment + step * self.random.randrange(8)
        self.zones.append((start, offset))
        self.cursor = offset + nbytes
        return Place(offset, nbytes)

    def finish(self) -> int:
        """Close with a last red zone; returns the arena's size."""
        end = (self.cursor + RED_ZONE + PAGE - 1) // PAGE * PAGE
        self.zones.append((self.cursor, end))
        return end


def slot_specs(key: VariantKey) -> tuple[TensorSpec, ...]:
    """What a slot holds: results that need memory of their own, then the inputs the operator writes."""
    return tuple(key.outputs[i] for i in written(key)) + tuple(key.tensors[i] for i in key.mutates)


def window_bytes(spec: TensorSpec) -> int:
    return spec.window * itemsize(spec.dtype)


class Buffers:
    """All memory of one candidate's run.

    placement: seed; another value gives another layout. workspace_bytes and prepared are the candidate's plan.
    """

    def __init__(
        self, key: VariantKey, placement: int, workspace_bytes: int = 0, workspace_alignment: int = 256
    ) -> None:
        if len(key.tensors) > MAX_INPUTS or len(slot_specs(key)) > MAX_OUTPUTS:
            raise UserInputError(f"the card has more than {MAX_INPUTS} inputs or {MAX_OUTPUTS} outputs")
        self.key = key
        self.slots = slot_specs(key)
        one_set = sum(window_bytes(t) for t in key.tensors) + sum(window_bytes(t) for t in self.slots)
        self.sets = max(2, min(MAX_SETS, SET_BUDGET // max(1, one_set)))
        planner = Planner(placement)
        self.input_at = [self._place_set(planner) for _ in range(self.sets)]
        self.inputs = Arena("inputs", planner.finish())
        self.input_zones = planner.zones
        planner = Planner(placement + 1)
        self.slot_at = [
            [planner.place(window_bytes(t), _guaranteed(t, k >= len(written(key)))) for k, t in enumerate(self.slots)]
            for _ in range(self.sets)
        ]
        self.outputs = Arena("outputs", planner.finish())
        # Eager's kept results go to a twin of the slots that no candidate maps: it must not find answers there.
        self.control = Arena("control", self.outputs.size)
        self.slot_zones = planner.zones
        planner = Planner(placement + 2)
        self.workspace_at = planner.place(workspace_bytes, max(64, workspace_alignment))
        self.status_at = planner.place(STATUS_BYTES, 64)
        self.work = Arena("workspace", planner.finish())
        self.work_zones = planner.zones
        self.inputs.fill(0, self.inputs.size, ZONE_PATTERN)
        for zones, arena in ((self.slot_zones, self.outputs), (self.work_zones, self.work)):
            for start, stop in zones:
                arena.fill(start, stop, ZONE_PATTERN)
        self.work.map[self.status_at.offset : self.status_at.offset + STATUS_BYTES] = bytes(STATUS_BYTES)
        self.sealed = all((self.inputs.seal(True), self.outputs.seal(False), self.work.seal(False)))
        self._images: dict[int, bytes] = {}

    def _place_set(self, planner: Planner) -> list[Place]:
        places: list[Place] = []
        for spec in self.key.tensors:
            if 0 <= spec.shares < len(places) and _same_window(spec, self.key.tensors[spec.shares]):
                places.append(places[spec.shares])
            else:
                places.append(planner.place(window_bytes(spec), _guaranteed(spec, True)))
        return places

    def write_set(self, index: int, tensors: tuple[torch.Tensor, ...] | list[torch.Tensor]) -> None:
        """Copy one trial's inputs into set `index`. Raises HarnessProblem when they don't fit the card."""
        if len(tensors) != len(self.key.tensors):
            raise HarnessProblem(f"a trial has {len(tensors)} inputs, the card {len(self.key.tensors)}")
        for place, spec, value in zip(self.input_at[index], self.key.tensors, tensors, strict=True):
            if tuple(value.shape) != spec.sizes or str(value.dtype) != f"torch.{spec.dtype}":
                raise HarnessProblem(
                    f"trial input {spec.name!r} is {value.dtype} {tuple(value.shape)}, not as the card says"
                )
            copy_strided(self.inputs.tensor(place, spec), value)
        start, stop = self._region(index)
        self._images[index] = self.inputs.map[start:stop]

    def _region(self, index: int) -> tuple[int, int]:
        """First and one past the last byte of one input set."""
        places = [p for p in self.input_at[index] if p.nbytes]
        return min((p.offset for p in places), default=0), max((p.offset + p.nbytes for p in places), default=0)

    def poison_slot(self, slot: int, which: int, from_set: int) -> None:
        """Poison slot and workspace with pattern `which`; inputs the operator writes are copied from `from_set`."""
        fresh = len(written(self.key))
        for place in self.slot_at[slot][:fresh]:
            self.outputs.fill(place.offset, place.offset + place.nbytes, POISONS[which])
        for place, index in zip(self.slot_at[slot][fresh:], self.key.mutates, strict=True):
            source = self.input_at[from_set][index]
            self.outputs.map[place.offset : place.offset + place.nbytes] = self.inputs.map[
                source.offset : source.offset + source.nbytes
            ]
        self.work.fill(self.workspace_at.offset, self.workspace_at.offset + self.workspace_at.nbytes, POISONS[which])

    def slot_tensors(self, slot: int, control: bool = False) -> list[torch.Tensor]:
        """Views of a slot's results (then written inputs) on the judge's mapping. Copy before the next call.

        control: eager's results instead of the candidate's.
        """
        arena = self.control if control else self.outputs
        return [arena.tensor(p, s) for p, s in zip(self.slot_at[slot], self.slots, strict=True)]

    def survived(self, slot: int, output: int, which: int) -> torch.Tensor:
        """Per element of a fresh result: True where it still holds poison `which`, byte for byte."""
        place, spec = self.slot_at[slot][output], self.slots[output]
        raw = bytearray(_pattern(POISONS[which], place.offset, place.offset + place.nbytes))
        poison = torch.frombuffer(raw or bytearray(1), dtype=torch.uint8)
        got = self.outputs.bytes[place.offset : place.offset + place.nbytes]
        if place.nbytes == 0:
            return torch.zeros(spec.sizes, dtype=torch.bool)
        same = (got == poison).view(-1, itemsize(spec.dtype)).all(dim=1)
        return same.as_strided(spec.sizes, spec.strides)

    def inputs_changed(self, only: int | None = None) -> bool:
        """Whether any byte of an input set (of set `only`) differs from what the judge wrote there."""
        images = self._images.items() if only is None else [(only, self._images[only])]
        for index, image in images:
            start, stop = self._region(index)
            if self.inputs.map[start:stop] != image:
                return True
        return False

    def broken_zone(self) -> str:
        """Where a red zone was written, or ""."""
        for name, arena, zones in (
            ("input", self.inputs, self.input_zones),
            ("output", self.outputs, self.slot_zones),
            ("workspace", self.work, self.work_zones),
        ):
            for number, (start, stop) in enumerate(zones):
                if not arena.intact(start, stop, ZONE_PATTERN):
                    if number == 0:
                        return f"the memory before the first {name} buffer was written"
                    return f"the memory after {name} buffer {number - 1} was written"
        return ""

    def status(self) -> tuple[int, int, int]:
        """Signal, fault address and phase the worker noted before it died (a claim)."""
        raw = self.work.map[self.status_at.offset : self.status_at.offset + 24]
        words = (ctypes.c_int64 * 3).from_buffer_copy(raw)
        return int(words[0]), int(words[1]), int(words[2])

    def layout(self, plan: Plan | None, prepared_bytes: int, threads: int) -> dict[str, Any]:
        """What a worker needs to map everything: JSON values only."""
        return {
            "sizes": {"in": self.inputs.size, "out": self.outputs.size, "work": self.work.size},
            "inputs": [{"sizes": t.sizes, "strides": t.strides, "dtype": t.dtype} for t in self.key.tensors],
            "input_bytes": [window_bytes(t) for t in self.key.tensors],
            "input_at": [[p.offset for p in places] for places in self.input_at],
            "slots": [{"sizes": t.sizes, "strides": t.strides, "dtype": t.dtype} for t in self.slots],
            "slot_bytes": [window_bytes(t) for t in self.slots],
            "slot_at": [[p.offset for p in places] for places in self.slot_at],
            "mutates": list(self.key.mutates),
            "scalars": [{"kind": a.kind, "value": a.value} for a in self.key.scalars],
            "workspace": [self.workspace_at.offset, self.workspace_at.nbytes],
            "workspace_alignment": max(64, plan.workspace.alignment) if plan else 64,
            "zeroed": bool(plan and plan.workspace.zeroed),
            "status": self.status_at.offset,
            "prepared_bytes": prepared_bytes,
            "threads": threads,
        }

    @property
    def fds(self) -> list[int]:
        return [self.inputs.fd, self.outputs.fd, self.work.fd]

    @property
    def control_fds(self) -> list[int]:
        """What a trusted worker maps: the twin in place of the slots."""
        return [self.inputs.fd, self.control.fd, self.work.fd]

    def close(self) -> None:
        for arena in (self.inputs, self.outputs, self.control, self.work):
            arena.close()


def _guaranteed(spec: TensorSpec, captured: bool) -> int:
    """Alignment a buffer is given: what the card saw for inputs; torch's own 64 for fresh results."""
    if not captured:
        return 64
    return max(itemsize(spec.dtype), min(64, spec.alignment))


def _same_window(a: TensorSpec, b: TensorSpec) -> bool:
    return (a.dims, a.strides, a.dtype) == (b.dims, b.strides, b.dtype)


def copy_strided(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy values into a tensor whose stride-0 dimensions repeat one element."""
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dim] > 1:
            target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    target.copy_(value)
