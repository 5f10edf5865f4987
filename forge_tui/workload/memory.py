"""How much memory there is, and what to say when it is not enough.

The model process limits its own data segment to what is free: an allocation that does not fit then fails with a
message we can pass on, instead of the kernel's out-of-memory killer ending the process without one.
"""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from forge_tui.records.problem import MachineProblem

_TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|KiB|MiB|GiB)?")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, None: 1}
KEPT_FREE = 256 << 20  # bytes left to the rest of the machine


def available_bytes() -> int | None:
    """Bytes that can still be allocated: the smaller of free memory and the control group's rest. None: unknown."""
    known = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        known.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) << 10)
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        known.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(0, min(known)) if known else None


def size_text(count: float) -> str:
    """ "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let allocations fail, rather than the machine, when more than the free memory is asked for."""
    free, used = available_bytes(), _data_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if free is None or used is None:
        yield
        return
    wanted = used + max(0, free - KEPT_FREE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def memory_problem(error: BaseException, doing: str) -> MachineProblem | None:
    """The machine problem an exception stands for, or None when it isn't about memory."""
    if isinstance(error, MachineProblem):
        return error
    text = readable(error)
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not short and "can't allocate memory" not in text and "CUDA out of memory" not in text:
        return None
    match = _TRIED.search(text)
    tried = f"an allocation of {size_text(float(match[1]) * _UNITS[match[2]])} failed" if match else "memory ran out"
    free = available_bytes()
    left = "" if free is None or "CUDA" in text else f", {size_text(free)} are free"
    return MachineProblem(f"{doing}: {tried}{left}; the model is too large for this machine, use a smaller one")


def readable(error: BaseException) -> str:
    """The exception's text, even when making it fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception whose text can't be made is still an exception
        return "(no readable message)"


def require_room(needed: int, what: str) -> None:
    """Raises MachineProblem when `needed` bytes are clearly more than there is."""
    free = available_bytes()
    if free is not None and needed > free:
        raise MachineProblem(
            f"{what} needs {size_text(needed)}, {size_text(free)} are free; use a smaller model or a larger machine"
        )


def _data_bytes() -> int | None:
    """This process's data segment as RLIMIT_DATA counts it (VmData in /proc)."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmData")).split()[1]) << 10
    return None
