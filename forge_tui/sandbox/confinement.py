"""What a confined child may do: a frozen description that the launcher carries out, and builders per role.

Paths in `read` may be read and executed, paths in `write` read and written but not executed; nothing else is reachable.
No role has a network. Nothing of the caller's environment is passed on.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forge_tui.sandbox.boot import PACKAGE

ROLES = ("run", "compile", "torch run")
MEBIBYTE = 1 << 20
# System libraries and the loader's cache; what libc, libgomp and the interpreter read at start.
SYSTEM = (
    "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/ld.so.preload",
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/sys/devices/system/cpu", "/sys/devices/system/node",
    "/sys/kernel/mm/transparent_hugepage", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
    "/proc/sys/vm/overcommit_memory", "/proc/filesystems", "/nix/store",
)  # fmt: skip
TOOLS = ("/usr", "/bin", "/sbin", "/etc/alternatives")


@dataclass(frozen=True)
class Limits:
    """Hard limits of one child.

    cpu_s: processor seconds over all threads. memory_bytes: private memory per process; the whole address space, shared
    mappings included, is bounded by memory_bytes + 4 GiB. file_bytes: size of any one file it writes.
    processes: processes and threads together; counted per user outside a user namespace, not enforced for user id 0.
    """

    cpu_s: int = 60
    memory_bytes: int = 4096 * MEBIBYTE
    file_bytes: int = 64 * MEBIBYTE
    open_files: int = 256
    processes: int = 256


@dataclass(frozen=True)
class Confinement:
    """One child's rights. pass_fds: descriptors it inherits under their numbers. environment: all it gets.

    devices: device nodes it may open for reading, writing and ioctl (a GPU's).
    """

    role: str
    read: tuple[str, ...]
    write: tuple[str, ...] = ()
    pass_fds: tuple[int, ...] = ()
    limits: Limits = Limits()
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"unknown sandbox role {self.role!r}; known: {', '.join(ROLES)}")
        for path in (*self.read, *self.write, *self.devices):
            if not Path(path).is_absolute():
                raise ValueError(f"sandbox path {path!r} is not absolute")


def interpreter_paths(python: str = sys.executable) -> tuple[str, ...]:
    """What a Python of ours needs to start without site packages: the program, its real program, standard library."""
    paths = {str(Path(python)), str(Path(python).resolve())}
    if Path(python).resolve() == Path(sys.executable).resolve():
        paths |= {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        library = sysconfig.get_config_var("LIBDIR")
        name = sysconfig.get_config_var("INSTSONAME")
        if library and name and str(name).startswith("libpython"):
            paths.add(str(Path(library) / name))
        # Where the interpreter looks for its prefix: a virtual environment's marker file and its own landmarks.
        paths |= {str(Path(sys.prefix) / "pyvenv.cfg"), str(Path(sys.base_prefix) / "lib")}
    else:  # another interpreter: its installation folder, wherever its files lie inside
        home = Path(python).resolve().parent.parent
        paths |= {str(Path(python).parent.parent / "pyvenv.cfg"), str(home / "lib") if str(home) != "/" else "/lib"}
    return tuple(sorted(paths))


def run_confinement(
    read: tuple[str, ...],
    *,
    python: str = sys.executable,
    write: tuple[str, ...] = (),
    pass_fds: tuple[int, ...] = (),
    limits: Limits = Limits(),
    environment: Mapping[str, str] | None = None,
    threads: int = 1,
) -> Confinement:
    """A torch-free run worker: reads the interpreter, our package, system libraries and `read` (the one binary).

    It can fork nothing from its first instruction on; threads end with `stage2.lock_down`.
    """
    variables = _environment("/", threads) | dict(environment or {})
    paths = (*SYSTEM, *interpreter_paths(python), PACKAGE, *read)
    return Confinement("run", _absolute(paths), _absolute(write), pass_fds, limits, variables)


def torch_run_confinement(
    read: tuple[str, ...],
    torch_roots: tuple[str, ...],
    *,
    python: str = sys.executable,
    write: tuple[str, ...] = (),
    pass_fds: tuple[int, ...] = (),
    limits: Limits = Limits(memory_bytes=16384 * MEBIBYTE, open_files=1024),
    environment: Mapping[str, str] | None = None,
    threads: int = 1,
) -> Confinement:
    """A worker that loads torch too (installed-call timing): `torch_roots` are folders of the user's environment, read only."""
    variables = _environment("/", threads) | dict(environment or {})
    paths = (*SYSTEM, *TOOLS, *interpreter_paths(python), PACKAGE, *torch_roots, *read)
    return Confinement("torch run", _absolute(paths), _absolute(write), pass_fds, limits, variables)


def compile_confinement(
    scratch: Path,
    *,
    read: tuple[str, ...] = (),
    limits: Limits = Limits(cpu_s=120, file_bytes=64 * MEBIBYTE, open_files=512, processes=64),
    environment: Mapping[str, str] | None = None,
) -> Confinement:
    """A compiler: the system's tools and headers, `read` (toolchains elsewhere), writes `scratch` only."""
    variables = _environment(str(scratch), 1) | {"PATH": "/usr/local/bin:/usr/bin:/bin"} | dict(environment or {})
    return Confinement(
        "compile", _absolute((*SYSTEM, *TOOLS, *read)), _absolute((str(scratch),)), (), limits, variables
    )


def _environment(home: str, threads: int) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "false",
    }


def _absolute(paths: tuple[str, ...]) -> tuple[str, ...]:
    seen = dict.fromkeys(str(Path(p).absolute()) for p in paths if p)
    return tuple(seen)
