"""The Python tier: the same mode key hooked from Python, kernels called through ctypes. Needs no compiler.

Slower than the C++ hooks (about 2 us per served call, 2 to 5 us per other call of a hooked operator), so the owner
switches on only entries that win more than that. Decisions are the same as native/table.h's.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad

from forge_tui.cast import abi
from forge_tui.cast.backend import Counters, EntrySpec
from forge_tui.cast.encode import OutputRow, output_rows, scalars_of
from forge_tui.cast.guards import DETERMINISTIC, PRECISIONS, Seen, autocast_bits, mismatch, strides_of
from forge_tui.cast.keys import operator, schema_of
from forge_tui.cast.states import REASONS
from forge_tui.cast.words import DEVICE_TYPES, CannotGuard, words_of_call
from forge_tui.records.dtype import DTYPES
from forge_tui.records.expr import ExprError, value_of
from forge_tui.records.plan import symbols_of

# Which dispatch keys stand for which state, in the order of native/hooks.cpp. None: autocast casts and then calls the
# operator again; that second call is the one that counts.
STATE_KEYS: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (None, ("AutocastCPU", "AutocastCUDA")),
    (
        "functorch",
        (
            "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchBatched", "FuncTorchVmapMode",
            "FuncTorchGradWrapper", "Functionalize",
        ),
    ),
    ("tracing", ("Tracer",)),
    ("python_mode", ("Python", "PythonTLSSnapshot", "PreDispatch", "PythonDispatcher")),
    ("math_bits", ("Negative", "Conjugate", "ZeroTensor")),
)  # fmt: skip


def _known_keys(names: Sequence[str]) -> list[Any]:
    known = []
    for name in names:
        with contextlib.suppress(RuntimeError):  # a key this torch version does not have
            known.append(torch._C._dispatch_key_parse(name))
    return known


@dataclass
class _Entry:
    spec: EntrySpec
    bit: int
    launch: Any
    outputs: tuple[OutputRow, ...]
    scalars: Any
    keep: list[Any]
    hits: int = 0
    declined: int = 0
    errors: int = 0
    enabled: bool = True


@dataclass
class _Hook:
    library: Any
    entries: tuple[_Entry, ...] = ()
    reasons: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))


class _Active(threading.local):
    casts = 0


def flags_now() -> int:
    """Numerics flags in force, as bits of `guards`."""
    bits = DETERMINISTIC if torch.are_deterministic_algorithms_enabled() else 0
    if torch.is_autocast_enabled("cpu"):
        bits |= autocast_bits(str(torch.get_autocast_dtype("cpu")).removeprefix("torch."))
    return bits | PRECISIONS[torch.get_float32_matmul_precision()] << 1


def seen(tensor: torch.Tensor) -> Seen:
    """What the guard looks at."""
    device = (DEVICE_TYPES.get(tensor.device.type, -1), -1 if tensor.device.index is None else tensor.device.index)
    return Seen(
        tuple(tensor.shape), tensor.stride(), str(tensor.dtype).removeprefix("torch."), device, tensor.data_ptr(),
        tensor.untyped_storage()._cdata,
    )  # fmt: skip


class PythonHooks:
    """Backend in Python. See `backend.Backend`."""

    tier = "Python hooks"

    def __init__(self) -> None:
        self._active = _Active()
        self._hooks: dict[str, _Hook] = {}
        self._fallback: Any = None
        self._lock = threading.Lock()
        self._diagnosing = False

    def open(self, key_name: str) -> None:
        self._name, self._key = key_name, torch._C._dispatch_key_parse(key_name)
        self._states = [(reason, _known_keys(names)) for reason, names in STATE_KEYS]
        self._after = torch._C._dispatch_keyset_full_after(self._key)
        self._only = torch._C.DispatchKeySet(self._key)
        allowed = self._only
        for k in _known_keys(("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView")):
            allowed = allowed | torch._C.DispatchKeySet(k)
        self._forbidden = ~allowed.raw_repr()
        fallback = torch.library.Library("_", "IMPL")
        fallback.fallback(torch.library.fallthrough_kernel, key_name)
        called: list[bool] = []

        def canary(keyset: Any, x: torch.Tensor) -> Any:
            called.append(True)
            return torch.ops.aten.relu.default.redispatch(keyset & self._after, x)

        probe = torch.library.Library("aten", "IMPL")
        probe.impl("relu", canary, key_name, with_keyset=True)
        self._include(True)
        try:
            torch.relu(torch.zeros(1))
        finally:
            self._include(False)
            probe._destroy()
        if not called:
            fallback._destroy()
            raise RuntimeError(f"a hook on {key_name} did not run")
        self._fallback = fallback

    def close(self) -> None:
        for op in list(self._hooks):
            self.publish(op, ())
        self._fallback._destroy()
        self._fallback = None

    def add(self, spec: EntrySpec, cast_bit: int) -> Any:
        if spec.plan.prepare is not None:
            raise CannotGuard("prepared weights need the C++ hooks")
        keep: list[Any] = []
        scalars = [abi.scalar(kind, value, keep) for kind, value in scalars_of(spec.key)]
        array = (abi.ForgeScalar * max(1, len(scalars)))(*scalars)
        return _Entry(spec, 1 << cast_bit, abi.Launch(spec.launch), output_rows(spec.key, spec.returns), array, keep)

    def publish(self, op: str, handles: Sequence[Any]) -> str:
        hook = self._hooks.get(op)
        if not handles:
            if hook is not None:
                hook.entries = ()
                hook.library._destroy()
                del self._hooks[op]
            return "none"
        if hook is None:
            overload = operator(op)
            if overload is None:
                raise CannotGuard(f"this torch has no operator {op}")
            library = torch.library.Library(op.split("::")[0], "IMPL")
            hook = self._hooks[op] = _Hook(library)
            library.impl(op.split("::")[1], self._hook(overload, hook), self._name, with_keyset=True)
        hook.entries = tuple(handles)
        return "python"

    def retire(self, handle: Any) -> None:
        handle.enabled = False

    def switch(self, out: int, into: int) -> int:
        before = self._active.casts
        casts = self._active.casts = (before & ~out) | into
        if bool(before) != bool(casts):
            self._include(bool(casts))
        return before

    def diagnose(self, on: bool) -> None:
        self._diagnosing = on

    def counters(self, handle: Any) -> Counters:
        return Counters(handle.hits, handle.declined, handle.errors, 0, 0, handle.enabled)

    def reasons(self, op: str) -> dict[str, int]:
        hook = self._hooks.get(op)
        return dict(hook.reasons) if hook is not None else {}

    def _include(self, on: bool) -> None:
        torch._C._dispatch_tls_set_dispatch_key_included(self._key, on)

    def _hook(self, overload: Any, hook: _Hook) -> Callable[..., Any]:
        schema, _ = schema_of(overload)

        def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            reason, call = self._state(keyset), None
            if reason == "":
                call = words_of_call(schema, args, kwargs, lambda v: isinstance(v, torch.Tensor))
                reason, result = self._serve(hook, call)
                if reason == "":
                    return result
            if reason:
                with self._lock:
                    hook.reasons[reason] += 1
            numbers = any(
                p.takes_tensor and isinstance(a, (bool, int, float)) for p, a in zip(schema, args, strict=False)
            )
            if not numbers:
                return overload.redispatch(keyset & self._after, *args, **kwargs)
            # redispatch refuses a plain number for a tensor; the whole call without our key does the same
            with torch._C._ExcludeDispatchKeyGuard(self._only):
                return overload(*args, **kwargs)

        return run

    def _state(self, keyset: Any) -> str | None:
        if not keyset.raw_repr() & self._forbidden:
            return ""
        for reason, keys in self._states:
            if any(keyset.has(k) for k in keys):
                return reason
        return "other_state"

    def _serve(self, hook: _Hook, call: tuple[tuple[int, ...], list[Any]] | None) -> tuple[str, Any]:
        if call is None:
            return "arguments", None
        words, tensors = call
        live = [seen(t) for t in tensors]
        reason = "undiagnosed"
        for entry in hook.entries:
            if not entry.bit & self._active.casts:
                continue
            why = mismatch(entry.spec.row, words, live) if entry.enabled else "disabled"
            if why == "":
                why = _blocked(entry, tensors)
                return (why, None) if why else self._run(entry, tensors)
            if self._diagnosing:
                reason = why
        return reason, None

    def _run(self, entry: _Entry, tensors: list[torch.Tensor]) -> tuple[str, Any]:
        spec = entry.spec
        keep: list[Any] = []
        sizes = tuple(tuple(t.shape) for t in tensors)
        inputs = [_forge_tensor(t, keep) for t in tensors]
        results = [_result(row, tensors) for row in entry.outputs]
        fresh = [_forge_tensor(t, keep) for t, row in zip(results, entry.outputs, strict=True) if row.alias < 0]
        args = abi.ForgeArgs(abi.ABI, len(inputs), len(fresh), len(spec.key.scalars))
        args.inputs = (abi.ForgeTensor * max(1, len(inputs)))(*inputs)
        args.outputs = (abi.ForgeTensor * max(1, len(fresh)))(*fresh)
        args.scalars = ctypes.cast(entry.scalars, ctypes.POINTER(abi.ForgeScalar))
        args.threads = torch.get_num_threads()
        try:
            symbols = symbols_of(spec.key, sizes) | spec.plan.constants
            size = value_of(spec.plan.workspace.bytes, symbols)
            if size > 0:
                memory, address = abi.aligned_memory(size, spec.plan.workspace.alignment)
                keep.append(memory)
                args.workspace, args.workspace_bytes = address, size
            for step in spec.plan.steps:
                if step.kind == "memset":
                    offset, length = value_of(step.offset, symbols), value_of(step.bytes, symbols)
                    if offset < 0 or length < 0 or offset + length > size:
                        return "no_memory", None
                    ctypes.memset(args.workspace + offset, step.value, length)
        except (ExprError, MemoryError, OverflowError):
            return "no_memory", None
        code = entry.launch(ctypes.byref(args))
        with self._lock:
            if code == 0:
                entry.hits += 1
            elif code > 0:
                entry.declined += 1
            else:
                entry.errors += 1
                entry.enabled = False
        if code > 0:
            return "declined", None
        if code < 0 and spec.key.mutates:
            raise RuntimeError(
                f"forge_tui cast: an in-place kernel failed with code {code}; its tensor may be half written. "
                "The kernel is now off."
            )
        if code < 0:
            return "disabled", None
        for k in spec.key.mutates:
            torch.autograd.graph.increment_version(tensors[k])
        return "", results[0] if len(results) == 1 else tuple(results)


def _blocked(entry: _Entry, tensors: list[torch.Tensor]) -> str:
    if forward_ad._current_level >= 0 or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return "gradients"
    if flags_now() != entry.spec.row.flags:
        return "flags"
    if not torch.is_inference_mode_enabled() and any(tensors[k].is_inference() for k in entry.spec.key.mutates):
        return "inference_tensor"
    return ""


def _result(row: OutputRow, tensors: list[torch.Tensor]) -> torch.Tensor:
    if row.alias >= 0:
        return tensors[row.alias]
    sizes = [b if k < 0 else b + a * tensors[k].shape[d] for b, a, k, d in row.sizes]
    exact = all(k < 0 for _, _, k, _ in row.sizes)
    strides = row.strides if exact or row.layout == "strided" else strides_of(row.layout, sizes)
    return torch.empty_strided(sizes, strides, dtype=getattr(torch, row.dtype))


def _forge_tensor(tensor: torch.Tensor, keep: list[Any]) -> abi.ForgeTensor:
    sizes, strides = abi.longs(tensor.shape), abi.longs(tensor.stride())
    keep += [sizes, strides]
    long_pointer = ctypes.POINTER(ctypes.c_int64)
    dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")][0]
    return abi.ForgeTensor(
        tensor.data_ptr(), ctypes.cast(sizes, long_pointer), ctypes.cast(strides, long_pointer), tensor.dim(), dtype
    )
