"""Two texts as the rows of a diff, unified or side by side, with the words that differ inside a line.

Pure. Invariants: the left sides of the rows, in order, are the old text and the right sides the new
one, nothing lost or doubled; spans lie inside their line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

# difflib's junk heuristic keeps a 4,000-line diff at 44 ms instead of 337 ms; below this it isn't needed.
AUTOJUNK_ABOVE = 1500
# Inside lines longer than this, or in blocks larger than that, words are not compared.
LONGEST_LINE = 400
LARGEST_BLOCK = 200
# Below this share of equal words two lines are different lines, and marking single words misleads.
ALIKE = 0.4

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")
Marks = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DiffRow:
    """One row. old, new: line numbers from 0, None where that side has no line. Marks: changed stretches [start, end)."""

    old: int | None
    new: int | None
    changed: bool
    old_marks: Marks = ()
    new_marks: Marks = ()


@dataclass(frozen=True)
class Diff:
    """rows: aligned (side by side). added, removed: lines."""

    rows: tuple[DiffRow, ...]
    added: int
    removed: int

    def unified(self) -> list[tuple[str, int, Marks]]:
        """Rows of one column: (" ", "-" or "+", line number from 0 on its own side, marks); removals before additions."""
        out: list[tuple[str, int, Marks]] = []
        pending: list[tuple[str, int, Marks]] = []
        for row in self.rows:
            if not row.changed:
                out += pending
                pending = []
                out.append((" ", row.new if row.new is not None else 0, ()))
                continue
            if row.old is not None:
                out.append(("-", row.old, row.old_marks))
            if row.new is not None:
                pending.append(("+", row.new, row.new_marks))
        return out + pending


def diff_lines(old: list[str], new: list[str]) -> Diff:
    """Compare two texts by lines."""
    matcher = SequenceMatcher(None, old, new, autojunk=max(len(old), len(new)) > AUTOJUNK_ABOVE)
    rows: list[DiffRow] = []
    added = removed = 0
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            rows += [DiffRow(i1 + k, j1 + k, False) for k in range(i2 - i1)]
            continue
        removed += i2 - i1
        added += j2 - j1
        compare = max(i2 - i1, j2 - j1) <= LARGEST_BLOCK
        for k in range(max(i2 - i1, j2 - j1)):
            left = i1 + k if i1 + k < i2 else None
            right = j1 + k if j1 + k < j2 else None
            marks = (
                mark_words(old[left], new[right]) if compare and left is not None and right is not None else ((), ())
            )
            rows.append(DiffRow(left, right, True, *marks))
    return Diff(tuple(rows), added, removed)


def mark_words(old: str, new: str) -> tuple[Marks, Marks]:
    """Stretches of two lines that differ, word by word; none when the lines have little in common."""
    if max(len(old), len(new)) > LONGEST_LINE:
        return (), ()
    left, right = _WORDS.findall(old), _WORDS.findall(new)
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    if matcher.ratio() < ALIKE:
        return (), ()
    left_at, right_at = _offsets(left), _offsets(right)
    old_marks: list[tuple[int, int]] = []
    new_marks: list[tuple[int, int]] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        if i2 > i1:
            old_marks.append((left_at[i1], left_at[i2]))
        if j2 > j1:
            new_marks.append((right_at[j1], right_at[j2]))
    return tuple(old_marks), tuple(new_marks)


def _offsets(words: list[str]) -> list[int]:
    out = [0]
    for word in words:
        out.append(out[-1] + len(word))
    return out


def next_change(changed: list[bool], after: int, step: int = 1) -> int | None:
    """The first row of the next block of changes after row `after` (before it with step -1); None when there is none."""
    starts = [k for k, flag in enumerate(changed) if flag and (k == 0 or not changed[k - 1])]
    if step > 0:
        return next((k for k in starts if k > after), None)
    return next((k for k in reversed(starts) if k < after), None)
