"""Static refusals for device-only CUDA: what reads files or names a host, with words that help a proposer.

Device code runs behind the driver, and host code in the file is not compiled at all, so this list is short: inline PTX,
atomics and the like are legitimate. What reads the machine at compile time is refused and, besides, out of reach in
the sandbox.
"""

from __future__ import annotations

import re

from forge_tui.languages.cleaning import clean, words
from forge_tui.languages.cpp_audit import SOURCE_LIMIT
from forge_tui.records.problem import Problem

HEADERS = re.compile(
    r"^(card\.h|cuda_(fp16|bf16|fp8|fp6|fp4|pipeline|pipeline_primitives|awbarrier|awbarrier_primitives|runtime)\.h|mma\.h"
    r"|cuda\.h|math_constants\.h|cooperative_groups\.h|cooperative_groups/[\w/]+\.h|cub/[\w/]+\.cuh|cuda/[\w/]+"
    r"|(math|float|limits|stdint|stddef|string)\.h|c(math|float|limits|stdint|stddef|string)|limits|type_traits|utility)$"
)
WORDS = {
    "__has_include": "asks which files exist on this machine",
    "__has_include_next": "asks which files exist on this machine",
    "__has_embed": "asks which files exist on this machine",
    "torch": "is not available: device code only, the launch belongs in the plan",
    "cudaMalloc": "is host code: ask for workspace in the plan",
    "cudaMemcpy": "is host code: the plan's steps are all that runs on the host",
    "cudaLaunchKernel": "is host code: the launch belongs in the plan",
    "PYBIND11_MODULE": "is host code: the launch belongs in the plan",
    "main": "is host code: the launch belongs in the plan",
}


def audit_device_source(source: str) -> Problem | None:
    """First refusal in a device source, or None."""
    if len(source) > SOURCE_LIMIT:
        return _refuse(0, f"the source has {len(source)} characters; the limit is {SOURCE_LIMIT}")
    cleaned = clean(source)
    for directive in cleaned.directives():
        if directive.name == "embed":
            return _refuse(directive.line, "#embed reads files of this machine")
        if directive.name in ("include", "include_next", "import"):
            match = re.match(r'[<"]([^>"]*)[>"]\s*$', directive.rest)
            if match is None:
                return _refuse(directive.line, f"#{directive.name} {directive.rest[:40]}: write the header's name out")
            header = match[1].strip()
            if ".." in header or directive.name != "include" or not HEADERS.match(header):
                return _refuse(
                    directive.line, f"#{directive.name} <{header[:60]}> is not on the list of CUDA's device headers"
                )
    launch = cleaned.code.find("<<<")
    if launch >= 0:
        return _refuse(cleaned.line_at(launch), "<<<...>>> launches from the host: the launch belongs in the plan")
    for word, offset in words(cleaned.code):
        if word in WORDS:
            return _refuse(cleaned.line_at(offset), f"{word} {WORDS[word]}")
    if "__global__" not in cleaned.code:
        return _refuse(0, 'the source has no kernel: declare one as extern "C" __global__ void name(...)')
    return None


def _refuse(line: int, what: str) -> Problem:
    return Problem("candidate", "static audit", f"line {line}: {what}" if line else what)
