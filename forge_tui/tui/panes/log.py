"""The log and repair stream: a window over the rows in the store, the newest at the bottom while it is followed.

Invariants: the pane holds at most `WINDOW` rows; whatever it leaves out stays readable by scrolling up
and is counted in the title, never silently gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from forge_tui.records.views import LogRow
from forge_tui.tui import numbers
from forge_tui.tui.cells import Span, clean
from forge_tui.tui.panes.lines import CursorView, Look

WINDOW = 4000
LEVELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("all levels", ()),
    ("info and above", ("info", "good", "warn", "bad")),
    ("good, warn, bad", ("good", "warn", "bad")),
    ("warn, bad", ("warn", "bad")),
    ("bad", ("bad",)),
)
SCOPES = ("everything", "this card", "this candidate")
ROLES = {"debug": "dim", "info": "text", "good": "good", "warn": "warn", "bad": "problem"}
MARKS = {"debug": "debug", "info": "info ", "good": "good ", "warn": "warn ", "bad": "BAD  "}


class LogPane(CursorView):
    """The window. `skipped`: rows that came in faster than they were shown since the last look at the end."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, "log")
        self.rows: list[LogRow] = []
        self.follow = True
        self.level = 0
        self.scope = 0
        self.query_text = ""
        self.skipped = 0
        self.total = 0
        self.at_start = False

    @property
    def last_seq(self) -> int:
        """Sequence number of the newest row here, 0 when there is none."""
        return self.rows[-1].seq if self.rows else 0

    def set_rows(self, rows: Sequence[LogRow], total: int) -> None:
        """Show another selection, from its end."""
        self.rows = list(rows)
        self.total = total
        self.skipped = 0
        self.at_start = len(rows) >= total
        self.cursor = max(0, len(self.rows) - 1)
        self.top = max(0, len(self.rows) - self.view_height)
        self.repaint(self.top)

    def append(self, rows: Sequence[LogRow], skipped: int = 0) -> None:
        """New rows at the end. skipped: how many between the last row here and these are left out."""
        if not rows:
            return
        height = self.view_height
        self.total += len(rows) + skipped
        if skipped:
            self.rows = []
            self.skipped += skipped
            self.at_start = False
            self.cursor = self.top = 0
        start = len(self.rows)
        self.rows.extend(rows)
        over = len(self.rows) - WINDOW
        if over > 0 and self.follow:
            del self.rows[:over]
            self.at_start = False
            start -= over
            self.cursor = max(0, self.cursor - over)
            self.top = max(0, self.top - over)
        if not self.follow:
            self.repaint(start, len(rows))
            return
        self.cursor = len(self.rows) - 1
        self.top = max(0, len(self.rows) - height)
        self.repaint(self.top)

    def prepend(self, rows: Sequence[LogRow]) -> None:
        """Older rows, read back from the store."""
        if not rows:
            self.at_start = True
            return
        self.rows[:0] = rows
        self.cursor += len(rows)
        self.top += len(rows)

    def move_to(self, item: int, *, quiet: bool = False) -> None:
        super().move_to(item, quiet=quiet)
        self.follow = self.cursor >= len(self.rows) - 1
        if self.follow:
            self.skipped = 0

    def wants_older(self) -> bool:
        """Whether the top of the window shows and the store may hold more."""
        return bool(self.rows) and self.top == 0 and not self.at_start

    def current(self) -> LogRow | None:
        """The row under the cursor."""
        return self.rows[self.cursor] if 0 <= self.cursor < len(self.rows) else None

    def item_count(self) -> int:
        return len(self.rows)

    def item_spans(self, item: int, line: int, width: int) -> list[Span]:
        row = self.rows[item]
        role = ROLES.get(row.level, "text")
        who = clean(row.candidate_id)
        head = f" {numbers.clock(row.at)} {MARKS.get(row.level, row.level)} {who:<5} "
        if role in ("text", "dim"):
            return [(head, "dim"), (clean(row.text), role)]
        return [(head + clean(row.text), role)]

    def title(self) -> str:
        """For the pane's title."""
        parts = [SCOPES[self.scope], LEVELS[self.level][0]]
        if self.query_text:
            parts.append(f"/{self.query_text}")
        if self.skipped:
            parts.append(f"{self.skipped:,} not shown, scroll up")
        if not self.follow:
            parts.append("follow off")
        return f"  {self.look.glyphs.dot}  ".join(parts)
