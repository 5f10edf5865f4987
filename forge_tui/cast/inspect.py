"""What a cast would do, in words, before any of it is loaded. Reads the manifest only; needs no torch."""

from __future__ import annotations

import os
import time

from forge_tui.cast.cpu import local_features, machine, missing_features
from forge_tui.cast.guards import words_for_people
from forge_tui.cast.package import Package, open_cast
from forge_tui.cast.trust import is_remembered
from forge_tui.records.manifest import CastBinary, CastEntry, Evidence
from forge_tui.records.verdict import PASSED


def describe(path: str | os.PathLike[str]) -> str:
    """Text for people: entries, guards, evidence with intervals, audit classes, binaries, hashes, warnings.

    Every member's hash was compared when this returns. Raises UserInputError for a file that is no sound cast.
    """
    package = open_cast(path)
    manifest = package.manifest
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.created_at))
    lines = [
        f"cast {plain(manifest.name)} for {plain(manifest.workload)}",
        f"  file {plain(package.path)}, sha256 {package.digest}",
        f"  format {manifest.format}, written {when}, torch {plain(manifest.torch)}, device {plain(manifest.device)}",
        f"  {len(manifest.entries)} entries, {len(package.names)} files, every hash matches",
    ]
    if manifest.synthetic:
        lines.append("  made on synthetic data: inputs or weights were not the user's real ones")
    lines += _host_code(package)
    lines += _model(manifest.model_verdict)
    for entry in manifest.entries:
        lines += _entry(entry)
    lines.append(f"this machine: {machine()}, {len(local_features()) or 'unknown'} CPU features")
    return "\n".join(lines)


def _host_code(package: Package) -> list[str]:
    host = [e for e in package.manifest.entries if e.tier == "T3"]
    if not host:
        return ["  no host code: device kernels only"]
    own = "; this file was written by you on this machine" if is_remembered(package.path, package.digest) else ""
    return [
        f"  WARNING: {len(host)} entries are native code that runs inside the process that loads them, with all its rights{own}"
    ]


def _model(verdict: dict[str, object] | None) -> list[str]:
    if not verdict:
        return ["  whole model: unknown (no accept test is recorded)"]
    timing = verdict.get("timing")
    ok = {True: "right", False: "WRONG"}.get(verdict.get("outputs_ok"), "unknown")  # type: ignore[call-overload]
    if isinstance(timing, dict) and all(isinstance(timing.get(k), (int, float)) for k in ("speedup", "low", "high")):
        speed = f"{timing['speedup']:.3f}x [{timing['low']:.3f}, {timing['high']:.3f}] against eager"
    else:
        speed = "speed unknown"
    return [
        f"  whole model: {speed}, outputs {ok}, {verdict.get('hits', '?')} of {verdict.get('calls', '?')} calls served"
    ]


def _entry(entry: CastEntry) -> list[str]:
    where = ", ".join(m or "(root)" for m in entry.modules[:3]) + (" ..." if len(entry.modules) > 3 else "")
    lines = [
        f"{plain(entry.card_id)}  {plain(entry.key.op)}  {entry.calls} calls a run in {plain(where)}",
        f"  {entry.evidence.audit_class}, by {entry.evidence.proposer}, tier {entry.tier}"
        + (", SYNTHETIC DATA" if entry.evidence.synthetic else ""),
        "  runs only when:",
    ]
    lines += [f"    {plain(line)}" for line in words_for_people(entry.key)]
    lines += _evidence(entry.evidence)
    lines.append(f"  source {plain(entry.source)} sha256 {entry.source_sha256[:16]}")
    lines += [_binary(b) for b in entry.binaries] or ["  no binary: needs a rebuild from source"]
    if entry.plan.prepare is not None:
        lines.append(f"  prepares weights once ({entry.plan.prepare.bytes} bytes a weight), again when they change")
    return lines


def _evidence(e: Evidence) -> list[str]:
    installed = "unknown" if e.installed_low is None else f"{e.installed_low:.3f}x at least"
    error = "unknown" if e.error_ratio is None else f"{e.error_ratio:.2f}x eager's own error"
    checks = [name for name, outcome in e.checks.items() if outcome != PASSED]
    passed = sum(outcome == PASSED for outcome in e.checks.values())
    rest = f"; not passed: {plain(', '.join(checks))}" if checks else ""
    return [
        f"  {e.speedup:.3f}x [{e.low:.3f}, {e.high:.3f}] over eager ({e.baseline_us:.1f} -> {e.candidate_us:.1f} us),"
        f" installed call {installed}, error {error}",
        f"  {passed} checks passed{rest}; judged on {plain(_environment(e))}",
    ]


def _environment(e: Evidence) -> str:
    parts = [f"{k} {v}" for k, v in sorted(e.environment.items()) if isinstance(v, (str, int, float)) and str(v)]
    return ", ".join(parts)[:200] or "an unnamed machine"


def _binary(binary: CastBinary) -> str:
    lacking = missing_features(binary.target)
    fits = "runs here" if not lacking else f"does NOT run here (lacks {' '.join(lacking[:6])})"
    flags = " ".join(binary.flags)
    return plain(
        f"  binary {binary.path} sha256 {binary.sha256[:16]}, {binary.toolchain}, {fits}; built for {binary.target[:120]}; {flags}"
    )


def plain(text: str) -> str:
    """Text of a stranger's manifest on one line, without control bytes."""
    return "".join(c if c.isprintable() else " " for c in text)
