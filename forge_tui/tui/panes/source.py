"""Source and diff of one node: unified or side by side, changed words marked, colours when the lexer is done."""

from __future__ import annotations

from dataclasses import replace

from forge_tui.tui.cells import Span, fit_spans, spans_width, width_of
from forge_tui.tui.detail import SourceText
from forge_tui.tui.diffs import Marks, next_change
from forge_tui.tui.panes.lines import LineView, Look

# Two columns of code need this many cells.
SIDE_BY_SIDE_FROM = 90
CONTEXT = 3


class SourcePane(LineView):
    """The view. `side_by_side` is a wish; a narrow pane shows one column all the same."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, "source")
        self.text: SourceText | None = None
        self.side_by_side = False
        self._unified: list[tuple[str, int, Marks]] = []

    def set_text(self, text: SourceText | None) -> None:
        """Show another text from its first change on, or the same one from where it was."""
        same = (
            self.text is not None
            and text is not None
            and (text.name, text.other, text.new_text) == (self.text.name, self.text.other, self.text.new_text)
        )
        self.text = text
        self._unified = text.diff.unified() if text is not None and text.diff is not None else []
        if not same:
            self.left = 0
            self._first_change()
        self.repaint(self.top)

    def set_colours(self, old: list[list[Span]], new: list[list[Span]]) -> None:
        """The lexer is done: the same lines, coloured."""
        if self.text is not None:
            self.text = replace(self.text, old_lines=old, new_lines=new)
            self.repaint(self.top)

    def fitted(self) -> None:
        super().fitted()
        self._first_change()

    def _first_change(self) -> None:
        first = next_change(self._changed(), -1)
        self.top = max(0, min((first or 0) - CONTEXT, self.line_count() - self.view_height))

    @property
    def two_columns(self) -> bool:
        """Whether two columns show."""
        return self.side_by_side and self.view_width >= SIDE_BY_SIDE_FROM and bool(self._unified)

    def toggle_side_by_side(self) -> bool:
        """Switch between unified and side by side; False when the pane is too narrow for two columns."""
        self.side_by_side = not self.side_by_side
        self._first_change()
        self.repaint(0)
        return not self.side_by_side or self.view_width >= SIDE_BY_SIDE_FROM

    def _changed(self) -> list[bool]:
        if self.text is None or self.text.diff is None:
            return []
        if self.two_columns:
            return [row.changed for row in self.text.diff.rows]
        return [sign != " " for sign, _, _ in self._unified]

    def next_change(self, step: int) -> bool:
        """To the next block of changes; False when there is none."""
        row = next_change(self._changed(), self.top + CONTEXT, step)
        if row is None:
            return False
        self.show_from(row - CONTEXT)
        return True

    def line_count(self) -> int:
        if self.text is None:
            return 0
        if self.text.diff is None:
            return len(self.text.new_lines)
        return len(self.text.diff.rows) if self.two_columns else len(self._unified)

    def spans(self, line: int, width: int) -> list[Span]:
        text = self.text
        if text is None:
            return []
        if text.diff is None:
            return [(f"{line + 1:>4}  ", "gutter"), *self._cut(text.new_lines[line])]
        if not self.two_columns:
            sign, number, marks = self._unified[line]
            if sign == " ":
                return [(f"{number + 1:>4}   ", "gutter"), *self._cut(text.new_lines[number])]
            lines, kind = (text.old_lines, "removed") if sign == "-" else (text.new_lines, "added")
            return [(f"{number + 1:>4} {sign} ", kind), *self._cut(_tint(lines[number], kind, marks))]
        row = text.diff.rows[line]
        half = (width - 1) // 2
        left = self._side(text.old_lines, row.old, row.changed, "removed", "-", row.old_marks, half)
        right = self._side(text.new_lines, row.new, row.changed, "added", "+", row.new_marks, width - half - 1)
        return [*left, (self.look.glyphs.separator, "guide"), *right]

    def _side(
        self, lines: list[list[Span]], number: int | None, changed: bool, kind: str, sign: str, marks: Marks, width: int
    ) -> list[Span]:
        if number is None:
            return [(" " * width, "text")]
        role = kind if changed else "gutter"
        body = self._cut(_tint(lines[number], kind, marks) if changed else lines[number])
        spans = fit_spans(
            [(f"{number + 1:>4} {sign if changed else ' '} ", role), *body], width, self.look.glyphs.ellipsis
        )
        return [*spans, (" " * (width - spans_width(spans)), kind if changed else "text")]

    def fill(self, line: int) -> str:
        if self.text is not None and self.text.diff is not None and not self.two_columns:
            return {"-": "removed", "+": "added"}.get(self._unified[line][0], "text")
        return "text"

    def _cut(self, spans: list[Span]) -> list[Span]:
        """The line without the `left` cells that are scrolled out."""
        skip, out = self.left, []
        if not skip:
            return spans
        for text, role in spans:
            taken = min(skip, len(text))
            skip -= taken
            if text[taken:]:
                out.append((text[taken:], role))
        return out

    def title(self) -> str:
        """For the pane's title."""
        text = self.text
        if text is None:
            return ""
        parts = [text.name]
        if text.diff is not None:
            parts = [f"{text.name} against {text.other}", f"+{text.diff.added} -{text.diff.removed}"]
            parts.append("side by side" if self.two_columns else "unified")
        elif text.note:
            parts.append(text.note)
        if text.language:
            parts.append(text.language)
        return f"  {self.look.glyphs.dot}  ".join(parts)


def _tint(line: list[Span], kind: str, marks: Marks) -> list[Span]:
    """The line on the background of `kind`, its changed stretches marked."""
    out: list[Span] = []
    at = 0
    for text, role in line:
        end = at + len(text)
        here = at
        for start, stop in marks:
            if stop <= here or start >= end:
                continue
            if start > here:
                out.append((text[here - at : start - at], f"{role}@{kind}"))
            out.append((text[max(start, here) - at : min(stop, end) - at], f"{kind}_word"))
            here = min(stop, end)
        if here < end:
            out.append((text[here - at :], f"{role}@{kind}"))
        at = end
    return out


def widest(text: SourceText) -> int:
    """Cells of the longest line, for sideways scrolling."""
    return max((sum(width_of(t) for t, _ in line) for line in text.new_lines), default=0)
