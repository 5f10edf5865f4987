"""The thread-local dispatcher key that capture listens on.

The key lies above autograd and autocast, so operators carry the names people use (softmax.int, group_norm, linear)
and the model's own results are untouched. It has no kernels of its own; torch keeps it for out-of-tree modes
(pytorch PR 26719). A second boxed fallback on one key is refused by torch, so where another runtime (an installed
cast) owns the first key, a stand-in is taken. Keys are looked up by name: their numbers differ between releases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from forge_tui.records.problem import HarnessProblem

KEYS = ("TESTING_ONLY_GenericMode", "TESTING_ONLY_GenericWrapper", "DeferredInit")
Hook = Callable[..., Any]


class ModeKey:
    """Context manager: inside, every operator of this thread goes through `hook(keyset, op, *args, **kwargs)`.

    The hook runs with the key still on; it calls operators inside `off()`. Raises HarnessProblem when no key is free.
    """

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._library: Any = None
        self._plain: Any = None
        self._key: Any = None
        self.name = ""

    def __enter__(self) -> ModeKey:
        reasons = []
        for name in KEYS:
            reason = self._claim(name)
            if not reason:
                self.name = name
                return self
            reasons.append(f"{name}: {reason}")
        raise HarnessProblem(
            f"no dispatcher key is free to capture with in torch {torch.__version__} ({'; '.join(reasons)})"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def off(self) -> Any:
        """Guard under which operators run without coming back to the hook."""
        return torch._C._ExcludeDispatchKeyGuard(self._set)

    @property
    def below(self) -> Any:
        """Keyset of everything below this key, for `op.redispatch(keyset & below)`."""
        return self._below

    def _claim(self, name: str) -> str:
        """Take the key; returns the reason when that fails."""
        try:
            self._key = torch._C._dispatch_key_parse(name)
        except (RuntimeError, AttributeError) as error:
            return f"unknown ({' '.join(str(error).split())[:60]})"
        self._set = torch._C.DispatchKeySet(self._key)
        self._below = torch._C._dispatch_keyset_full_after(self._key)
        self._library = torch.library.Library("_", "IMPL")
        canary = _Canary(self)
        try:
            self._library.fallback(canary, name, with_keyset=True)
        except RuntimeError:
            self._destroy_library()
            return "owned by another runtime"
        # nn.Parameter(...) inside a forward detaches in C++ and needs a tensor that Python has not seen yet.
        self._plain = torch.library.Library("aten", "IMPL")
        self._plain.impl("detach", torch.library.fallthrough_kernel, name)
        probe = torch.zeros(1)
        torch._C._dispatch_tls_set_dispatch_key_included(self._key, True)
        with contextlib.suppress(RuntimeError):
            torch.relu(probe)
        if not canary.fired:
            self._release()
            return "its hook does not run"
        canary.forward_to = self._hook
        return ""

    def _release(self) -> None:
        if self._key is not None:
            torch._C._dispatch_tls_set_dispatch_key_included(self._key, False)
        self._destroy_library()

    def _destroy_library(self) -> None:
        for library in (self._plain, self._library):
            if library is not None:
                library._destroy()
        self._plain = self._library = None


class _Canary:
    """First proves that the fallback runs, then hands every call to the real hook."""

    def __init__(self, owner: ModeKey) -> None:
        self._owner = owner
        self.fired = False
        self.forward_to: Hook | None = None

    def __call__(self, keyset: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        if self.forward_to is not None:
            return self.forward_to(keyset, op, *args, **kwargs)
        self.fired = True
        with self._owner.off():
            return op(*args, **kwargs)
