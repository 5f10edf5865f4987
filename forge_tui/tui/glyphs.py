"""Every symbol the screen draws, with its ASCII stand-in, so that no pane picks its own.

States are told by glyph and word; colour only repeats them. Block glyphs, no braille, no emoji:
those are the ones that fonts and terminals misalign.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Glyphs:
    """One set of symbols. eighths: a bar cell filled 0/8..8/8. steps: histogram heights 0..8. Guides are two cells."""

    states: dict[str, str]
    eighths: str
    steps: str
    bar_left: str
    bar_right: str
    branch: str
    last: str
    pipe: str
    blank: str
    folded: str
    unfolded: str
    rule: str
    separator: str
    edge: str
    ellipsis: str
    dot: str
    arrow: str
    cursor: str
    pin: str
    mark: str
    micro: str
    plus_minus: str
    play: str
    pause: str
    passed: str
    failed: str
    unknown: str
    enter: str


UNICODE = Glyphs(
    states={
        "baseline": "●", "queued": "◌", "running": "◌", "repair": "⟳", "correct": "✓", "champion": "★", "rejected": "✗",
        "pruned": "⊘", "unknown": "?", "problem": "!", "waiting": "·", "tie": "=", "done": "✓", "refused": "⊘",
        "undiscriminating": "?", "paused": "⏸", "stopping": "■", "finished": "✓", "interrupted": "?", "elsewhere": "◌",
    },
    eighths=" ▏▎▍▌▋▊▉█", steps=" ▁▂▃▄▅▆▇█", bar_left="▏", bar_right="▕", branch="├─", last="└─", pipe="│ ", blank="  ",
    folded="▸", unfolded="▾", rule="─", separator="│", edge="▌", ellipsis="…", dot="·", arrow="→", cursor="▌", pin="◆",
    mark="◇", micro="µ", plus_minus="±", play="▶", pause="⏸", passed="✓", failed="✗", unknown="?", enter="⏎",
)  # fmt: skip

ASCII = Glyphs(
    states={
        "baseline": "B", "queued": ".", "running": ".", "repair": "r", "correct": "+", "champion": "*", "rejected": "x",
        "pruned": "-", "unknown": "?", "problem": "!", "waiting": ".", "tie": "=", "done": "+", "refused": "-",
        "undiscriminating": "?", "paused": "|", "stopping": "#", "finished": "+", "interrupted": "?", "elsewhere": ".",
    },
    eighths="    :####", steps=" ..::##@@", bar_left="[", bar_right="]", branch="|-", last="`-", pipe="| ", blank="  ",
    folded=">", unfolded="v", rule="-", separator="|", edge="#", ellipsis="~", dot="-", arrow=">", cursor=">", pin="P",
    mark="M", micro="u", plus_minus="+-", play=">", pause="|", passed="+", failed="x", unknown="?", enter="enter",
)  # fmt: skip


class _PlainLetters(dict[int, str]):
    """Signs in data (a judge's "±", a model's name) that an ASCII terminal can't show, cell for cell."""

    def __missing__(self, code: int) -> str:
        found = "?" if code > 0x7F else chr(code)
        self[code] = found
        return found


PLAIN_LETTERS = _PlainLetters(
    {ord(sign): plain for sign, plain in zip("µ±×…·→←−–—≤≥“”‘’★✓✗", "u~x~->.---<>\"\"''*+x", strict=False)}
)


def bar(glyphs: Glyphs, fraction: float | None, width: int) -> str:
    """A horizontal bar of `width` cells, exact to an eighth of a cell; a missing fraction is an empty bar."""
    if fraction is None:
        return " " * width
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    full, rest = divmod(eighths, 8)
    return (glyphs.eighths[8] * full + (glyphs.eighths[rest] if rest else "")).ljust(width)[:width]


def histogram(glyphs: Glyphs, values: list[float], width: int) -> str:
    """Counts of `values` in `width` equal bins between their smallest and largest, one block glyph a bin.

    A bin that holds anything is never drawn empty.
    """
    if not values or width < 1:
        return ""
    low, high = min(values), max(values)
    counts = [0] * width
    for value in values:
        counts[min(width - 1, int((value - low) / (high - low) * width)) if high > low else width // 2] += 1
    top = max(counts)
    return "".join(glyphs.steps[max(1, round(count / top * 8)) if count else 0] for count in counts)
