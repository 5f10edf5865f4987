"""Wrapping a module's forward so that a cast is on exactly while it runs, and taking the wrap off again.

The module's class is exchanged for a subclass that overrides METHODS alone. So replicas and shallow copies run
with their own weights, and `deepcopy`, `pickle` and `torch.save` give plain modules of the user's own class. A
module that carries its own `forward` attribute keeps it: the attribute is wrapped instead. While torch compiles,
traces or exports, the wrap steps aside and the original runs.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

NEW_OBJECT: Any = getattr(copyreg, "__newobj__")  # noqa: B009
RECONSTRUCT: Any = getattr(copyreg, "_reconstructor")  # noqa: B009


# Ways into a model that people call beside forward: text generation, the halves of an autoencoder.
METHODS = ("forward", "generate", "encode", "decode")


class Gate(Protocol):
    """Switches a cast on and off around one forward."""

    def enter(self) -> int:
        """Cast on for this thread; returns what `leave` needs."""

    def leave(self, before: int, failed: bool) -> None:
        """Cast as before. failed: the forward raised."""

    @property
    def closed(self) -> bool:
        """True after uninstall: the wrap only passes through."""

    @property
    def paused_now(self) -> bool:
        """True while the cast is switched off for a comparison."""


@dataclass(frozen=True)
class Wrapped:
    """What to undo. own: the module's own forward attribute, if it had one; put: what was put in its place.

    plain, cast: the class before and with the cast, equal for a module with its own forward.
    """

    module: torch.nn.Module
    plain: type
    cast: type
    own: Callable[..., Any] | None
    put: Callable[..., Any] | None


def _around(original: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or gate.closed or gate.paused_now:
            return original(*args, **kwargs)
        before = gate.enter()
        failed = True
        try:
            result = original(*args, **kwargs)
            failed = False
        finally:
            gate.leave(before, failed)
        return result

    return forward


def _is_method(plain: type, name: str) -> bool:
    return inspect.isfunction(inspect.getattr_static(plain, name, None))


def wrap(module: torch.nn.Module, gate: Gate) -> Wrapped:
    """Wrap one module's forward, and generate, encode, decode where its class has them."""
    plain: Any = type(module)
    meta: Any = type(plain)
    own = module.__dict__.get("forward")
    if own is not None:
        put = module.__dict__["forward"] = _around(own, gate)
        return Wrapped(module, plain, plain, own, put)

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = plain.__reduce_ex__(self, protocol)
        if isinstance(reduced, tuple):
            if reduced[0] is NEW_OBJECT and len(reduced[1]) == 1:  # pickle insists on the object's present class there
                return (RECONSTRUCT, (plain, object, None), *reduced[2:])
            swapped = tuple(plain if a is type(self) else a for a in reduced[1])
            return (reduced[0], swapped, *reduced[2:])
        return reduced

    body = {
        **{name: _around(getattr(plain, name), gate) for name in METHODS if _is_method(plain, name)},
        "__reduce_ex__": reduce_ex,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "_forge_cast_plain": plain,
        "_forge_cast_gate": gate,
    }
    module.__class__ = made = meta(plain.__name__, (plain,), body)
    return Wrapped(module, plain, made, None, None)


@contextlib.contextmanager
def off(wrapped: Sequence[Wrapped]) -> Iterator[None]:
    """Modules as they were before the wrap, for the block; wraps that others put above stay."""
    plain = [w for w in wrapped if w.own is None and type(w.module) is w.cast]
    own = [w for w in wrapped if w.own is not None and w.module.__dict__.get("forward") is w.put]
    for w in plain:
        w.module.__class__ = w.plain
    for w in own:
        w.module.__dict__["forward"] = w.own
    try:
        yield
    finally:
        for w in plain:
            w.module.__class__ = w.cast
        for w in own:
            w.module.__dict__["forward"] = w.put


def unwrap(wrapped: Wrapped) -> None:
    """Undo `wrap`, in any order with other wraps: closed ones in the middle pass through until those above are off."""
    module = wrapped.module
    if wrapped.own is not None:
        if module.__dict__.get("forward") is wrapped.put:
            module.__dict__["forward"] = wrapped.own
        return
    current: Any = type(module)
    while "_forge_cast_plain" in current.__dict__ and current.__dict__["_forge_cast_gate"].closed:
        current = current.__dict__["_forge_cast_plain"]
    if current is not type(module):
        module.__class__ = current
