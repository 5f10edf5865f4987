"""Shipping: champions into a cast, and the whole model measured with it."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from forge_tui.cast.package import write_cast
from forge_tui.cast.trust import remember
from forge_tui.engine.cardstate import CardSearch, Node
from forge_tui.engine.services import Services
from forge_tui.languages.registry import language
from forge_tui.records.candidate import Binary
from forge_tui.records.codec import to_json
from forge_tui.records.manifest import FORMAT, CastBinary, CastEntry, CastManifest, Evidence
from forge_tui.records.problem import UserInputError
from forge_tui.records.verdict import Verdict
from forge_tui.records.workload import Loaded, ModelVerdict


def champions(services: Services) -> list[tuple[CardSearch, Node]]:
    """Every card's champion, largest share first."""
    found = [(cs, cs.champion) for cs in services.cards.values()]
    kept = [(cs, node) for cs, node in found if node is not None and node.binary is not None]
    return sorted(kept, key=lambda pair: -(pair[0].card.share or 0.0))


def build_cast(
    services: Services, loaded: Loaded | None, path: Path, verdict: ModelVerdict | None = None
) -> CastManifest:
    """Write the champions into a cast at `path`. Blocking. Raises UserInputError when there is none."""
    winners = champions(services)
    if not winners:
        raise UserInputError("there is no confirmed champion yet, so there is nothing to export; let the search go on")
    entries: list[CastEntry] = []
    members: dict[str, bytes] = {}
    for cs, node in winners:
        if node.binary is None or node.confirmation is None:
            continue
        entry, files = _entry(services, cs, node, node.binary, node.confirmation)
        entries.append(entry)
        members |= files
    name = loaded.name if loaded else services.session.name
    environment = services.environment
    manifest = CastManifest(
        FORMAT, services.session.name, name, time.time(), environment.get("torch", "unknown"), services.options.device, tuple(entries),
        any(cs.card.synthetic for cs, _ in winners) or bool(loaded and loaded.synthetic), to_json(verdict) if verdict else None,
    )  # fmt: skip
    remember(write_cast(path, manifest, members))  # written here by this user, so it installs here without asking
    return manifest


def _entry(
    services: Services, cs: CardSearch, node: Node, binary: Binary, verdict: Verdict
) -> tuple[CastEntry, dict[str, bytes]]:
    card, candidate = cs.card, node.candidate
    lang = language(candidate.language)
    base = f"entries/{card.card_id}"
    source_text = candidate.source.encode()
    source, header, built = f"{base}/source{lang.suffix}", f"{base}/card.h", f"{base}/{binary.digest[:16]}.bin"
    files = {source: source_text, header: lang.header(card.key).encode(), built: services.store.blobs.read(binary.blob)}
    timing = verdict.timing
    if timing is None:
        raise UserInputError(f"the champion of {card.title} has no confirmed time; confirm it again")
    ratios = [e.ratio for e in verdict.errors if e.ratio is not None]
    evidence = Evidence(
        timing.speedup, timing.low, timing.high, timing.baseline_us, timing.candidate_us,
        verdict.installed.low if verdict.installed else None, max(ratios, default=None), candidate.candidate_id, candidate.proposer,
        candidate.audit_class, card.synthetic, dict(verdict.environment or {}), {c.name: c.outcome for c in verdict.checks},
    )  # fmt: skip
    compiled = CastBinary(built, binary.digest, binary.language, binary.target, binary.flags, binary.toolchain)
    entry = CastEntry(
        card.card_id, card.key, candidate.plan, source, hashlib.sha256(source_text).hexdigest(), (compiled,), evidence, card.calls,
        card.modules, candidate.tier,
    )  # fmt: skip
    return entry, files


def expected_calls(services: Services) -> dict[str, int]:
    """Matching calls per run of the model that the cast's entries should serve."""
    return {cs.card.card_id: cs.card.calls for cs, _ in champions(services)}


def _outcome(cs: CardSearch, node: Node | None) -> str:
    """How the card ended, in a few words, where it has no champion."""
    if node is not None:
        return "champion"
    if not cs.nodes:
        return f"not tried: {cs.done}" if cs.done else "not tried"
    if any(n.verdict is None for n in cs.nodes.values()):
        return "not judged"
    promising = cs.to_confirm() or next(
        (
            n
            for n in cs.nodes.values()
            if n.confirmation is None
            and n.best is not None
            and n.best.timing is not None
            and n.best.timing.verdict == "faster"
        ),
        None,
    )
    return "not confirmed" if promising is not None else "no gain"


def summary(services: Services, verdict: ModelVerdict | None) -> dict[str, Any]:
    """The run's result as plain data: what the table and `--json` print."""
    rows = []
    for cs in sorted(services.cards.values(), key=lambda c: -(c.card.share or 0.0)):
        node = cs.champion
        best = node.confirmation if node else None
        timing = best.timing if best else None
        rows.append(
            {
                "card": cs.card.card_id,
                "title": cs.card.title,
                "calls": cs.card.calls,
                "share": cs.card.share,
                "candidates": len(cs.nodes),
                "rejected": sum(1 for n in cs.nodes.values() if n.failed),
                "champion": node.candidate.candidate_id if node else None,
                "audit_class": node.candidate.audit_class if node else None,
                "eager_us": timing.baseline_us if timing else (cs.ready.eager_us if cs.ready else None),
                "champion_us": timing.candidate_us if timing else None,
                "speedup": timing.speedup if timing else None,
                "low": timing.low if timing else None,
                "high": timing.high if timing else None,
                "installed_low": best.installed.low if best and best.installed else None,
                "state": cs.done or "open",
                "outcome": _outcome(cs, node),
            }
        )
    return {"session": str(services.session.path), "cards": rows, "model": to_json(verdict) if verdict else None}
