"""Plain-text tables and numbers for the terminal. A missing number reads "unknown"."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from forge_tui.records.codec import to_json

UNKNOWN = "unknown"


def number(value: float | None, form: str = "{:.2f}", missing: str = UNKNOWN) -> str:
    """A number in a format, or "unknown"."""
    return missing if value is None else form.format(value)


def interval(speedup: float | None, low: float | None, high: float | None, provisional: bool = False) -> str:
    """A speed-up with its interval; "~" while it is provisional."""
    if speedup is None:
        return UNKNOWN
    mark = "~" if provisional else ""
    if low is None or high is None:
        return f"{mark}{speedup:.2f}x"
    return f"{mark}{speedup:.2f}x [{low:.2f}, {high:.2f}]"


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f}%"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns as wide as their widest cell; `right` names the columns that align right."""
    cells = [list(head), *[[str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for number_, row in enumerate(cells):
        line = "  ".join(
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(line.rstrip())
        if number_ == 0:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines)


def plain(text: str) -> str:
    """Text that came from a candidate, a compiler or a model, safe for a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(to_json(value), indent=1, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """Narration: stderr, one line."""
    print(text, file=sys.stderr, flush=True)
