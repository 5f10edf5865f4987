"""One session on the main screen: what is selected, what is loaded, and who is told when.

Invariants: panes that follow a cursor update after it has rested 150 ms; a load that was overtaken by a
newer selection is thrown away; live insertions never move a cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from textual.timer import Timer
from textual.worker import Worker

from forge_tui.records.views import CardRow, Changes, ModelRow, NodeRow, RunStatus
from forge_tui.tui.detail import AGAINST, Coloured, NodeDetail, SourceText, load_detail, load_source
from forge_tui.tui.feed import READ_ERRORS, Feed
from forge_tui.tui.panes.lines import CursorView, LineView
from forge_tui.tui.panes.log import LEVELS
from forge_tui.tui.source import OpenSession
from forge_tui.tui.tree_model import TreeModel

if TYPE_CHECKING:
    from forge_tui.tui.screens.main import MainScreen

REST_S = 0.15
FIRST_LOG = 300
BATCH_LOG = 500
KEPT_TREES = 3


class SessionView:
    """Loads rows and hands them to the panes."""

    def __init__(self, screen: MainScreen, session: OpenSession, flush_hz: float) -> None:
        self.screen = screen
        self.session = session
        self.reader = session.reader
        self.feed = Feed(session.reader, self.take, lambda line: screen.say(line, "problem"), 1 / flush_hz)
        self.coloured = Coloured()
        self.status: RunStatus | None = None
        self.model: ModelRow | None = None
        self.card_id = ""
        self.detail: NodeDetail | None = None
        self.source: SourceText | None = None
        self.against = "parent"
        self.trees: dict[str, TreeModel] = {}
        self._rest: Timer | None = None
        self._rest_view: CursorView | None = None
        self._title_timer: Timer | None = None
        self._wanted = 0
        self._log_loading = False
        self._worker: Worker[None] | None = None

    # -- first paint: everything is there before the first refresh -------------------------------

    def load(self) -> None:
        """Read what the first paint shows. Runs once, before anything is drawn."""
        reader, screen = self.reader, self.screen
        self.feed.seq = reader.seq()
        self.status = reader.status()
        self.feed.timing = bool(self.status.judging)
        self.model = reader.model()
        screen.cards_pane.set_rows(reader.cards())
        first = screen.cards_pane.current()
        if first is not None:
            self.card_id = first.card_id
            tree = self.trees[self.card_id] = TreeModel(self.with_baseline(first, reader.nodes(self.card_id)))
            screen.tree_pane.set_model(tree, first.best_id)
        row = screen.tree_pane.current()
        if row is not None:
            self.detail = load_detail(reader, row, first, self.parent_of(row))
            self.source = load_source(reader, self.detail, self.against, "")
        screen.log_pane.set_rows(reader.log(limit=FIRST_LOG), reader.log_count())

    def show_all(self) -> None:
        """Hand the loaded rows to the panes that need a size first."""
        self.screen.profile_pane.set_detail(self.detail)
        self.screen.source_pane.set_text(self.source)
        self.screen.paint_lines()

    def start(self) -> None:
        """Begin to listen."""
        self._worker = self.screen.run_worker(self.feed.run(), group="feed")
        self._colour()

    @property
    def resting(self) -> bool:
        """No pane waits for a cursor to come to rest."""
        return self._rest is None and self._title_timer is None

    def close(self) -> None:
        """Stop listening."""
        if self._worker is not None:
            self._worker.cancel()
        self.feed.close()

    def with_baseline(self, card: CardRow, rows: Sequence[NodeRow]) -> list[NodeRow]:
        """The rows with eager at the top, whether or not the store gave it a row."""
        nodes = list(rows)
        if nodes and nodes[0].state == "baseline":
            return nodes
        eager = NodeRow(
            f"eager:{card.card_id}", "", card.card_id, 0, "baseline", "eager", 1.0, None, None, True, card.eager_us,
            0, None, 1, "",
        )  # fmt: skip
        return [eager, *nodes]

    # -- news ------------------------------------------------------------------------------------

    async def take(self, changes: Changes) -> None:
        """A batch of changes from the feed."""
        screen = self.screen
        if changes.nodes:
            moved = self._take_nodes(changes.nodes)
            if moved:
                self.reload_detail()
        if changes.cards:
            screen.cards_pane.set_rows(await self.feed.read(self.reader.cards))
            if not screen.cards_pane.touched or not self.card_id:
                self.cards_rested()
        if changes.status:
            self.status = await self.feed.read(self.reader.status)
            self.feed.timing = bool(self.status.judging)
        if changes.model:
            self.model = await self.feed.read(self.reader.model)
        if changes.log:
            await self._take_log()
        screen.paint_lines()

    def _take_nodes(self, rows: tuple[NodeRow, ...]) -> bool:
        by_card: dict[str, list[NodeRow]] = {}
        for row in rows:
            by_card.setdefault(row.card_id, []).append(row)
        touched = False
        for card_id, group in by_card.items():
            if card_id == self.card_id:
                touched = self.screen.tree_pane.take(group)
            elif card_id in self.trees:
                self.trees[card_id].upsert(group)
        return touched

    async def _take_log(self) -> None:
        pane = self.screen.log_pane
        choice = self.log_choice()
        after = pane.last_seq
        rows = await self.feed.read(lambda: self.reader.log(**choice, after=after, limit=BATCH_LOG))  # type: ignore[arg-type]
        skipped = 0
        if len(rows) >= BATCH_LOG:
            total = await self.feed.read(lambda: self.reader.log_count(**choice))  # type: ignore[arg-type]
            skipped = max(0, total - pane.total - len(rows))
        if choice == self.log_choice() and after == pane.last_seq:
            pane.append(rows, skipped)

    # -- the log's selection ---------------------------------------------------------------------

    def log_choice(self) -> dict[str, object]:
        """What the log shows, as arguments of the reader."""
        pane = self.screen.log_pane
        row = self.screen.tree_pane.current()
        return {
            "card_id": self.card_id if pane.scope == 1 else "",
            "candidate_id": row.node_id if pane.scope == 2 and row is not None else "",
            "levels": LEVELS[pane.level][1],
            "text": pane.query_text,
        }

    def reload_log(self) -> None:
        """Another selection: read its end."""
        self.screen.run_worker(self._reload_log(), exclusive=True, group="log")

    async def _reload_log(self) -> None:
        choice = self.log_choice()
        try:
            rows = await self.feed.read(lambda: self.reader.log(**choice, limit=BATCH_LOG))  # type: ignore[arg-type]
            total = await self.feed.read(lambda: self.reader.log_count(**choice))  # type: ignore[arg-type]
        except READ_ERRORS as error:
            self.screen.say(f"the log can't be read: {error}", "problem")
            return
        if choice == self.log_choice():
            self.screen.log_pane.set_rows(rows, total)
            self.screen.paint_title("log")

    async def _older_log(self) -> None:
        pane = self.screen.log_pane
        choice, before = self.log_choice(), pane.rows[0].seq
        try:
            rows = await self.feed.read(lambda: self.reader.log(**choice, before=before, limit=BATCH_LOG))  # type: ignore[arg-type]
        except READ_ERRORS as error:
            self.screen.say(f"the log can't be read: {error}", "problem")
            return
        finally:
            self._log_loading = False
        if pane.rows and pane.rows[0].seq == before and choice == self.log_choice():
            pane.prepend(rows)
            self.screen.paint_title("log")

    # -- cursors and their followers ----------------------------------------------------------------

    def cursor_moved(self, view: CursorView) -> None:
        """A cursor stands elsewhere: let it rest before anything follows."""
        if view is self.screen.log_pane and self.screen.log_pane.wants_older() and not self._log_loading:
            self._log_loading = True
            self.screen.run_worker(self._older_log(), group="log")
        self._rest_view = view
        if self._rest is None:
            self._rest = self.screen.set_timer(REST_S, self._rested)
        else:
            self._rest.reset()
            self._rest.resume()

    def scrolled(self, view: LineView) -> None:
        """A pane shows other lines: its title says where, once it rests."""
        if self._title_timer is not None:
            self._title_timer.stop()
            self._title_timer = None
        name = next((n for n, pane in self.screen.panes.items() if pane is view), "")
        if name:
            self._title_timer = self.screen.set_timer(REST_S, partial(self._title_rested, name))

    def _title_rested(self, name: str) -> None:
        self._title_timer = None
        self.screen.paint_title(name)

    def _rested(self) -> None:
        self._rest = None
        view = self._rest_view
        if view is self.screen.cards_pane:
            self.cards_rested()
        elif view is self.screen.tree_pane:
            self.reload_detail()
            if self.screen.log_pane.scope == 2:
                self.reload_log()
        self.screen.paint_lines()

    def focus_changed(self) -> None:
        """Another pane has the focus: nothing follows, but a pane that was hidden may be behind."""
        if self._rest is not None:
            self._rest.stop()
            self._rested()

    def cards_rested(self) -> None:
        """The cursor rests on a card: show its tree."""
        row = self.screen.cards_pane.current()
        if row is not None and row.card_id != self.card_id:
            self.card_id = row.card_id
            self._wanted += 1
            self.screen.run_worker(self._load_card(row, self._wanted), exclusive=True, group="follow")

    async def _load_card(self, card: CardRow, wanted: int) -> None:
        try:
            tree = self.trees.get(card.card_id)
            if tree is None:
                seq = self.feed.seq
                rows = await self.feed.read(self.reader.nodes, card.card_id)
                if wanted != self._wanted:
                    return
                tree = await self.feed.read(TreeModel, self.with_baseline(card, rows))
                if seq != self.feed.seq:
                    tree.upsert(await self.feed.read(self.reader.nodes, card.card_id))
        except READ_ERRORS as error:
            self.screen.say(f"the tree can't be read: {error}", "problem")
            return
        if wanted != self._wanted:
            return
        self.trees.pop(card.card_id, None)
        self.trees[card.card_id] = tree
        while len(self.trees) > KEPT_TREES:
            self.trees.pop(next(iter(self.trees)))
        self.screen.tree_pane.set_model(tree, card.best_id)
        if self.screen.log_pane.scope:
            self.reload_log()
        await self._load_detail(self._wanted)
        self.screen.paint_lines()

    def parent_of(self, row: NodeRow) -> NodeRow | None:
        """The row a node hangs under, eager for a root."""
        tree = self.screen.tree_pane.model
        n = tree.index.get(row.node_id, -1)
        parent = tree.parent[n] if n >= 0 else -1
        return tree.rows[parent] if parent >= 0 else None

    def reload_detail(self) -> None:
        """Read the node under the cursor again."""
        self._wanted += 1
        self.screen.run_worker(self._load_detail(self._wanted), exclusive=True, group="follow")

    async def _load_detail(self, wanted: int) -> None:
        row = self.screen.tree_pane.current()
        if row is None:
            self.detail = self.source = None
            self.show_all()
            return
        card = next((c for c in self.screen.cards_pane.all_rows if c.card_id == row.card_id), None)
        try:
            detail = await self.feed.read(load_detail, self.reader, row, card, self.parent_of(row))
            source = await self.feed.read(load_source, self.reader, detail, self.against, self.screen.tree_pane.marked)
        except READ_ERRORS as error:
            self.screen.say(f"{row.node_id} can't be read: {error}", "problem")
            return
        if wanted != self._wanted:
            return
        self.detail, self.source = detail, source
        await self._colour_now()
        if wanted == self._wanted:
            self.show_all()

    def next_against(self) -> None:
        """Compare with the next of parent, eager, champion and marked node."""
        self.against = AGAINST[(AGAINST.index(self.against) + 1) % len(AGAINST)]
        self.reload_detail()

    def _colour(self) -> None:
        self.screen.run_worker(self._colour_later(), group="colour")

    async def _colour_later(self) -> None:
        await asyncio.sleep(REST_S)
        await self._colour_now()
        self.screen.source_pane.set_text(self.source)

    async def _colour_now(self) -> None:
        """Colour the present source off the loop; nothing is painted here."""
        source = self.source
        if source is None:
            return
        old = await self.feed.lex(self.coloured.lines, source.old_text, source.language) if source.old_text else []
        new = await self.feed.lex(self.coloured.lines, source.new_text, source.language)
        if self.source is source:
            source.old_lines[:] = old
            source.new_lines[:] = new

    def tree_title(self) -> str:
        """For the tree's title."""
        card = next((c for c in self.screen.cards_pane.all_rows if c.card_id == self.card_id), None)
        notes = [card.title if card is not None else "no cards yet", self.screen.tree_pane.title()]
        return "  ".join(note for note in notes if note)
