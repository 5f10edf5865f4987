"""The one owner of the mode key in a process: which tier runs, which entries are hooked, which casts are installed.

Invariants: the key is taken when the first cast is attached and given back when the last one leaves; an operator is
hooked only while it has an enabled entry; newer casts are asked first; every change of a table happens under one lock.
Process-wide by nature: torch's dispatcher is.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from forge_tui.cast.backend import Backend, Counters, EntrySpec
from forge_tui.cast.keys import free_mode_keys
from forge_tui.cast.native import NativeHooks, build
from forge_tui.cast.python_hooks import PythonHooks
from forge_tui.cast.words import CannotGuard
from forge_tui.records.problem import MachineProblem

MAX_CASTS = 64
ALL = (1 << MAX_CASTS) - 1


@dataclass
class Hooked:
    """One entry of an attachment. hook: "typed", "generic" or "python"."""

    spec: EntrySpec
    handle: Any
    hook: str = ""


@dataclass
class Attachment:
    """A cast's entries behind the key. bit: its place in the per-thread set. declined: card -> why it is not hooked."""

    bit: int
    tier: str
    tier_reason: str
    key_name: str
    hooked: list[Hooked] = field(default_factory=list)
    declined: dict[str, str] = field(default_factory=dict)
    reasons_before: dict[str, dict[str, int]] = field(default_factory=dict)
    backend: Backend | None = None


class Owner:
    """Attach and detach casts. One instance per process: `owner()`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._attached: list[Attachment] = []
        self._backend: Backend | None = None
        self._tier_reason = ""
        self._key_name = ""
        self._diagnosing = 0

    def attach(self, specs: Sequence[EntrySpec], pays: dict[str, float]) -> Attachment:
        """Hook these entries. pays: card -> microseconds a served call wins, for the Python tier's enable rule.

        Entries that can't be hooked are in `declined`; the rest go on. Raises MachineProblem when no key is free.
        """
        with self._lock:
            backend = self._open()
            used = {a.bit for a in self._attached}
            free = [bit for bit in range(MAX_CASTS) if bit not in used]
            if not free:
                raise MachineProblem(f"{MAX_CASTS} casts are installed in this process; uninstall one first")
            made = Attachment(free[0], backend.tier, self._tier_reason, self._key_name, backend=backend)
            self._attached.append(made)
            for spec in specs:
                self._add(made, backend, spec, pays.get(spec.card_id))
            self._publish({h.spec.key.op for h in made.hooked})
            made.reasons_before = {op: backend.reasons(op) for op in {h.spec.key.op for h in made.hooked}}
            return made

    def detach(self, attachment: Attachment) -> None:
        """Take an attachment's entries away; the last one gives the key back. Safe to call twice."""
        with self._lock:
            if attachment not in self._attached:
                return
            self._attached.remove(attachment)
            backend = attachment.backend
            if backend is not None and backend is self._backend:
                for hooked in attachment.hooked:
                    backend.retire(hooked.handle)
                self._publish({h.spec.key.op for h in attachment.hooked})
            self._close_when_idle()

    def switch(self, attachment: Attachment, on: bool) -> int:
        """Switch this thread's set of active casts; returns the set to give to `restore`."""
        backend = attachment.backend
        if backend is None or backend is not self._backend:
            return 0
        bit = 1 << attachment.bit
        return backend.switch(bit, bit if on else 0)

    def restore(self, attachment: Attachment, before: int) -> None:
        """Set this thread's active casts back to what `switch` returned."""
        if attachment.backend is not None and attachment.backend is self._backend:
            attachment.backend.switch(ALL, before)

    def diagnose(self, on: bool) -> None:
        """Count the users of miss diagnosis; it is on while there is one."""
        with self._lock:
            self._diagnosing += 1 if on else -1
            if self._backend is not None:
                self._backend.diagnose(self._diagnosing > 0)

    def counters(self, attachment: Attachment) -> list[tuple[Hooked, Counters]]:
        """Counts of every hooked entry of an attachment, also after it was detached."""
        if attachment.backend is None:
            return []
        return [(h, attachment.backend.counters(h.handle)) for h in attachment.hooked]

    def reasons(self, attachment: Attachment) -> dict[str, dict[str, int]]:
        """Misses per operator and reason since the attachment was made, over all casts that hook the operator."""
        if attachment.backend is None:
            return {}
        out = {}
        for op, before in attachment.reasons_before.items():
            now = attachment.backend.reasons(op)
            out[op] = {r: n - before.get(r, 0) for r, n in now.items() if n > before.get(r, 0)}
        return out

    def _open(self) -> Backend:
        if self._backend is not None:
            return self._backend
        built = build()
        self._tier_reason = "" if not isinstance(built, str) else built
        candidates: list[Backend] = []
        if not isinstance(built, str):
            try:
                candidates.append(NativeHooks(built))
            except OSError as error:
                self._tier_reason = f"the hook library does not load: {error}"
        candidates.append(PythonHooks())
        for backend in candidates:
            for name in free_mode_keys():
                try:
                    backend.open(name)
                except RuntimeError as error:
                    self._tier_reason = f"{name}: {error}"
                    continue
                if backend.tier == NativeHooks.tier:
                    self._tier_reason = f"built for torch {torch.__version__}"
                self._backend, self._key_name = backend, name
                backend.diagnose(self._diagnosing > 0)
                return backend
        raise MachineProblem(
            f"no dispatcher mode key is free in torch {torch.__version__}: {self._tier_reason or 'all are taken'}"
        )

    def _add(self, made: Attachment, backend: Backend, spec: EntrySpec, wins_us: float | None) -> None:
        if backend.tier == PythonHooks.tier and wins_us is not None and wins_us < PYTHON_MATCHED_US:
            made.declined[spec.card_id] = (
                f"wins {wins_us:.1f} us a call, less than the Python tier's own {PYTHON_MATCHED_US:.0f} us"
            )
            return
        try:
            handle = backend.add(spec, made.bit)
        except CannotGuard as error:
            made.declined[spec.card_id] = str(error)
            return
        made.hooked.append(Hooked(spec, handle))

    def _publish(self, ops: set[str]) -> None:
        assert self._backend is not None
        for op in sorted(ops):
            behind = [h for a in reversed(self._attached) for h in a.hooked if h.spec.key.op == op]
            try:
                kind = self._backend.publish(op, [h.handle for h in behind])
            except CannotGuard as error:
                for a in self._attached:
                    lost = [h for h in a.hooked if h.spec.key.op == op]
                    a.declined |= {h.spec.card_id: str(error) for h in lost}
                    a.hooked = [h for h in a.hooked if h not in lost]
                continue
            for h in behind:
                h.hook = kind

    def _close_when_idle(self) -> None:
        if self._backend is not None and not self._attached:
            self._backend.close()
            self._backend = None


# Extra time of a served call in the Python tier over an eager one, and the least an entry must win to be switched on:
# research on dispatch measured 1.4 to 2.3 us per served call.
PYTHON_MATCHED_US = 3.0


@functools.cache
def owner() -> Owner:
    """The process's owner of the key."""
    return Owner()
