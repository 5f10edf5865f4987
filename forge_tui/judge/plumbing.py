"""The plumbing library: built once by the judge, loaded by the run worker with the standard library alone.

Invariants: nothing here imports torch; the worker never compiles; a library file's name carries the hash of its
source, so a stale one is never loaded. The structures mirror `languages/forge_abi.h` and `plumbing.cpp`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from forge_tui.records.dtype import DTYPES
from forge_tui.records.problem import MachineProblem

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "plumbing.cpp"
HEADER_DIR = HERE.parent / "languages"
MAX_INPUTS, MAX_OUTPUTS = 256, 64  # fixed arrays of plumbing.cpp
NO_MEMORY = -1000001
STATUS_BYTES = 32  # forge_status: signal, address, phase, call


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


class _Value(ctypes.Union):
    _fields_ = [
        ("i", ctypes.c_int64),
        ("d", ctypes.c_double),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("doubles", ctypes.POINTER(ctypes.c_double)),
        ("text", ctypes.c_char_p),
    ]


class Scalar(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("v", _Value)]


class Loop(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("n_sets", "n_slots", "n_inputs", "n_outputs", "n_scalars")),
        *((name, ctypes.c_int32) for name in ("n_mutated", "threads", "zeroed")),
        ("inputs", ctypes.POINTER(Tensor)),
        ("outputs", ctypes.POINTER(Tensor)),
        ("output_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("scalars", ctypes.POINTER(Scalar)),
        ("mutated", ctypes.POINTER(ctypes.c_int32)),
        ("mutated_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("slots", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_int64) for name in ("workspace_bytes", "workspace_alignment", "prepared_bytes")),
        ("launch", ctypes.c_void_p),
        ("prepare", ctypes.c_void_p),
    ]


def build(cache: Path, limit_s: float = 60.0) -> Path:
    """The library's path, compiled when its source is new. Raises MachineProblem when there is no working compiler."""
    header = HEADER_DIR / "forge_abi.h"
    digest = hashlib.sha256(SOURCE.read_bytes() + header.read_bytes()).hexdigest()[:12]
    target = cache / f"plumbing-{platform.machine()}-{digest}.so"
    if target.exists():
        return target
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise MachineProblem("no C++ compiler (g++) on the path; the judge needs one for its timing loop: install g++")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        output = Path(scratch) / "plumbing.so"
        command = [compiler, "-O2", "-std=c++17", "-fPIC", "-shared", f"-I{HEADER_DIR}", str(SOURCE), "-o", str(output)]
        try:
            done = subprocess.run([*command, "-ldl"], capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise MachineProblem(f"compiling the timing loop took longer than {limit_s:.0f} s") from None
        if done.returncode:
            first = (done.stderr.splitlines() or ["no message"])[0]
            raise MachineProblem(f"the timing loop does not compile with {compiler}: {first[:200]}")
        output.replace(target)
    return target


def load(path: str) -> ctypes.CDLL:
    """Bind the library's functions. Raises OSError when the file can't be loaded."""
    library = ctypes.CDLL(path)
    loop, pointer, integer = ctypes.POINTER(Loop), ctypes.c_void_p, ctypes.c_int
    library.forge_watch_signals.argtypes = [pointer]
    library.forge_warm_openmp.argtypes = [ctypes.c_char_p, integer]
    library.forge_once.argtypes = [loop, integer, integer, pointer, pointer]
    library.forge_batch.argtypes = [
        loop, integer, integer, integer, integer, ctypes.POINTER(pointer), ctypes.POINTER(pointer),
        ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64),
    ]  # fmt: skip
    return library


def number(value: Any) -> Any:
    """A recorded scalar; infinities and NaN are recorded as text because JSON has none."""
    return float(value) if isinstance(value, str) else value


def int64s(values: tuple[int, ...] | list[int]) -> Any:
    """A C array of 64-bit integers; the caller keeps it alive."""
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def tensor(address: int, sizes: list[int], strides: list[int], dtype: str, keep: list[Any]) -> Tensor:
    """A forge_tensor at `address`; its size arrays are appended to `keep`."""
    first, second = int64s(sizes), int64s(strides)
    keep += [first, second]
    return Tensor(
        address,
        ctypes.cast(first, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(second, ctypes.POINTER(ctypes.c_int64)),
        len(sizes),
        DTYPES[dtype][0],
    )


# forge_scalar_kind by argument kind of the card; "number" carries [dtype, value].
def scalar(kind: str, value: Any, keep: list[Any]) -> Scalar:
    """A forge_scalar for one non-tensor argument. Raises ValueError for a kind the C ABI does not carry."""
    if kind == "number":
        value = number(value[1])
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    if kind == "none" or value is None:
        return Scalar(0, 0)
    if kind == "dtype":
        return Scalar(1, 1, _Value(i=DTYPES[str(value)][0]))
    if kind == "int":
        return Scalar(1, 1, _Value(i=int(value)))
    if kind == "float":
        return Scalar(2, 1, _Value(d=float(value)))
    if kind == "bool":
        return Scalar(3, 1, _Value(i=int(value)))
    if kind in ("int_list", "bool_list"):
        ints = int64s([int(v) for v in value])
        keep.append(ints)
        return Scalar(4, len(value), _Value(ints=ctypes.cast(ints, ctypes.POINTER(ctypes.c_int64))))
    if kind == "float_list":
        doubles = (ctypes.c_double * max(1, len(value)))(*(float(v) for v in value))
        keep.append(doubles)
        return Scalar(5, len(value), _Value(doubles=ctypes.cast(doubles, ctypes.POINTER(ctypes.c_double))))
    if kind in ("str", "device", "layout", "memory_format"):
        text = str(value).encode()
        keep.append(text)
        return Scalar(6, len(text), _Value(text=text))
    raise ValueError(f"argument kind {kind!r} has no place in the C ABI")
