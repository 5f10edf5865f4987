"""Listens on the mode key during a run: groups calls by variant, times them, and saves chosen inputs before the call.

Invariants: the operator is called exactly once with the very arguments the model gave; nothing the recorder does can
change its result; no tensor is kept alive past the call. Only the thread that captures is recorded.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch

from forge_tui.capture.blobs import BlobWriter
from forge_tui.capture.describe import (
    Call,
    Operator,
    Undescribable,
    alignment_of,
    call_of,
    operator_of,
    results_of,
    signature,
    tensor_signature,
    variant_key,
)
from forge_tui.capture.modekey import ModeKey
from forge_tui.capture.refuse import FOREIGN_KEYS, not_seen, refusal
from forge_tui.records.card import CapturedCall, VariantKey
from forge_tui.workload.workload import Workload

CHECKED_BYTES = 1 << 20  # inputs up to this size are compared after the call for writes the schema does not declare
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
Saved = dict[tuple[int, int], CapturedCall]


@dataclass
class Group:
    """All calls with one signature. key is None when the call makes no card (`unseen` says why).

    times: seconds inside the operator, per run and call. persistent: per call of the last run the addresses and sizes
    of its parameters. nbytes: of the inputs' storage windows.
    """

    number: int
    operator: str
    key: VariantKey | None
    unseen: str = ""
    refused: str = ""
    alignments: list[int] = field(default_factory=list)
    result_alignments: list[int] = field(default_factory=list)
    results: Any = None
    modules: dict[str, None] = field(default_factory=dict)
    times: list[list[float]] = field(default_factory=list)
    nbytes: int = 0
    ordinal: int = 0
    persistent: list[tuple[tuple[int, int], ...]] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Calls in one run (the median, should the model's path vary)."""
        return int(statistics.median(len(run) for run in self.times)) if self.times else 0

    @property
    def seconds(self) -> float:
        """Seconds in one run: per call the median over the runs, so that one disturbed run does not count."""
        if not self.times:
            return 0.0
        if len({len(run) for run in self.times}) > 1:
            return float(statistics.median(sum(run) for run in self.times))
        return float(sum(statistics.median(call) for call in zip(*self.times, strict=True)))


class Recorder:
    """Context manager around `ModeKey`; one `run(...)` at a time. saving: (group, ordinal) pairs to save in pass 2."""

    def __init__(self, workload: Workload) -> None:
        self.groups: list[Group] = []
        self.calls = 0
        self.other_threads = 0
        self._workload = workload
        self._by_signature: dict[Any, Group] = {}
        self._operators: dict[Any, Operator] = {}
        self._autocast_keys = [k for k in map(_key, ("AutocastCPU", "AutocastCUDA")) if k is not None]
        self._foreign = [(name, k) for name in FOREIGN_KEYS if (k := _key(name)) is not None]
        self._stack: list[str] = []
        self._events: list[tuple[Group, Any, Any]] = []
        self._names: dict[torch.nn.Module, str] = {}
        self._parameters: dict[int, str] = {}
        self._writer: BlobWriter | None = None
        self._wanted: frozenset[tuple[int, int]] = frozenset()
        self.saved: Saved = {}

    def run(
        self,
        once: Callable[[], Any],
        writer: BlobWriter | None = None,
        wanted: frozenset[tuple[int, int]] = frozenset(),
    ) -> Any:
        """Run `once` under the key; returns its result. With a writer, the wanted calls' inputs are saved."""
        self._writer, self._wanted = writer, wanted
        self._stack, self._events, self.calls = [], [], 0
        self._name_modules()
        for group in self.groups:
            group.times.append([])
            group.persistent = []
            group.ordinal = 0
        with _ModuleHooks(self._enter, self._leave), _ThreadCount() as threads, ModeKey(self._hook) as key:
            self._mode = key
            result = once()
        self.other_threads = max(self.other_threads, threads.started)
        if self._events:
            torch.cuda.synchronize()
            for group, start, end in self._events:
                group.times[-1].append(start.elapsed_time(end) * 1e-3)
            self._events = []
        return result

    def _name_modules(self) -> None:
        self._names = {}
        for root, module in self._workload.modules.items():
            for name, part in module.named_modules():
                full = ".".join(piece for piece in (root, name) if piece)
                self._names.setdefault(part, full or type(module).__name__)
        self._parameters = {
            t.untyped_storage().data_ptr(): name
            for name, t in self._workload.parameters().items()
            if t.layout is torch.strided and t.numel()
        }
        self._persistent = frozenset(self._parameters)

    def _enter(self, module: torch.nn.Module) -> None:
        self._stack.append(self._names.get(module, type(module).__name__))

    def _leave(self) -> None:
        if self._stack:
            self._stack.pop()

    def _hook(self, keyset: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        if any(keyset.has(k) for k in self._autocast_keys):
            if not _has_number_for_tensor(op, args):
                # Autocast casts and calls the operator again: that second call is the one that is recorded.
                return op.redispatch(keyset & self._mode.below, *args, **kwargs)
            with self._mode.off():  # redispatch takes no Python number for a tensor argument
                return op(*args, **kwargs)
        with self._mode.off():
            return self._record(keyset, op, args, kwargs)

    def _record(self, keyset: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = self._operators.get(op)
        if operator is None:
            operator = self._operators[op] = operator_of(op)
        call = call_of(operator, args, kwargs)
        odd = next((f"reached through {name}" for name, k in self._foreign if keyset.has(k)), "") or odd_tensor(call)
        index, self.calls = self.calls, self.calls + 1
        if odd:
            return self._record_odd(call, op, args, kwargs, odd)
        autocast, flags = numerics_state(call)
        wants_grad = torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors)
        identity = signature(call, self._persistent, (autocast, flags, wants_grad))
        group = self._by_signature.get(identity)
        blobs = None
        if self._writer is not None and group is not None and (group.number, group.ordinal) in self._wanted:
            names = [self._parameters.get(t.untyped_storage().data_ptr(), "") for t in call.tensors]
            blobs = tuple(self._writer.save(t, n) for t, n in zip(call.tensors, names, strict=True))
            self.saved[group.number, group.ordinal] = CapturedCall(index, blobs)
        alignments = [alignment_of(t) for t in call.tensors]
        before = [_version(t) for t in call.tensors]
        result, taken = self._timed(call, op, args, kwargs)
        if group is None:
            group = self._new_group(identity, call, result, wants_grad, autocast, flags)
        self._count(group, taken)
        if group.key is not None:
            self._follow(group, call, result, alignments)
            if not group.refused:
                self._check_writes(group, call, before, blobs)
        return result

    def _record_odd(self, call: Call, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
        """A call on something other than plain tensors: run and counted, never looked into."""
        identity = (call.operator.name, reason)
        result, taken = self._timed(call, op, args, kwargs)
        group = self._by_signature.get(identity)
        if group is None:
            group = self._add_group(identity, call)
            group.unseen = reason
        self._count(group, taken)
        return result

    def _timed(self, call: Call, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Result, and seconds or (on a GPU) a pair of events to be read when the run is over."""
        if any(t.is_cuda for t in call.tensors):
            events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            events[0].record()
            result = op(*args, **kwargs)
            events[1].record()
            return result, events
        start = time.perf_counter()
        result = op(*args, **kwargs)
        return result, time.perf_counter() - start

    def _add_group(self, identity: Any, call: Call) -> Group:
        group = Group(len(self.groups), call.operator.name, None, times=[[]])
        self.groups.append(group)
        self._by_signature[identity] = group
        return group

    def _new_group(
        self, identity: Any, call: Call, result: Any, wants_grad: bool, autocast: str, flags: tuple[str, ...]
    ) -> Group:
        group = self._add_group(identity, call)
        try:
            results = results_of(result)
            writes = any(p.writes and v is not None for p, v in zip(call.operator.parameters, call.values, strict=True))
            group.unseen = not_seen(call, results, writes)
            if group.unseen:
                return group
            group.key = variant_key(call, results, self._persistent, autocast, flags)
        except Undescribable as reason:
            group.unseen = str(reason)
            return group
        group.refused = refusal(call, group.key, self._workload.user_ops, wants_grad)
        group.results = tuple(tensor_signature(t) for t in results)
        group.nbytes = sum(t.window * _itemsize(t.dtype) for t in group.key.tensors)
        return group

    def _count(self, group: Group, taken: Any) -> None:
        if isinstance(taken, float):
            group.times[-1].append(taken)
        else:
            self._events.append((group, *taken))
        group.ordinal += 1
        if len(group.modules) < 256:
            group.modules.setdefault(self._stack[-1] if self._stack else "", None)

    def _follow(self, group: Group, call: Call, result: Any, alignments: list[int]) -> None:
        """Keep what must hold for every call of the group: result metadata and the least alignment."""
        key = group.key
        results = results_of(result)
        if key is None or tuple(tensor_signature(t) for t in results) != group.results:
            group.refused = group.refused or "the size of its result depends on values"
            return
        group.alignments = _least(group.alignments, alignments)
        group.result_alignments = _least(group.result_alignments, [alignment_of(t) for t in results])
        group.persistent.append(
            tuple(
                (t.data_ptr(), t.numel() * t.element_size())
                for t, spec in zip(call.tensors, key.tensors, strict=True)
                if spec.parameter
            )
        )

    def _check_writes(self, group: Group, call: Call, before: list[int], blobs: Any) -> None:
        key = group.key
        if key is None:
            return
        for number, tensor in enumerate(call.tensors):
            declared = number in key.mutates or any(key.tensors[number].shares == m for m in key.mutates)
            if declared:
                continue
            changed = before[number] != _version(tensor)
            blob = blobs[number] if blobs is not None else None
            if (
                not changed
                and blob is not None
                and blob.blob
                and blob.nbytes <= CHECKED_BYTES
                and self._writer is not None
            ):
                changed = self._writer.digest_of(tensor) != blob.blob
            if changed:
                group.refused = f"writes its argument {key.tensors[number].name!r}, which its schema does not declare"
                return


def odd_tensor(call: Call) -> str:
    """Why a call's tensors can't be looked at (no plain strided memory), or ""."""
    for tensor in call.tensors:
        if type(tensor) not in PLAIN_TYPES:
            return f"tensor subclass {type(tensor).__name__}"
        if tensor.layout is not torch.strided:
            return f"{str(tensor.layout).removeprefix('torch.')} tensor"
        if tensor.is_quantized:
            return "quantized tensor"
        if tensor.device.type not in ("cpu", "cuda"):
            return f"{tensor.device.type} tensor"
    return ""


def numerics_state(call: Call) -> tuple[str, tuple[str, ...]]:
    """(autocast dtype or "", numerics flags) in force for this call."""
    device = call.tensors[0].device.type if call.tensors else "cpu"
    autocast = ""
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    flags = []
    if torch.are_deterministic_algorithms_enabled():
        flags.append("deterministic")
    precision = torch.get_float32_matmul_precision()
    if precision != "highest":
        flags.append(f"matmul={precision}")
    return autocast, tuple(flags)


def _has_number_for_tensor(op: Any, args: tuple[Any, ...]) -> bool:
    return any(
        isinstance(value, (int, float, complex)) and str(parameter.type) == "Tensor"
        for value, parameter in zip(args, op._schema.arguments, strict=False)
    )


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _least(known: list[int], new: list[int]) -> list[int]:
    return [min(a, b) for a, b in zip(known, new, strict=True)] if known else list(new)


def _itemsize(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


def _key(name: str) -> Any:
    return getattr(torch._C.DispatchKey, name, None)


class _ModuleHooks:
    """Global forward hooks that keep the stack of module paths of the capturing thread. Hooks return None: a value
    would replace the model's output."""

    def __init__(self, enter: Callable[[torch.nn.Module], None], leave: Callable[[], None]) -> None:
        self._enter, self._leave = enter, leave
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        registry = torch.nn.modules.module
        self._handles = [
            registry.register_module_forward_pre_hook(self._before),
            registry.register_module_forward_hook(self._after, always_call=True),
        ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: torch.nn.Module, inputs: Any) -> None:
        if threading.get_ident() == self._thread:
            self._enter(module)

    def _after(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if threading.get_ident() == self._thread:
            self._leave()


class _ThreadCount:
    """Counts Python threads that the model starts: the key is thread-local, so their operators are not seen."""

    def __init__(self) -> None:
        self.started = 0

    def __enter__(self) -> _ThreadCount:
        self._kept = threading.getprofile() if hasattr(threading, "getprofile") else None
        threading.setprofile(self._seen)  # type: ignore[arg-type]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        threading.setprofile(self._kept)  # type: ignore[arg-type]

    def _seen(self, frame: Any, event: str, argument: Any) -> None:
        self.started += 1
        sys.setprofile(None)
