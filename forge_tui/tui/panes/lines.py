"""Line-API widgets: a scrolling view of styled lines, a list with a cursor, and a single line.

Invariants: scrolling moves `top` and nothing else, so growing content costs no layout pass; a cursor
move repaints two items; text that did not change is not sent again.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from forge_tui.tui.cells import Span, fit_spans
from forge_tui.tui.glyphs import ASCII, PLAIN_LETTERS, Glyphs
from forge_tui.tui.palette import Palette

Painted = tuple[list[Span], str]
"""A line as it was drawn: its runs, and the role of the rest."""


@dataclass
class Look:
    """How everything is drawn; one object shared by all widgets, whose palette a theme switch replaces."""

    palette: Palette
    glyphs: Glyphs

    def state(self, state: str) -> str:
        """Glyph of a state, "?" for one this program doesn't know."""
        return self.glyphs.states.get(state, self.glyphs.unknown)


def strip_of(spans: list[Span], width: int, look: Look, fill: str = "text") -> Strip:
    """Spans as a strip of exactly `width` cells; neighbours of one role become one segment."""
    styles = look.palette.styles
    if look.glyphs is ASCII:
        spans = [(text if text.isascii() else text.translate(PLAIN_LETTERS), role) for text, role in spans]
    segments: list[Segment] = []
    used = 0
    last_role, last_text = "", ""
    for text, role in fit_spans(spans, width, look.glyphs.ellipsis):
        used += len(text) if text.isascii() else cell_len(text)
        if role == last_role:
            last_text += text
            continue
        if last_text:
            segments.append(Segment(last_text, styles[last_role]))
        last_role, last_text = role, text
    room = width - used
    if room > 0:
        if last_role == fill or (last_text and styles[last_role] == styles[fill]):
            last_text += " " * room
        else:
            if last_text:
                segments.append(Segment(last_text, styles[last_role]))
            last_role, last_text = fill, " " * room
    if last_text:
        segments.append(Segment(last_text, styles[last_role]))
    return Strip(segments, width)


class LineView(Widget):
    """A scrolling view of lines.

    Subclasses give `line_count` and `spans`. `top`: first line shown. `left`: first cell shown. `active`: has the
    keys. That is our own flag: Textual's focus restyles and resends the whole screen.
    """

    class Pressed(Message):
        """The mouse was pressed here."""

        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> LineView:
            return self.view

    class Scrolled(Message):
        """The view shows other lines now."""

        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> LineView:
            return self.view

    def __init__(self, look: Look, id: str) -> None:
        super().__init__(id=id)
        self.look = look
        self.top = 0
        self.left = 0
        self.view_width = 0
        self.view_height = 0
        self.active = False
        self._painted: dict[int, Painted] = {}

    def set_active(self, active: bool) -> None:
        """Take or lose the keys."""
        if active != self.active:
            self.active = active
            self.repaint(self.top)

    def fit_to(self, width: int, height: int) -> None:
        """The view is this large now. Whoever places it says so before the first paint; Resize comes after it."""
        if (width, height) != (self.view_width, self.view_height):
            self.view_width, self.view_height = width, height
            self.fitted()
            self.refresh()

    def fitted(self) -> None:
        """The size changed: keep the content in view."""
        self.top = max(0, min(self.top, self.line_count() - self.view_height))

    def on_resize(self, event: events.Resize) -> None:
        self.fit_to(event.size.width, event.size.height)

    def line_count(self) -> int:
        """How many lines there are."""
        raise LookupError(f"{type(self).__name__} gives no lines")

    def spans(self, line: int, width: int) -> list[Span]:
        """One line as runs of text."""
        raise LookupError(f"{type(self).__name__} gives no lines")

    def fill(self, line: int) -> str:
        """Role of the rest of a line."""
        return "text"

    def _row(self, y: int) -> Painted:
        line = self.top + y
        if line >= self.line_count():
            return [], "text"
        return self.spans(line, self.view_width), self.fill(line)

    def render_line(self, y: int) -> Strip:
        row = self._painted[y] = self._row(y)
        return strip_of(row[0], self.size.width, self.look, row[1])

    @property
    def rich_style(self) -> Style:
        return self.look.palette.styles["text"]

    def repaint(self, first: int = 0, count: int | None = None) -> None:
        """These lines of the content (all below `first` without a count) may have changed: send the cells that did."""
        height, width = self.view_height, self.view_width
        start = max(0, first - self.top)
        end = height if count is None else min(height, first - self.top + count)
        if not width or not self._painted:
            return
        regions = []
        for y in range(start, end):
            old, new = self._painted.get(y), self._row(y)
            if old is None:
                regions.append(Region(0, y, width, 1))
            elif old != new:
                left, right = changed_cells(old, new, width)
                if right > left:
                    regions.append(Region(left, y, right - left, 1))
                else:
                    self._painted[y] = new
        if regions:
            self.refresh(*regions)

    def scroll_lines(self, delta: int) -> None:
        """Scroll by lines, as far as there are any."""
        self.show_from(self.top + delta)

    def show_from(self, top: int) -> None:
        """Show the content from this line on."""
        top = max(0, min(top, self.line_count() - self.view_height))
        if top != self.top:
            self.top = top
            self.repaint(top)
            self.post_message(self.Scrolled(self))

    def move(self, delta: int) -> None:
        """One step of the arrow keys."""
        self.scroll_lines(delta)

    def page(self, direction: int, part: float = 1.0) -> None:
        """A page, or a part of one, up (-1) or down (1)."""
        self.scroll_lines(direction * max(1, int((self.view_height - 1) * part)))

    def edge(self, direction: int) -> None:
        """To the first (-1) or last (1) line."""
        self.show_from(0 if direction < 0 else self.line_count())

    def sideways(self, delta: int) -> None:
        """Show what is cut off at the right."""
        left = max(0, self.left + delta)
        if left != self.left:
            self.left = left
            self.repaint(self.top)

    def place(self) -> str:
        """Where we are, for the title: "41-60/212"."""
        total = self.line_count()
        if total <= self.view_height:
            return ""
        return f"{self.top + 1}-{min(total, self.top + self.view_height)}/{total}"

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_lines(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_lines(-3)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(self.Pressed(self))


class CursorView(LineView):
    """A list of items of `item_height` lines with a cursor on one of them."""

    class Moved(Message):
        """The cursor stands on another item."""

        def __init__(self, view: CursorView) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> CursorView:
            return self.view

    item_height = 1

    def __init__(self, look: Look, id: str) -> None:
        super().__init__(look, id)
        self.cursor = 0

    def item_count(self) -> int:
        """How many items there are."""
        raise LookupError(f"{type(self).__name__} gives no items")

    def item_spans(self, item: int, line: int, width: int) -> list[Span]:
        """Line `line` of an item as runs of text."""
        raise LookupError(f"{type(self).__name__} gives no items")

    def line_count(self) -> int:
        return self.item_count() * self.item_height

    def spans(self, line: int, width: int) -> list[Span]:
        item, part = divmod(line, self.item_height)
        spans = self.item_spans(item, part, width)
        if item == self.cursor and part == 0:
            role = "cursor" if self.active else "cursor_blurred"
            return [("".join(text for text, _ in spans), role)]
        return spans

    def fill(self, line: int) -> str:
        if line == self.cursor * self.item_height:
            return "cursor" if self.active else "cursor_blurred"
        return "text"

    def move_to(self, item: int, *, quiet: bool = False) -> None:
        """Put the cursor on an item and bring it into view. quiet: tell nobody."""
        item = max(0, min(item, self.item_count() - 1))
        if item != self.cursor:
            old, self.cursor = self.cursor, item
            self.repaint(old * self.item_height, 1)
            self.repaint(item * self.item_height, 1)
            if not quiet:
                self.post_message(self.Moved(self))
        self.bring_into_view()

    def bring_into_view(self) -> None:
        """Scroll so that the cursor shows: half a pane at once, so most keys at the edge repaint two lines only."""
        height = self.view_height
        first = self.cursor * self.item_height
        if not height:
            return
        if first < self.top:
            self.show_from(first - height // 2)
        elif first + self.item_height > self.top + height:
            self.show_from(first + self.item_height - height + height // 2)

    def move(self, delta: int) -> None:
        self.move_to(self.cursor + delta)

    def page(self, direction: int, part: float = 1.0) -> None:
        step = max(1, int((self.view_height // self.item_height - 1) * part))
        self.show_from(self.top + direction * step * self.item_height)
        self.move_to(self.cursor + direction * step)

    def edge(self, direction: int) -> None:
        self.move_to(0 if direction < 0 else self.item_count() - 1)

    def place(self) -> str:
        return f"{self.cursor + 1}/{self.item_count()}" if self.item_count() else ""

    def fitted(self) -> None:
        super().fitted()
        self.bring_into_view()

    def on_click(self, event: events.Click) -> None:
        self.move_to((self.top + event.y) // self.item_height)
        super().on_click(event)


class Line(Widget):
    """One line of text that sends only what changed."""

    def __init__(self, look: Look, id: str, fill: str = "text") -> None:
        super().__init__(id=id)
        self.look = look
        self._fill = fill
        self._spans: list[Span] = []

    @property
    def rich_style(self) -> Style:
        return self.look.palette.styles["text"]

    @property
    def text(self) -> str:
        """What it says now."""
        return "".join(text for text, _ in self._spans)

    def show(self, spans: list[Span]) -> None:
        """Say something else."""
        if spans == self._spans:
            return
        old, self._spans = self._spans, spans
        width = self.size.width
        if not width:
            return
        start, end = changed_cells((old, self._fill), (spans, self._fill), width)
        if end > start:
            self.refresh(Region(start, 0, end - start, 1))

    def render_line(self, y: int) -> Strip:
        if y:
            return Strip.blank(self.size.width, self.look.palette.styles["text"])
        return strip_of(self._spans, self.size.width, self.look, self._fill)


def changed_cells(old: Painted, new: Painted, width: int) -> tuple[int, int]:
    """The stretch of cells [start, end) in which two drawings of a line differ; the whole line when cells are wide."""
    before, after = _cells(old, width), _cells(new, width)
    if before is None or after is None:
        return 0, width
    start = next((k for k in range(width) if before[k] != after[k]), width)
    end = next((k for k in range(width, start, -1) if before[k - 1] != after[k - 1]), start)
    return start, end


def _cells(row: Painted, width: int) -> list[Span] | None:
    """One entry a cell, None when a character is not one cell wide or the line is cut."""
    spans, fill = row
    cells = [(char, role) for text, role in spans for char in text]
    if len(cells) > width or any(not char.isascii() and cell_len(char) != 1 for char, _ in cells):
        return None
    return cells + [(" ", fill)] * (width - len(cells))
