"""The dispatcher's mode keys: which one is free, and the torch facts a hook needs by name.

Invariant: numbers of keys are never written down, they differ between torch versions. A second boxed fallback on
a key is refused by torch, so whoever finds a key taken uses the next stand-in.
"""

from __future__ import annotations

from typing import Any

import torch

from forge_tui.cast.words import Parameter

# Keys for out-of-tree modes that have no kernels of their own; the same in torch 2.9 to 2.14.
MODE_KEYS = ("TESTING_ONLY_GenericMode", "TESTING_ONLY_GenericWrapper", "DeferredInit")


def free_mode_keys() -> list[str]:
    """Mode keys of this torch that nobody has put a fallback on, in order of preference."""
    free = []
    for name in MODE_KEYS:
        try:
            key = torch._C._dispatch_key_parse(name)
        except (RuntimeError, ValueError):
            continue
        if not torch._C._dispatch_has_backend_fallback(key):
            free.append(name)
    return free


def operator(op: str) -> Any | None:
    """The OpOverload of "aten::softmax.int", or None when this torch has none."""
    space, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, space), name, None), overload or "default", None)
    return found if found is not None and hasattr(found, "_schema") else None


def schema_of(overload: Any) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """Parameters and types of results of an operator."""
    schema = overload._schema
    parameters = tuple(
        Parameter(a.name, str(a.type), a.has_default_value(), a.default_value, bool(a.kwarg_only))
        for a in schema.arguments
    )
    return parameters, tuple(str(r.type) for r in schema.returns)
