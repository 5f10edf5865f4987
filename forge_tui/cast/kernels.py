"""From members of a cast to loaded kernels: choose a binary for this CPU, or rebuild it from its source.

Nothing is loaded before its hash was compared. Files are unpacked into a private folder under their hash, so a path
names one content for ever, and are compared again right before they are loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from forge_tui.cast.cpu import local_features, machine, missing_features
from forge_tui.cast.native import HEADER, cache_folder
from forge_tui.cast.package import Package
from forge_tui.records.manifest import CastBinary, CastEntry
from forge_tui.records.problem import MachineProblem, UserInputError

BUILD_LIMIT_S = 120.0
# Options a rebuild takes from a manifest; anything that names a file, a plugin or another tool is refused.
_FLAG = re.compile(
    r"-(O[0-3s]|g0|std=[a-z0-9+]+|shared|fPIC|w|pipe|pthread|fopenmp|m[a-z0-9.=-]+|f[a-z][a-z0-9=-]*|W[a-z][a-z0-9=-]*|D[A-Za-z_][A-Za-z0-9_]*(=[A-Za-z0-9_.-]*)?)",
    re.ASCII,
)
_REFUSED = ("-fplugin", "-specs", "-wrapper", "-fprofile", "-fdump", "-fuse-ld", "-Wl,", "-Wa,", "-Wp,")


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel. launch, prepare: addresses (prepare 0 for none). note: "rebuilt from source ..." or ""."""

    card_id: str
    path: str
    launch: int
    prepare: int
    note: str = ""


def choose(entry: CastEntry) -> CastBinary | str:
    """The binary that runs on this CPU, or what is missing here, both sides named."""
    wanted = []
    for binary in entry.binaries:
        lacking = missing_features(binary.target)
        if not lacking:
            return binary
        wanted.append(f"{binary.target.split()[0] if binary.target else '?'} with {' '.join(lacking[:6])}")
    if not wanted:
        return "the cast holds no binary, only source"
    have = (
        " ".join(sorted(f for f in local_features() if f.startswith(("avx", "sse", "asimd", "sve")))) or "nothing more"
    )
    return f"built for {'; '.join(wanted)}; this machine is {machine()} with {have[:200]}"


def load_kernel(package: Package, entry: CastEntry, rebuild: bool) -> Kernel:
    """Unpack, compare, load. Raises UserInputError (wrong CPU, no entry point), MachineProblem (no folder, no compiler)."""
    chosen = choose(entry)
    note = ""
    if isinstance(chosen, CastBinary):
        path = _unpack(package.read(chosen.path))
    elif not rebuild:
        raise UserInputError(
            f"{package.path}, card {entry.card_id}: {chosen}; load it with rebuild=True to compile its source here"
        )
    else:
        path = _rebuild(package, entry)
        note = f"rebuilt from source here ({chosen})"
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        launch = ctypes.cast(library.forge_launch, ctypes.c_void_p).value or 0
    except (OSError, AttributeError) as error:
        raise UserInputError(f"{package.path}, card {entry.card_id}: the kernel does not load: {error}") from None
    prepare = 0
    if entry.plan.prepare is not None:
        try:
            prepare = ctypes.cast(getattr(library, entry.plan.prepare.entry), ctypes.c_void_p).value or 0
        except AttributeError:
            raise UserInputError(
                f"{package.path}, card {entry.card_id}: the kernel has no {entry.plan.prepare.entry}"
            ) from None
    return Kernel(entry.card_id, str(path), launch, prepare, note)


def _folder() -> Path:
    folder = cache_folder() / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = folder.stat()
    except OSError as error:
        raise MachineProblem(f"no folder for kernels: {error}; set XDG_CACHE_HOME to one you can write to") from None
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise MachineProblem(f"{folder} can be written by others; fix its mode (chmod 700)")
    return folder


def _unpack(data: bytes) -> Path:
    digest = hashlib.sha256(data).hexdigest()
    target = _folder() / f"{digest}.so"
    try:
        if not target.exists() or hashlib.sha256(target.read_bytes()).hexdigest() != digest:
            handle, scratch = tempfile.mkstemp(dir=target.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(scratch).replace(target)
    except OSError as error:
        raise MachineProblem(f"unpacking a kernel into {target.parent} failed: {error}") from None
    return target


def _rebuild(package: Package, entry: CastEntry) -> Path:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise MachineProblem(f"{package.path}: card {entry.card_id} needs a rebuild, and there is no g++ on the path")
    flags = entry.binaries[0].flags if entry.binaries else ("-O3", "-march=native", "-fopenmp")
    refused = [f for f in flags if not _FLAG.fullmatch(f) or f.startswith(_REFUSED)]
    if refused:
        raise UserInputError(
            f"{package.path}: card {entry.card_id} asks for the compiler option {refused[0]!r}; refused"
        )
    native = [f for f in flags if not f.startswith(("-march=", "-mtune=", "-mcpu="))] + ["-march=native"]
    with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
        beside = entry.source.rpartition("/")[0]
        for name in package.names:  # headers of the card lie beside its source
            if name.rpartition("/")[0] == beside:
                (Path(scratch) / name.rpartition("/")[2]).write_bytes(package.read(name))
        own = Path(scratch) / HEADER.name
        if not own.exists():
            own.write_bytes(HEADER.read_bytes())
        source, output = Path(scratch) / entry.source.rpartition("/")[2], Path(scratch) / "kernel.so"
        command = [compiler, *native, "-shared", "-fPIC", f"-I{scratch}", str(source), "-o", str(output)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise MachineProblem(f"rebuilding card {entry.card_id} took longer than {BUILD_LIMIT_S:.0f} s") from None
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
            raise MachineProblem(f"rebuilding card {entry.card_id} failed: {errors[0][:300]}")
        return _unpack(output.read_bytes())
