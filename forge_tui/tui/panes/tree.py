"""The revision tree of one card: state, what was tried, how fast, how sure, how often visited."""

from __future__ import annotations

from collections.abc import Iterable

from forge_tui.records.views import NodeRow
from forge_tui.tui import numbers
from forge_tui.tui.cells import Span, clean, pad, width_of
from forge_tui.tui.filters import Filter, Value
from forge_tui.tui.palette import STATE_ROLES
from forge_tui.tui.panes.lines import CursorView, Look
from forge_tui.tui.tree_model import NO_NODE, TreeModel

FIELDS = ("speedup", "visits", "value", "state", "attempt", "time", "id")
# Narrower than this, numbers give way to the text.
NUMBERS_FROM, VISITS_FROM = 56, 62


def node_fields(row: NodeRow) -> dict[str, Value]:
    """What a filter may compare."""
    return {
        "speedup": row.speedup,
        "visits": row.visits,
        "value": row.value,
        "state": row.state,
        "attempt": row.attempt,
        "time": row.time_us,
        "id": row.node_id,
    }


class TreePane(CursorView):
    """The tree. `node` is the node under the cursor, which live insertions never move."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, "tree")
        self.model = TreeModel()
        self.node = NO_NODE
        self.follow = False
        self.marked = ""
        self.filter = Filter(())
        self.query_text = ""
        self.folded_failures = False

    def set_model(self, model: TreeModel, node_id: str = "") -> None:
        """Show another card's tree, the cursor on `node_id` or the best node."""
        self.model = model
        self._apply_filter()
        n = model.index.get(node_id, NO_NODE)
        if n == NO_NODE:
            n = model.best()
        row = model.reveal(n) if n != NO_NODE else 0
        self.cursor = max(0, row)
        self.top = max(0, min(self.cursor - self.view_height // 2, len(model.shown) - self.view_height))
        self._sync_node()
        self.repaint(self.top)

    def set_filter(self, filter_: Filter, query: str) -> None:
        """Show only what matches, with its ancestors."""
        self.filter, self.query_text = filter_, query
        self._apply_filter()
        row = self.model.row_of(self.node) if self.node != NO_NODE else NO_NODE
        self.cursor = max(0, row if row != NO_NODE else min(self.cursor, len(self.model.shown) - 1))
        self._sync_node()
        self.top = min(self.top, max(0, len(self.model.shown) - self.view_height))
        self.repaint(0)
        self.bring_into_view()

    def _apply_filter(self) -> None:
        active = self.filter if self.filter.terms else None
        self.model.set_filter(None if active is None else lambda row: _matches(active, row))

    def take(self, rows: Iterable[NodeRow]) -> bool:
        """Take changed and new rows; returns whether the node under the cursor changed."""
        model = self.model
        newest = model.newest()
        old_row = self.cursor
        changed, first = model.upsert(rows)
        for n in changed if first is None else ():
            row = model.row_of(n)
            if row != NO_NODE:
                self.repaint(row, 1)
        if first is not None:
            row = model.row_of(self.node) if self.node != NO_NODE else 0
            self.cursor = max(0, row)
            # Rows that came in above the window push it along, so that what is being read stays in place.
            shift = self.cursor - old_row if self.top > 0 else 0
            self.top = max(0, self.top + shift)
            self.repaint(self.top if shift else first)
            if self.node == NO_NODE:
                self._sync_node()
        if self.follow and model.newest() != newest:
            self.go_to(model.newest())
        return self.node in changed

    def _sync_node(self) -> None:
        shown = self.model.shown
        self.node = shown[self.cursor] if 0 <= self.cursor < len(shown) else NO_NODE

    def move_to(self, item: int, *, quiet: bool = False) -> None:
        item = max(0, min(item, self.item_count() - 1))
        shown = self.model.shown
        self.node = shown[item] if shown else NO_NODE
        super().move_to(item, quiet=quiet)

    def move(self, delta: int) -> None:
        self.follow = False
        super().move(delta)

    def page(self, direction: int, part: float = 1.0) -> None:
        self.follow = False
        super().page(direction, part)

    def edge(self, direction: int) -> None:
        self.follow = False
        super().edge(direction)

    def go_to(self, n: int) -> bool:
        """Put the cursor on node n, opening what hides it; False when a filter hides it."""
        if n == NO_NODE:
            return False
        before = len(self.model.shown)
        row = self.model.reveal(n)
        if len(self.model.shown) != before:
            self.repaint(0)
        if row == NO_NODE:
            return False
        self.move_to(row)
        return True

    def current(self) -> NodeRow | None:
        """The node under the cursor."""
        return self.model.rows[self.node] if self.node != NO_NODE and self.node < len(self.model) else None

    def fold(self) -> None:
        """Fold the node; on a leaf or a folded one go to the parent."""
        n = self.node
        if n == NO_NODE:
            return
        if self.model.open[n] and self.model.children[n]:
            self.toggle_fold()
        elif self.model.parent[n] != NO_NODE:
            self.go_to(self.model.parent[n])

    def unfold(self) -> None:
        """Unfold the node; on an open one go to its first child."""
        n = self.node
        if n == NO_NODE or not self.model.children[n]:
            return
        if not self.model.open[n]:
            self.toggle_fold()
        else:
            self.move(1)

    def toggle_fold(self) -> None:
        """Fold or unfold the node under the cursor."""
        if self.node != NO_NODE:
            row = self.model.toggle(self.node)
            if row is not None:
                self.top = max(0, min(self.top, len(self.model.shown) - self.view_height))
                self.repaint(row if row >= self.top else self.top)

    def toggle_failures(self) -> None:
        """Fold every branch that starts with a rejected or pruned node, or unfold everything."""
        self.folded_failures = not self.folded_failures
        if self.folded_failures:
            self.model.fold_where(lambda row: row.state in ("rejected", "pruned"))
        else:
            self.model.open = [True] * len(self.model)
            self.model.rebuild()
        row = self.model.row_of(self.node) if self.node != NO_NODE else 0
        self.cursor = max(0, row)
        self._sync_node()
        self.repaint(0)
        self.bring_into_view()

    def next_failure(self, step: int) -> bool:
        """To the next rejected node, in a problem of its own kind first; False when there is none."""
        n = self.model.next_where(self.cursor, lambda row: row.state in ("rejected", "problem"), step)
        return self.go_to(n)

    def item_count(self) -> int:
        return len(self.model.shown)

    def item_spans(self, item: int, line: int, width: int) -> list[Span]:
        model, glyphs = self.model, self.look.glyphs
        n = model.shown[item]
        row = model.rows[n]
        most = max(2, width // 6)
        flags, depth = model.guide_flags(n, most)
        guide = "".join(glyphs.blank if last else glyphs.pipe for last in flags[:-1])
        if depth > len(flags):
            guide = f"{depth - len(flags)}{glyphs.ellipsis} " + guide
        if flags:
            guide += glyphs.last if flags[-1] else glyphs.branch
        fold = "" if model.open[n] or not model.children[n] else glyphs.folded
        pin = glyphs.pin if row.pinned else ""
        mark = glyphs.mark if row.node_id == self.marked else ""
        head = f"{self.look.state(row.state)}{pin}{mark}{fold} "
        role = STATE_ROLES.get(row.state, "text")
        tail = self._tail(row, width)
        room = width - width_of(guide) - width_of(head) - width_of(tail) - 1
        name = "" if row.state == "baseline" else f"{row.node_id} "
        said = row.line if row.line and row.speedup is None else row.label
        text = pad(f"{name}{clean(said)}", max(0, room), glyphs.ellipsis)
        plain = "dim" if row.state in ("rejected", "pruned") else "text"
        if role not in ("champion", "problem") and plain == "text":
            return [(f" {guide}", "guide"), (head, role), (text, plain), (tail, plain)]
        role = role if role in ("champion", "problem") else "dim"
        return [(f" {guide}", "guide"), (head + text + tail, role)]

    def _tail(self, row: NodeRow, width: int) -> str:
        glyphs = self.look.glyphs
        if row.state == "baseline":
            gain = "1.00x" if row.label == "eager" else f"~{numbers.factor(row.speedup)}" if row.speedup else ""
        elif row.speedup is None:
            gain = "" if row.state not in ("correct", "champion") else numbers.UNKNOWN
        else:
            gain = numbers.speedup(
                row.speedup, row.low, row.high, row.confirmed, compact=True, plus_minus=glyphs.plus_minus
            )
        if width < NUMBERS_FROM:
            return f" {gain:>8}" if gain else ""
        timed = numbers.micros(row.time_us, glyphs.micro) if row.time_us is not None else ""
        visits = f" v{row.visits:<4}a{row.attempt:<2}" if width >= VISITS_FROM else ""
        if not gain and not visits:
            return ""
        return f" {timed:>9} {gain:>9} {visits}"

    def title(self) -> str:
        """For the pane's title: what is special about what shows."""
        notes = []
        if self.query_text:
            notes.append(f"/{self.query_text}")
        if self.follow:
            notes.append("follow")
        if self.folded_failures:
            notes.append("failures folded")
        return f"  {self.look.glyphs.dot}  ".join(notes)


def _matches(active: Filter, row: NodeRow) -> bool:
    return active.matches(f"{row.node_id} {row.state} {row.label} {row.line}", node_fields(row))
