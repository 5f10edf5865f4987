"""The one interface a language implements. A new language is a new module with one of these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from forge_tui.records.card import VariantKey
from forge_tui.records.plan import Plan
from forge_tui.records.problem import Problem


@dataclass(frozen=True)
class Toolchain:
    """A compiler found on this machine. target: what it will build for. runnable False: compiles, can't run here (line says why)."""

    language: str
    path: str
    version: str
    target: str
    runnable: bool = True
    line: str = ""


@dataclass(frozen=True)
class Compiled:
    """A compiled file with its resource report. flags: the command line without paths."""

    path: Path
    flags: tuple[str, ...]
    seconds: float
    report: dict[str, Any]
    cached: bool = False


class Language(Protocol):
    """Source to binary. `compile` never raises for a bad candidate: it returns the Problem."""

    @property
    def name(self) -> str: ...

    @property
    def tier(self) -> str: ...

    @property
    def suffix(self) -> str: ...

    def probe(self) -> Toolchain | Problem:
        """Find the toolchain. A missing or broken one is a machine Problem with cause and fix in one line."""
        ...

    def header(self, key: VariantKey) -> str:
        """Text of the card's generated header (sizes, strides, dtypes, scalars, symbols)."""
        ...

    def audit(self, source: str, plan: Plan, key: VariantKey) -> Problem | None:
        """Static refusal before compiling, or None."""
        ...

    async def compile(
        self, source: str, plan: Plan, key: VariantKey, toolchain: Toolchain, scratch: Path
    ) -> Compiled | Problem:
        """Compile in the sandbox into `scratch`; check the plan and imports against the binary."""
        ...
