"""Compiler output as a person or a model needs it: the first errors with their source lines, no paths, no noise.

Also tells errors in the source from limits of the sandbox. Compiler text can quote what an include read, so it is
treated as untrusted: capped, control bytes gone (the sandbox strips them), never a reason for a verdict by itself.
"""

from __future__ import annotations

import re

from forge_tui.records.problem import Problem
from forge_tui.sandbox.child import Finished
from forge_tui.sandbox.confinement import Limits

DETAIL_LIMIT = 4000
SHOWN = 4  # errors
_FOLDER = re.compile(r"(?<![\w<.])/(?:[\w.+@-]+/)+")
_GCC = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)")
_NVCC = re.compile(r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): (?:catastrophic )?error:? ?(?:#[\w-]+: )?(?P<text>.*)")
_PTXAS = re.compile(r"^ptxas (?:(?P<file>[^\s,]+), line (?P<line>\d+); )?(?:error|fatal) *: (?P<text>.*)")
_LINK = re.compile(r"undefined reference to [`'](?P<text>[^']*)'|undefined symbol: (?P<symbol>\S+)")
_NEW_MESSAGE = re.compile(r"^(?:[^\s:]+:\d+:|[^\s(]+\(\d+\):|ptxas |In file included|nvcc |g\+\+: |collect2: )")
# Text of GCC, EDG or binutils -> what ran out.
_EXHAUSTED = (
    (re.compile(r"virtual memory exhausted|out of memory|bad_alloc|Cannot allocate memory|memory exhausted"), "memory"),
    (re.compile(r"File size limit exceeded|File too large"), "output size"),
    (re.compile(r"CPU time limit exceeded|Killed signal terminated"), "processor time"),
    (
        re.compile(r"template instantiation depth exceeds maximum[^\n]*|excessive recursion at instantiation"),
        "template depth",
    ),
    (
        re.compile(r"operation count exceeds limit|loop iteration count exceeds|evaluation depth exceeds"),
        "constexpr steps",
    ),
    (re.compile(r"nested too deeply|depth exceeds maximum"), "nesting"),
)


def limit_problem(done: Finished, limit_s: float, limits: Limits) -> Problem | None:
    """The limit that stopped a compiler, or None when none did."""
    if done.timed_out:
        return Problem("candidate", "timeout", f"compiling took longer than {limit_s:g} s and was stopped")
    if done.ended.code == 0:
        return None
    bounds = {
        "memory": f"{limits.memory_bytes >> 20} MiB",
        "output size": f"{limits.file_bytes >> 20} MiB a file",
        "processor time": f"{limits.cpu_s} s",
    }
    for pattern, what in _EXHAUSTED:
        if pattern.search(done.stderr):
            bound = f" ({bounds[what]})" if what in bounds else ""
            return Problem(
                "candidate", "resource limit", f"the compiler ran out of {what}{bound}", shorten(done.stderr)
            )
    if done.ended.signal:
        return Problem(
            "candidate", "resource limit", f"the compiler was stopped by {done.ended.line}", shorten(done.stderr)
        )
    return None


def compile_error(text: str, fallback: str) -> Problem:
    """A rejection with the first error as its line and the first few, with source lines, as its detail."""
    lines = [_FOLDER.sub("", line) for line in text.splitlines()]
    blocks: list[list[str]] = []
    first = ""
    collecting = False
    for line in lines:
        match = _GCC.match(line) or _NVCC.match(line) or _PTXAS.match(line)
        if match is not None:
            groups = match.groupdict()
            where = f"line {groups['line']}" if groups.get("line") else "ptxas"
            if groups.get("file") and not str(groups["file"]).startswith("source"):
                where = f"{groups['file']} {where}"
            first = first or f"{where}: {groups['text']}"
            blocks.append([line])
            collecting = True
        elif _NEW_MESSAGE.match(line):
            collecting = False
        elif collecting and len(blocks[-1]) < 6:
            blocks[-1].append(line)
    if not blocks:
        link = _LINK.search(text)
        if link is not None:
            first = f"undefined reference to {link['text'] or link['symbol']}"
        else:
            first = next((line.strip() for line in lines if line.strip()), fallback)
        return Problem("candidate", "compile error", first[:300], shorten(text))
    more = len(blocks) - SHOWN
    detail = "\n".join("\n".join(block) for block in blocks[:SHOWN]) + (f"\n[{more} more errors]" if more > 0 else "")
    return Problem("candidate", "compile error", first[:300], detail[:DETAIL_LIMIT])


def shorten(text: str) -> str:
    """Start of a log without folders."""
    return _FOLDER.sub("", text)[:DETAIL_LIMIT]
