"""What a tier of hooks must offer; the owner of the key drives it without knowing which it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forge_tui.cast.guards import GuardRow
from forge_tui.cast.words import Parameter
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import Plan


@dataclass(frozen=True)
class EntrySpec:
    """One kernel ready to be hooked. launch, prepare: addresses of its C entries in this process (prepare 0 for none)."""

    card_id: str
    key: VariantKey
    plan: Plan
    row: GuardRow
    schema: tuple[Parameter, ...]
    returns: tuple[str, ...]
    launch: int
    prepare: int


@dataclass(frozen=True)
class Counters:
    """Since the entry was installed. prepared: buffers built for weights; prepared_bytes: held now."""

    hits: int = 0
    declined: int = 0
    errors: int = 0
    prepared: int = 0
    prepared_bytes: int = 0
    enabled: bool = True


class Backend(Protocol):
    """One tier. Handles are opaque; a handle stays readable after it was retired."""

    tier: str

    def open(self, key_name: str) -> None:
        """Take the mode key and prove with a canary that a hook on it runs. Raises RuntimeError with the reason."""

    def close(self) -> None:
        """Give the key back; torch's dispatch tables are as before."""

    def add(self, spec: EntrySpec, cast_bit: int) -> Any:
        """Make an entry. Raises CannotGuard when this tier can't hold it."""

    def publish(self, op: str, handles: Sequence[Any]) -> str:
        """Put exactly these entries behind the operator's hook (none removes it); which kind of hook that is."""

    def retire(self, handle: Any) -> None:
        """Switch an entry off and drop its prepared buffers."""

    def switch(self, out: int, into: int) -> int:
        """Take casts (bit sets) out of this thread's active ones, then put some in; returns the set before."""

    def diagnose(self, on: bool) -> None:
        """Whether misses are told apart by reason (slower)."""

    def counters(self, handle: Any) -> Counters:
        """Counts of one entry."""

    def reasons(self, op: str) -> dict[str, int]:
        """Calls of a hooked operator that were not served, by reason, since the hook exists."""
