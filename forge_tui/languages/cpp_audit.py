"""Static refusals for C++ that runs on the host (tier T3): in the source, and again in what the preprocessor made of it.

The second look is the one that counts (macros and token pasting have been carried out by then); the first one gives a
precise line before anything is compiled. Each rule names the threat it exists for. A refusal is never a verdict about
correctness; what these rules can't see, the import audit and the sandbox meet.
"""

from __future__ import annotations

import re

from forge_tui.languages.cleaning import Cleaned, clean, words
from forge_tui.records.problem import Problem

SOURCE_LIMIT = 512 << 10  # characters
INCLUDES = frozenset(
    [
        "card.h",
        "algorithm",
        "array",
        "bit",
        "cfloat",
        "climits",
        "cmath",
        "concepts",
        "cstddef",
        "cstdint",
        "cstdlib",
        "cstring",
        "functional",
        "initializer_list",
        "limits",
        "new",
        "numbers",
        "numeric",
        "span",
        "tuple",
        "type_traits",
        "utility",
        "vector",
        "float.h",
        "limits.h",
        "math.h",
        "stddef.h",
        "stdint.h",
        "stdlib.h",
        "string.h",
        "stdbool.h",
        "immintrin.h",
        "x86intrin.h",
        "xmmintrin.h",
        "emmintrin.h",
        "smmintrin.h",
        "arm_neon.h",
        "arm_sve.h",
        "omp.h",
    ]
)
# word -> why it is refused
WORDS = {
    "asm": "inline assembly can do anything unseen by the other checks",
    "__asm": "inline assembly can do anything unseen by the other checks",
    "__asm__": "inline assembly can do anything unseen by the other checks",
    "__has_include": "asks which files exist on this machine",
    "__has_include_next": "asks which files exist on this machine",
    "__has_embed": "asks which files exist on this machine",
    "__builtin_ia32_rdtsc": "reads the clock",
    "__builtin_ia32_rdtscp": "reads the clock",
    "__rdtsc": "reads the clock",
    "__rdtscp": "reads the clock",
    "_rdtsc": "reads the clock",
    "__builtin_return_address": "looks at the caller",
    "__builtin_frame_address": "looks at the caller",
    "__builtin_apply": "calls what can't be seen",
}
# attribute -> why (with and without the underscores around it)
ATTRIBUTES = {
    "constructor": "runs code when the library is loaded",
    "destructor": "runs code when the library is unloaded",
    "init_priority": "runs code when the library is loaded",
    "ifunc": "runs code when the library is loaded",
    "target_clones": "runs code when the library is loaded",
    "section": "places data where code is expected",
    "alias": "renames symbols",
    "weakref": "renames symbols",
    "naked": "is inline assembly in disguise",
    "optimize": "changes compiler flags, which are fixed",
    "no_sanitize": "changes compiler flags, which are fixed",
}
PRAGMAS = re.compile(
    r"^(omp\b|once$|unroll\b|STDC\b|ivdep\b|GCC\s+(unroll|ivdep|diagnostic|push_options|pop_options|target)\b|clang\s+loop\b)"
)
_ATTRIBUTE_START = re.compile(r"__attribute__|__attribute\b|\[\s*\[|<:\s*<:")
_MARKER = re.compile(r'^# (\d+) "((?:[^"\\]|\\.)*)"((?: \d)*)\s*$')


def audit_source(source: str) -> Problem | None:
    """First refusal in a source, or None."""
    if len(source) > SOURCE_LIMIT:
        return _refuse(0, f"the source has {len(source)} characters; the limit is {SOURCE_LIMIT}")
    cleaned = clean(source)
    if cleaned.long_raw:  # it could forge the line markers that `audit_preprocessed` relies on
        return _refuse(cleaned.long_raw[0], "a raw string over several lines is not needed by a kernel")
    return _directives(cleaned) or _code(cleaned)


def audit_preprocessed(text: str, own_name: str) -> Problem | None:
    """First refusal in the preprocessor's output: the lines that stem from `own_name`, and what it includes directly.

    A forged line marker can't reach this point: `audit_source` refuses marker directives and raw strings over lines.
    """
    own_lines: list[str] = []
    numbers: list[int] = []
    stack: list[str] = []
    current, number = "", 0
    for line in text.split("\n"):
        marker = _MARKER.match(line)
        if marker is None:
            if current == own_name:
                own_lines.append(line)
                numbers.append(number)
            number += 1
            continue
        entered, flags = marker[2], marker[3].split()
        if "1" in flags:
            if stack and stack[-1] == own_name:
                refused = _included(entered, number - 1)
                if refused is not None:
                    return refused
            stack.append(entered)
        elif "2" in flags and stack:
            stack.pop()
        elif not stack:
            stack.append(entered)
        current, number = entered, int(marker[1])
    cleaned = clean("\n".join(own_lines))
    mapped = Cleaned(
        cleaned.code,
        cleaned.with_literals,
        tuple(numbers[min(n, len(numbers)) - 1] if numbers else 0 for n in cleaned.lines),
    )
    return _directives(mapped) or _code(mapped)


def _included(path: str, line: int) -> Problem | None:
    """`path` as the preprocessor found it: relative ones are ours, absolute ones the system's."""
    name = path.removeprefix("./")
    if name == "card.h" or any(path.endswith("/" + allowed) for allowed in INCLUDES if allowed != "card.h"):
        return None
    if path in ("<built-in>", "<command-line>") or path.endswith("/stdc-predef.h"):
        return None
    return _refuse(line, f"includes {path.rsplit('/', 1)[-1]}, which is not on the list ({_list()})")


def _directives(cleaned: Cleaned) -> Problem | None:
    for directive in cleaned.directives():
        name, rest, line = directive.name, directive.rest, directive.line
        if name in ("include", "include_next", "import"):
            refused = _include(name, rest, line)
            if refused is not None:
                return refused
        elif name == "embed":
            return _refuse(line, "#embed reads files of this machine")
        elif name in ("line", "ident", "sccs", "assert", "unassert") or name.isdigit():
            return _refuse(line, f"#{name} is not needed by a kernel and hides where code comes from")
        elif name == "pragma" and not PRAGMAS.match(rest):
            return _refuse(
                line, f"#pragma {rest[:40]}: compiler flags and symbols are fixed; only omp, unroll and ivdep help"
            )
    return None


def _include(name: str, rest: str, line: int) -> Problem | None:
    match = re.match(r'[<"]([^>"]*)[>"]\s*$', rest)
    if match is None:
        return _refuse(line, f"#{name} {rest[:40]}: write the header's name out")
    header = match[1].strip()
    if header.startswith("/") or ".." in header.split("/"):
        return _refuse(line, f'#include "{header[:60]}" leaves the source folder')
    if name != "include" or header not in INCLUDES:
        return _refuse(line, f"#{name} <{header[:60]}> is not on the list ({_list()})")
    return None


def _code(cleaned: Cleaned) -> Problem | None:
    for word, offset in words(cleaned.code):
        if word in WORDS:
            return _refuse(cleaned.line_at(offset), f"{word} {WORDS[word]}")
    for match in _ATTRIBUTE_START.finditer(cleaned.code):
        for word, offset in words(_balanced(cleaned.code, match.end() - (2 if match[0][0] in "[<" else 0))):
            plain = word.strip("_") if word.startswith("__") else word
            if plain in ATTRIBUTES:
                return _refuse(cleaned.line_at(match.start() + offset), f"attribute {plain} {ATTRIBUTES[plain]}")
    return None


def _balanced(code: str, start: int) -> str:
    """From `start` to the end of the bracket group that opens next."""
    depth = 0
    for at in range(start, min(len(code), start + 4096)):
        if code[at] in "([":
            depth += 1
        elif code[at] in ")]":
            depth -= 1
            if depth <= 0:
                return code[start : at + 1]
    return code[start : start + 4096]


def _list() -> str:
    return "card.h, cmath, cstdint, cstring, algorithm, immintrin.h, omp.h and the like"


def _refuse(line: int, what: str) -> Problem:
    return Problem("candidate", "static audit", f"line {line}: {what}" if line else what)
