"""Casts: the guarded package that puts champions back into the user's model.

Promises
- Runs in the user's process: imports torch, the standard library and `records` only; `package` and `inspect` not even torch.
- Nothing of a cast is loaded before its hashes, its CPU features and the user's consent to host code are checked.
- A kernel runs only when everything in its variant key holds; else eager runs, and the miss is counted with its reason.
- Outputs carry exactly eager's sizes, strides and dtype. An entry that errs is switched off; one that declines leaves no trace.
- `uninstall()` gives everything back: forward methods, the dispatcher key, prepared buffers.
- The mode key has one owner in the process (`keys`); no other module registers anything on it.

`forge_tui.cast.load(path).install(model)` is the way in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from forge_tui.cast.runtime import Cast


def load(path: str | PathLike[str], accept_host_code: bool | None = None, rebuild: bool = False) -> Cast:
    """Open a cast for this process; see `runtime.load`. Imported late so that reading a package needs no torch."""
    from forge_tui.cast.runtime import load as load_cast

    return load_cast(path, accept_host_code, rebuild)
