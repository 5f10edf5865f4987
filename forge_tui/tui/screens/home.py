"""The list of sessions: what each is about, how far it got, what it cost, and whether it can be resumed."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult

from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.views import SessionSummary
from forge_tui.tui import numbers
from forge_tui.tui.actions import footer_of
from forge_tui.tui.cells import Span, clean, pad
from forge_tui.tui.palette import STATE_ROLES
from forge_tui.tui.panes.lines import CursorView, Line, Look
from forge_tui.tui.screens.keys import KeyScreen
from forge_tui.tui.source import Home
from forge_tui.tui.status_text import footer_line

PROBLEMS = (UserInputError, HarnessProblem, MachineProblem, OSError)


class SessionList(CursorView):
    """Two lines a session."""

    item_height = 2

    def __init__(self, look: Look) -> None:
        super().__init__(look, "sessions")
        self.rows: list[SessionSummary] = []
        self.now = 0.0

    def set_rows(self, rows: Sequence[SessionSummary], now: float) -> None:
        """Show these sessions; the cursor stays on its own."""
        current = self.current()
        self.rows, self.now = list(rows), now
        places = [k for k, r in enumerate(self.rows) if current is not None and r.path == current.path]
        self.cursor = places[0] if places else min(self.cursor, max(0, len(self.rows) - 1))
        self.repaint(0)
        self.bring_into_view()

    def current(self) -> SessionSummary | None:
        """The session under the cursor."""
        return self.rows[self.cursor] if 0 <= self.cursor < len(self.rows) else None

    def item_count(self) -> int:
        return len(self.rows)

    def item_spans(self, item: int, line: int, width: int) -> list[Span]:
        row = self.rows[item]
        if line == 0:
            name = pad(clean(row.name), max(16, min(40, width - 52)), self.look.glyphs.ellipsis)
            return [
                (f" {self.look.state(row.state)} ", STATE_ROLES.get(row.state, "text")),
                (f"{name} ", "heading"),
                (f"{clean(row.model)}  {clean(row.device)}", "text"),
            ]
        if row.problem:
            return [(f"   {row.state}: {clean(row.problem)}", "warn")]
        gain = f"model ~{numbers.factor(row.model_speedup)}" if row.model_speedup else "model gain unknown"
        said = f"   {row.state}  {row.faster}/{row.cards} cards faster  {gain}  {numbers.dollars(row.dollars)}  {numbers.ago(row.last_activity, self.now)}"
        return [(said, "dim")]


class HomeScreen(KeyScreen):
    """Choose a session, start one, delete one."""

    DEFAULT_CSS = (
        "HomeScreen { layout: vertical; } HomeScreen Line { height: 1; } HomeScreen SessionList { height: 1fr; }"
    )
    kind = "home"

    def __init__(self, look: Look, home: Home) -> None:
        super().__init__(look)
        self.home = home
        self.list = SessionList(look)
        self.list.active = True
        self.head = Line(look, "head")
        self.empty = Line(look, "empty")
        self.handlers = {
            "up": lambda: self.list.move(-1),
            "down": lambda: self.list.move(1),
            "page_up": lambda: self.list.page(-1),
            "page_down": lambda: self.list.page(1),
            "top": lambda: self.list.edge(-1),
            "bottom": lambda: self.list.edge(1),
            "new": self.new,
            "resume": self.resume,
            "delete": self.delete,
            "reload": self.reload,
            "doctor": self.doctor,
        }

    def compose(self) -> ComposeResult:
        yield self.head
        yield self.empty
        yield self.list
        yield self.footer
        self.head.show([(" forge_tui ", "title_focus"), ("  sessions", "heading")])
        self.paint_footer()

    def on_mount(self) -> None:
        self.reload()

    def on_screen_resume(self) -> None:
        self.reload()

    def reload(self) -> None:
        """Read the list again."""
        self.run_worker(self._reload(), exclusive=True, group="list")

    async def _reload(self) -> None:
        try:
            rows = await self.home.sessions()
        except PROBLEMS as error:
            self.say(f"the sessions can't be read: {error}", "problem")
            return
        self.list.set_rows(rows, self.forge.now())
        self.empty.show([] if rows else [("  no sessions yet: n starts one, for example with example:minilm", "text")])

    def new(self) -> None:
        hint = "model.py, model.py:function, package.module:function or example:NAME"
        self.forge.ask_line("new session for", "", hint, None, lambda text: self._begin(text.strip()), None)

    def _begin(self, source: str) -> None:
        if source:
            self.say(f"opening {source}")
            self.run_worker(self._open(self.home.new, source), exclusive=True, group="open")

    def resume(self) -> None:
        row = self.list.current()
        if row is not None:
            self.say(f"opening {row.name}")
            self.run_worker(self._open(self.home.open, row.path), exclusive=True, group="open")

    async def _open(self, opener: object, what: str) -> None:
        try:
            session = await opener(what)  # type: ignore[operator]
            self.forge.open_session(session)
        except PROBLEMS as error:
            self.say(str(error), "warn" if isinstance(error, UserInputError) else "problem")

    def delete(self) -> None:
        row = self.list.current()
        if row is None:
            return
        self.forge.ask_choice(
            f"Delete {row.name} for good?",
            "Its cards, candidates, measurements and captured tensors go with it.",
            (("x", "delete it"), ("n", "no, keep it")),
            lambda key: self._drop(row.path) if key == "x" else None,
        )

    def _drop(self, path: str) -> None:
        self.run_worker(self._delete(path), group="delete")

    async def _delete(self, path: str) -> None:
        try:
            await self.home.delete(path)
        except PROBLEMS as error:
            self.say(str(error), "warn")
            return
        self.say("deleted", "good")
        await self._reload()

    def doctor(self) -> None:
        self.run_worker(self._doctor(), exclusive=True, group="doctor")

    async def _doctor(self) -> None:
        self.say("looking at this machine")
        try:
            text = await self.home.doctor()
        except PROBLEMS as error:
            self.say(str(error), "problem")
            return
        self.forge.show_text("doctor", text)

    def paint_footer(self) -> None:
        if not self.message:
            width = self.size.width or self.forge.size.width
            self.footer.show(footer_line(footer_of("home", "", self.forge.actions), width))
