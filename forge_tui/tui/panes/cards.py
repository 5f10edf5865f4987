"""The operator cards: what there is to win, what is won, and how sure that is. Three lines a card, two or one where room is short."""

from __future__ import annotations

from collections.abc import Sequence

from forge_tui.records.views import CardRow
from forge_tui.tui import numbers
from forge_tui.tui.cells import Span, clean, pad, width_of
from forge_tui.tui.filters import Filter, Value
from forge_tui.tui.palette import STATE_ROLES
from forge_tui.tui.panes.lines import CursorView, Look

FIELDS = ("share", "calls", "speedup", "headroom", "state", "op", "failures", "attempts")
SORTS = ("left to win", "share", "speed-up", "failures", "name")


def card_fields(row: CardRow) -> dict[str, Value]:
    """What a filter may compare."""
    return {
        "share": None if row.share is None else row.share * 100,
        "calls": row.calls,
        "speedup": row.speedup,
        "headroom": row.headroom,
        "state": row.state,
        "op": row.op,
        "failures": row.failures,
        "attempts": row.attempts,
    }


def left_to_win(row: CardRow) -> float | None:
    """Share of the model's time that a kernel at the speed of light would still save; None when unknown."""
    headroom = row.headroom
    if row.share is None or headroom is None or headroom <= 0:
        return None
    best = 1 / row.speedup if row.speedup and row.speedup > 1 else 1.0
    return row.share * best * max(0.0, 1 - 1 / headroom)


class CardsPane(CursorView):
    """The list. `rows` is what shows, in order; `all_rows` what there is.

    Until someone moves the cursor (`touched`) it stands on the card with most to win, whichever that is.
    """

    def __init__(self, look: Look) -> None:
        super().__init__(look, "cards")
        self.all_rows: list[CardRow] = []
        self.rows: list[CardRow] = []
        self.sort = 0
        self.filter = Filter(())
        self.query_text = ""
        self.touched = False

    def set_rows(self, rows: Sequence[CardRow]) -> None:
        """Take new rows; the cursor stays on its card, and only lines that changed are sent."""
        self.all_rows = list(rows)
        self.reorder()

    def reorder(self) -> None:
        """Filter and sort again."""
        current = self.current()
        before = self.rows
        rows = [r for r in self.all_rows if self.filter.matches(f"{r.title} {r.state} {r.reason}", card_fields(r))]
        rows.sort(key=self._key)
        self.rows = rows
        cursor = next((k for k, r in enumerate(rows) if current is not None and r.card_id == current.card_id), None)
        if not self.touched:
            cursor = 0
        self.cursor = min(self.cursor, max(0, len(rows) - 1)) if cursor is None else cursor
        if [r.card_id for r in before] != [r.card_id for r in rows]:
            self.repaint(0)
            self.bring_into_view()
            return
        for k, (old, new) in enumerate(zip(before, rows, strict=True)):
            if old != new:
                self.repaint(k * self.item_height, self.item_height)

    def _key(self, row: CardRow) -> tuple[float | str, ...]:
        name = SORTS[self.sort]
        if name == "left to win":
            left = left_to_win(row)
            return (row.state == "refused", left is None, -(left or 0.0), -(row.share or 0.0))
        if name == "share":
            return (row.share is None, -(row.share or 0.0))
        if name == "speed-up":
            return (row.speedup is None, -(row.speedup or 0.0))
        return (-row.failures,) if name == "failures" else (row.title,)

    def move_to(self, item: int, *, quiet: bool = False) -> None:
        self.touched = True
        super().move_to(item, quiet=quiet)

    def next_sort(self) -> None:
        """Sort by the next rule."""
        self.sort = (self.sort + 1) % len(SORTS)
        self.reorder()
        self.repaint(0)

    def current(self) -> CardRow | None:
        """The card under the cursor."""
        return self.rows[self.cursor] if 0 <= self.cursor < len(self.rows) else None

    def item_count(self) -> int:
        return len(self.rows)

    def fitted(self) -> None:
        width, height = self.view_width, self.view_height
        self.item_height = 3 if height >= 30 and width < 100 else (1 if height < 9 else 2)
        super().fitted()

    def item_spans(self, item: int, line: int, width: int) -> list[Span]:
        row = self.rows[item]
        if self.item_height == 1:
            return self._title(row, width, one_line=True)
        if line == 0:
            return self._title(row, width)
        return self._result(row) if line == 1 else self._detail(row)

    def _title(self, row: CardRow, width: int, one_line: bool = False) -> list[Span]:
        look = self.look
        glyph = look.state(row.state)
        if one_line:
            gain = numbers.speedup(row.speedup, row.low, row.high, not row.provisional, compact=True)
            right = f"{gain if row.speedup else row.state:>10} {numbers.percent(row.share):>8}"
        else:
            right = f"{numbers.percent(row.share):>7}"
            calls = f"{row.calls:>3} calls "
            if width_of(row.title) + width_of(calls) + width_of(right) + 5 <= width:
                right = calls + right
        room = max(0, width - width_of(right) - 4)
        return [
            (f" {glyph} ", STATE_ROLES.get(row.state, "text")),
            (pad(clean(row.title), room, look.glyphs.ellipsis), "heading" if row.state != "refused" else "pruned"),
            (f" {right}", "dim"),
        ]

    def _result(self, row: CardRow) -> list[Span]:
        look = self.look
        if row.state in ("refused", "problem", "undiscriminating"):
            word = "" if row.state == "refused" else "! "
            role = "problem" if row.state == "problem" else "dim"
            return [(f"   {word}{row.state}: {clean(row.reason) or 'no reason given'}", role)]
        if row.speedup is None:
            activity = clean(row.reason) or {"running": "searching", "waiting": "waiting"}.get(row.state, row.state)
            return [(f"   {activity}", "dim"), (f"   eager {numbers.micros(row.eager_us, look.glyphs.micro)}", "dim")]
        gain = numbers.speedup(row.speedup, row.low, row.high, not row.provisional)
        light = numbers.percent(row.floor_us / row.best_us) if row.floor_us and row.best_us else numbers.UNKNOWN
        return [
            (f"   {gain}", "champion" if row.state == "champion" else "text"),
            (f"  {numbers.micros(row.best_us, look.glyphs.micro)}  SOL {light}", "dim"),
            # The detail line says the class in full; where there is none, its first word is enough.
            (
                f"  {row.audit_class.split()[0].split('-')[0]}" if row.audit_class and self.item_height < 3 else "",
                "dim",
            ),
            ("  weak" if row.weak else "", "warn"),
        ]

    def _detail(self, row: CardRow) -> list[Span]:
        micro = self.look.glyphs.micro
        first = row.audit_class if row.speedup is not None and row.audit_class else f"{row.calls} calls"
        parts = [f"   {first}", f"compile {numbers.micros(row.compile_us, micro)}"]
        if row.attempts:
            parts.append(f"{row.failures}/{row.attempts} failed")
        if row.synthetic:
            parts.append("synthetic")
        return [(f"  {self.look.glyphs.dot}  ".join(parts), "dim")]

    def title(self) -> str:
        """For the pane's title: the filter, how many there are and are faster, the sort rule."""
        faster = sum(r.state == "champion" for r in self.all_rows)
        shown = f"{len(self.rows)} of " if len(self.rows) != len(self.all_rows) else ""
        said = f"{shown}{len(self.all_rows)}, {faster} faster, by {SORTS[self.sort]}"
        return f"/{self.query_text}  {said}" if self.query_text else said
