"""CPU features of this machine against those a binary was built for."""

from __future__ import annotations

import platform
from pathlib import Path

# Compiler's name -> kernel's name where they differ by more than punctuation.
_ALIASES = {
    "sse3": "pni", "pclmul": "pclmulqdq", "rdrnd": "rdrand", "sahf": "lahflm", "lzcnt": "abm", "cx16": "cx16",
    "prfchw": "3dnowprefetch", "sha": "shani", "vpclmul": "vpclmulqdq",
}  # fmt: skip
_MACHINES = {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}
# Features that only say a register state or a tuning exists; no instruction of a kernel depends on them.
_IGNORED = frozenset({"fxsr", "sse", "sse2", "mmx", "x87", "64bit"})


def machine() -> str:
    """Instruction set family: "x86-64", "aarch64"."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


def local_features(cpuinfo: str | None = None) -> frozenset[str]:
    """Features of this CPU, lower case without punctuation; empty when the system does not say."""
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text()
        except OSError:
            return frozenset()
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(_plain(f) for f in value.split())
    return frozenset()


def missing_features(target: str, family: str | None = None, local: frozenset[str] | None = None) -> tuple[str, ...]:
    """What `target` ("x86-64 avx2 avx512f ...") needs and this machine lacks; the family itself when that differs."""
    wanted = target.split()
    if not wanted:
        return ("a named target",)
    family = machine() if family is None else family
    if wanted[0].lower() != family:
        return (wanted[0],)
    have = local_features() if local is None else local
    lacking = []
    for feature in wanted[1:]:
        plain = _plain(feature)
        if plain not in _IGNORED and plain not in have and _plain(_ALIASES.get(plain, plain)) not in have:
            lacking.append(feature)
    return tuple(lacking)


def _plain(feature: str) -> str:
    return "".join(c for c in feature.lower() if c.isalnum())
