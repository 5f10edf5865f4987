"""An installed cast: its counters, its one-line summary, and the way back."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from forge_tui.cast.guards import words_for_people
from forge_tui.cast.owner import Attachment, owner
from forge_tui.cast.states import EAGER_HOOKS, REASONS, STATES
from forge_tui.cast.wrap import Wrapped, off, unwrap, wrap
from forge_tui.records.manifest import CastEntry, CastManifest
from forge_tui.records.problem import UserInputError


@dataclass(frozen=True)
class EntryReport:
    """One entry. hook: "typed", "generic", "python", or "" when it is not hooked (reason says why)."""

    card_id: str
    op: str
    hook: str
    hits: int
    declined: int
    errors: int
    enabled: bool
    prepared_bytes: int
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """State of an installed cast. misses: operator -> reason -> calls that ran eager, since it was installed."""

    name: str
    way: str
    tier: str
    tier_reason: str
    key: str
    entries: tuple[EntryReport, ...]
    misses: dict[str, dict[str, int]]
    notes: tuple[str, ...]

    @property
    def hits(self) -> int:
        return sum(e.hits for e in self.entries)

    @property
    def missed(self) -> int:
        return sum(n for by_reason in self.misses.values() for n in by_reason.values())

    def __str__(self) -> str:
        lines = [summary_line(self)]
        lines += [f"  {note}" for note in self.notes]
        for e in self.entries:
            state = f"{e.hits} served" + (f", {e.declined} declined" if e.declined else "")
            lines.append(
                f"  {e.card_id} {e.op}: {state if e.hook else 'not hooked: ' + e.reason}"
                + (", switched off after an error" if e.errors else "")
            )
        for op, by_reason in sorted(self.misses.items()):
            lines += [
                f"  {op} ran eager {n} times: {REASONS[r]}" for r, n in sorted(by_reason.items(), key=lambda i: -i[1])
            ]
        return "\n".join(lines)


class Installed:
    """Made by `Cast.install`. Counters stay readable after `uninstall`."""

    def __init__(
        self,
        manifest: CastManifest,
        attachment: Attachment | None,
        declined: Mapping[str, str],
        notes: tuple[str, ...],
        modules: Mapping[str, torch.nn.Module],
        strict: bool,
        quiet: bool,
    ) -> None:
        self.manifest = manifest
        self._attachment = attachment
        self._declined = {**declined, **(attachment.declined if attachment else {})}
        self._notes = notes
        self._strict, self._quiet = strict, quiet
        self._closed = self._paused = False
        self._final: dict[str, dict[str, int]] = {}
        self._lock = threading.Lock()
        self._first = bool(modules)
        if self._first:
            owner().diagnose(True)
        unique = {id(m): m for m in modules.values()}
        self._wrapped: list[Wrapped] = [wrap(m, self) for m in unique.values()] if attachment else []
        if attachment is None and self._first:
            self._summarise(False)

    @property
    def closed(self) -> bool:
        """True after uninstall."""
        return self._closed

    @property
    def paused_now(self) -> bool:
        """True inside `paused()`."""
        return self._paused

    @property
    def tier(self) -> str:
        """Which hooks run: "C++ hooks", "Python hooks", or "off"."""
        return self._attachment.tier if self._attachment else "off"

    def enter(self) -> int:
        """Cast on in this thread; give the result to `leave`."""
        return owner().switch(self._attachment, True) if self._attachment else 0

    def leave(self, before: int, failed: bool = False) -> None:
        """Cast as it was before `enter`. The first finished forward gives the summary; strict raises UserInputError there."""
        if self._attachment is not None:
            owner().restore(self._attachment, before)
        if self._first and not before and not failed:
            self._summarise(True)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """On in this thread for the block, for callables that no installed module's forward encloses."""
        if self.closed or self._attachment is None:
            yield
            return
        before = owner().switch(self._attachment, True)
        try:
            yield
        finally:
            owner().restore(self._attachment, before)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Off for the block, in every thread: modules have their own forward again, entries and buffers stay."""
        self._paused = True
        before = owner().switch(self._attachment, False) if self._attachment else 0
        try:
            with off(self._wrapped):
                yield
        finally:
            self._paused = False
            if self._attachment is not None:
                owner().restore(self._attachment, before)

    def report(self) -> Report:
        """Tier and why, hits per entry, misses per operator and reason, what is not hooked and why."""
        counted = {h.spec.card_id: (h, c) for h, c in (owner().counters(self._attachment) if self._attachment else [])}
        entries = []
        for entry in self.manifest.entries:
            found = counted.get(entry.card_id)
            if found is None:
                reason = self._declined.get(entry.card_id, "the cast is off")
                entries.append(EntryReport(entry.card_id, entry.key.op, "", 0, 0, 0, False, 0, reason))
                continue
            hooked, c = found
            entries.append(
                EntryReport(
                    entry.card_id, entry.key.op, hooked.hook, c.hits, c.declined, c.errors, c.enabled, c.prepared_bytes
                )
            )
        misses = self._final if self._closed or not self._attachment else owner().reasons(self._attachment)
        a = self._attachment
        return Report(
            self.manifest.name, EAGER_HOOKS, self.tier, a.tier_reason if a else "; ".join(self._notes),
            a.key_name if a else "", tuple(entries), {op: r for op, r in misses.items() if r}, self._notes,
        )  # fmt: skip

    def explain(self, op: str = "") -> str:
        """Guards, counts and reasons of the entries of one operator ("softmax" or "aten::softmax.int"), or of all."""
        report = self.report()
        rows = {e.card_id: e for e in report.entries}
        wanted: list[CastEntry] = [e for e in self.manifest.entries if op in ("", e.key.op, e.key.base_op)]
        if not wanted:
            known = ", ".join(sorted({e.key.op for e in self.manifest.entries}))
            return f"no entry for {op}; this cast has {known}"
        lines = [summary_line(report)]
        for entry in wanted:
            row = rows[entry.card_id]
            state = f"{row.hits} served, {row.declined} declined" if row.hook else f"not hooked: {row.reason}"
            lines.append(f"{entry.card_id} {entry.key.op} ({state})")
            lines += [f"    {line}" for line in words_for_people(entry.key)]
        for name in sorted({e.key.op for e in wanted}):
            for reason, count in sorted(report.misses.get(name, {}).items(), key=lambda i: -i[1]):
                lines.append(f"{name} ran eager {count} times: {REASONS[reason]}")
        lines.append("runs eager under: " + "; ".join(s.name for s in STATES if not s.served))
        return "\n".join(lines)

    def uninstall(self) -> None:
        """Give everything back: forwards, hooks, prepared buffers, and with the last cast the key. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for wrapped in reversed(self._wrapped):
            unwrap(wrapped)
        if self._first:
            self._first = False
            owner().diagnose(False)
        if self._attachment is not None:
            self._final = owner().reasons(self._attachment)
            owner().detach(self._attachment)

    def _summarise(self, raise_when_strict: bool) -> None:
        with self._lock:
            if not self._first:
                return
            self._first = False
        owner().diagnose(False)
        report = self.report()
        if not self._quiet:
            say(summary_line(report))
        if self._strict and raise_when_strict and report.hits == 0:
            raise UserInputError(f"{summary_line(report)}; strict mode asks for at least one served call")


def summary_line(report: Report) -> str:
    """One line: served x of y calls, tier, and the top reason when some ran eager."""
    if report.tier == "off":
        why = report.tier_reason or next((e.reason for e in report.entries if e.reason), "no entries")
        return f"forge_tui cast {report.name}: not running ({why})"
    tier = report.tier + (f": {report.tier_reason}" if report.tier != "C++ hooks" else "")
    if report.missed == 0:
        unhooked = sum(not e.hook for e in report.entries)
        more = f"; {unhooked} entries not hooked" if unhooked else ""
        return f"forge_tui cast {report.name}: served {report.hits} of {report.hits} matching calls ({tier}){more}"
    totals: dict[str, int] = {}
    for by_reason in report.misses.values():
        for reason, count in by_reason.items():
            totals[reason] = totals.get(reason, 0) + count
    top = max(totals, key=lambda r: totals[r])
    total = report.hits + report.missed
    return f"forge_tui cast {report.name}: served {report.hits} of {total} calls of its operators ({tier}); most others: {REASONS[top]} ({totals[top]})"


def say(line: str) -> None:
    """Tell the user: through logging where that shows such lines, else on stderr."""
    logger = logging.getLogger("forge_tui.cast")
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info(line)
    else:
        print(line, file=sys.stderr)
