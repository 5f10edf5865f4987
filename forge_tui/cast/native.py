"""The C++ tier: builds native/hooks.cpp once per torch version and drives it through ctypes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge_tui.cast.backend import Counters, EntrySpec
from forge_tui.cast.encode import as_array, encode
from forge_tui.cast.states import REASONS
from forge_tui.cast.torch_build import cached_library
from forge_tui.cast.words import CannotGuard

HERE = Path(__file__).resolve().parent
SOURCES = tuple(HERE / "native" / name for name in ("hooks.cpp", "table.h", "entry.h", "view.h", "typed.h"))
HEADER = HERE.parent / "languages" / "forge_abi.h"


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/forge_tui, else ~/.cache/forge_tui."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forge_tui"


def build() -> Path | str:
    """The hook library for this torch, built when it isn't cached (10 to 20 s), or the reason why not."""
    if os.environ.get("FORGE_CAST_TIER") == "python":
        return "FORGE_CAST_TIER=python"
    try:
        return cached_library((*SOURCES, HEADER), "hooks", cache_folder() / "native")
    except OSError as error:
        return f"the build cache can't be used: {error.strerror or error}"


class NativeHooks:
    """Backend over the hook library. See `backend.Backend`."""

    tier = "C++ hooks"

    def __init__(self, library: Path) -> None:
        """Load the library. Raises OSError when it doesn't fit this torch."""
        self._lib = lib = ctypes.CDLL(str(library))
        lib.forge_error.restype = ctypes.c_char_p
        lib.forge_open.restype = lib.forge_table.restype = lib.forge_reasons.restype = ctypes.c_int64
        lib.forge_open.argtypes = [ctypes.c_char_p]
        lib.forge_close.restype = None
        lib.forge_entry.restype = ctypes.c_void_p
        lib.forge_entry.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_int64]
        lib.forge_table.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64]
        lib.forge_counters.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]
        lib.forge_retire.argtypes = [ctypes.c_void_p]
        lib.forge_reasons.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64)]
        lib.forge_diagnose.argtypes = [ctypes.c_int64]
        lib.forge_reason_names.restype = ctypes.c_char_p
        # PyDLL: switching a thread's casts is nanoseconds, giving up the interpreter lock for it is not.
        self._switch = ctypes.PyDLL(str(library)).forge_switch
        self._switch.restype = ctypes.c_uint64
        self._switch.argtypes = [ctypes.c_uint64, ctypes.c_uint64]

    def reason_names(self) -> tuple[str, ...]:
        """Names in the library's own order."""
        return tuple(self._lib.forge_reason_names().decode().split())

    def open(self, key_name: str) -> None:
        if self._lib.forge_open(key_name.encode()) != 0:
            raise RuntimeError(self._message())

    def close(self) -> None:
        self._lib.forge_close()

    def add(self, spec: EntrySpec, cast_bit: int) -> Any:
        values = encode(spec.key, spec.plan, spec.row, spec.schema, spec.returns, spec.launch, spec.prepare, cast_bit)
        handle = self._lib.forge_entry(as_array(values), len(values))
        if not handle:
            raise CannotGuard(f"{spec.key.op}: the entry does not fit the hook library")
        return handle

    def publish(self, op: str, handles: Sequence[Any]) -> str:
        pointers = (ctypes.c_void_p * max(1, len(handles)))(*handles)
        kind = self._lib.forge_table(op.encode(), pointers, len(handles))
        if kind < 0:
            raise CannotGuard(f"{op} can't be hooked: {self._message()}")
        return ("none", "typed", "generic")[kind]

    def retire(self, handle: Any) -> None:
        self._lib.forge_retire(handle)

    def switch(self, out: int, into: int) -> int:
        return int(self._switch(out, into))

    def diagnose(self, on: bool) -> None:
        self._lib.forge_diagnose(int(on))

    def counters(self, handle: Any) -> Counters:
        out = (ctypes.c_uint64 * 6)()
        self._lib.forge_counters(handle, out)
        return Counters(out[0], out[1], out[2], out[3], out[4], bool(out[5]))

    def reasons(self, op: str) -> dict[str, int]:
        out = (ctypes.c_uint64 * len(REASONS))()
        count = self._lib.forge_reasons(op.encode(), out)
        return dict(zip(REASONS, out, strict=True)) if count else {}

    def _message(self) -> str:
        return " ".join(self._lib.forge_error().decode("utf-8", "replace").split())[:300]
