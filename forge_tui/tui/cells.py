"""Text from models, compilers and users made safe for a terminal, and cut to a width in cells.

Invariant: what leaves `clean` holds no control byte, no escape sequence and no bidirectional
override, so nothing a kernel's author writes can move the cursor, recolour or reorder the screen.
Text is never read as markup anywhere in this package.
"""

from __future__ import annotations

import re

from rich.cells import cell_len, set_cell_size

Span = tuple[str, str]
"""A run of text with its role (see `palette`)."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?")
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
TAB = 4


def clean(text: str) -> str:
    """One line of plain text: escape sequences and controls gone, tabs expanded."""
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPES.sub("", text)
    return _CONTROLS.sub("", text.expandtabs(TAB) if "\t" in text else text)


def clean_lines(text: str) -> list[str]:
    """Plain lines of a longer text."""
    return [clean(line) for line in text.replace("\r\n", "\n").split("\n")]


def width_of(text: str) -> int:
    """Cells the text takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, ellipsis: str = "…") -> str:
    """The text cut to at most `width` cells; a cut is visible."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    return set_cell_size(text, width - 1).rstrip() + ellipsis if width > 1 else ellipsis


def pad(text: str, width: int, ellipsis: str = "…") -> str:
    """The text in exactly `width` cells, left-aligned."""
    text = fit(text, width, ellipsis)
    return text + " " * (width - width_of(text))


def fit_spans(spans: list[Span], width: int, ellipsis: str = "…") -> list[Span]:
    """Spans cut to at most `width` cells in all; a cut is visible wherever it falls."""
    if spans_width(spans) <= width:
        return spans
    out: list[Span] = []
    room = width - 1
    for text, role in spans:
        taken = width_of(text)
        if taken > room:
            head = set_cell_size(text, room) if room > 0 else ""
            out.append((head + ellipsis if width > 0 else "", role))
            return out
        out.append((text, role))
        room -= taken
    return out


def spans_width(spans: list[Span]) -> int:
    """Cells the spans take."""
    return sum(width_of(text) for text, _ in spans)


def wrap(text: str, width: int) -> list[str]:
    """Plain word wrap by cells; a word wider than the line is cut hard."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            while width_of(word) > width > 0:
                if line:
                    lines.append(line)
                    line = ""
                cut = _prefix(word, width)
                lines.append(word[:cut])
                word = word[cut:]
            joined = f"{line} {word}" if line else word
            if width_of(joined) > width:
                lines.append(line)
                line = word
            else:
                line = joined
        lines.append(line)
    return lines


def _prefix(text: str, width: int) -> int:
    """How many characters fit into `width` cells; at least one."""
    used = 0
    for k, char in enumerate(text):
        used += width_of(char)
        if used > width:
            return max(1, k)
    return len(text)
