"""The main screen: where the panes are, which has the focus, and what their titles say."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.geometry import Offset
from textual.strip import Strip
from textual.widget import Widget

from forge_tui.tui.actions import PANES, footer_of
from forge_tui.tui.arrangement import NARROW, WIDE, Place, arrange, layout_of, step
from forge_tui.tui.panes.cards import CardsPane
from forge_tui.tui.panes.lines import CursorView, Line, LineView, Look, strip_of
from forge_tui.tui.panes.log import LogPane
from forge_tui.tui.panes.profile import ProfilePane
from forge_tui.tui.panes.source import SourcePane
from forge_tui.tui.panes.tree import TreePane
from forge_tui.tui.screens.commanding import Commanding
from forge_tui.tui.screens.keys import KeyScreen
from forge_tui.tui.screens.navigation import Navigation
from forge_tui.tui.session import SessionView
from forge_tui.tui.source import OpenSession
from forge_tui.tui.status_text import footer_line, model_line, pane_title, run_line, tab_strip

HEAD = 2


class Rule(Widget):
    """The column that separates a pane from its left neighbour."""

    def __init__(self, look: Look, id: str) -> None:
        super().__init__(id=id)
        self.look = look

    def render_line(self, y: int) -> Strip:
        return strip_of([(self.look.glyphs.separator, "rule")], self.size.width, self.look)


class MainScreen(KeyScreen):
    """The five panes of one session."""

    kind = "main"

    def __init__(self, look: Look, session: OpenSession, flush_hz: float = 8.0) -> None:
        super().__init__(look)
        self.session = session
        self.cards_pane = CardsPane(look)
        self.tree_pane = TreePane(look)
        self.source_pane = SourcePane(look)
        self.log_pane = LogPane(look)
        self.profile_pane = ProfilePane(look)
        self.panes: dict[str, LineView] = {
            "cards": self.cards_pane,
            "tree": self.tree_pane,
            "source": self.source_pane,
            "log": self.log_pane,
            "profile": self.profile_pane,
        }
        self.titles = {name: Line(look, f"title-{name}") for name in PANES}
        self.rules = {name: Rule(look, f"rule-{name}") for name in PANES}
        self.run_line = Line(look, "run")
        self.model_line = Line(look, "model")
        self.tabs = Line(look, "tabs")
        self.focus_name = "cards"
        self.cards_pane.active = True
        self.beside = "tree"
        self.zoomed = False
        self.layout_name = ""
        self._placed: tuple[object, ...] = ()
        self._ruled: set[str] = set()
        self._widths: dict[str, int] = {}
        self.view = SessionView(self, session, flush_hz)
        self.navigation = Navigation(self)
        self.commanding = Commanding(self)
        self.handlers = {**self.navigation.handlers(), **self.commanding.handlers()}

    def compose(self) -> ComposeResult:
        yield self.run_line
        yield self.model_line
        yield self.tabs
        for name in PANES:
            yield self.rules[name]
            yield self.titles[name]
            yield self.panes[name]
        yield self.footer
        for widget in (self.run_line, self.model_line, self.tabs, self.footer):
            widget.styles.position = "absolute"
        for group in (self.rules, self.titles, self.panes):
            for pane_widget in group.values():
                pane_widget.styles.position = "absolute"
        self.place_panes(self.forge.size.width, self.forge.size.height)
        self.view.show_all()

    def on_mount(self) -> None:
        self.view.start()

    def on_unmount(self) -> None:
        self.view.close()

    def on_resize(self, event: events.Resize) -> None:
        self.place_panes(event.size.width, event.size.height)
        self.paint_lines()

    def pane_name(self) -> str:
        return self.focus_name

    @property
    def pane(self) -> LineView:
        """The focused pane."""
        return self.panes[self.focus_name]

    def place_panes(self, width: int, height: int) -> None:
        """Put every widget where the layout wants it."""
        self.layout_name = layout_of(width, height)
        key = (
            width,
            height,
            self.focus_name if self.layout_name == NARROW or self.zoomed else "",
            self.beside,
            self.zoomed,
        )
        if key == self._placed:
            return
        self._placed = key
        strip = 1 if self.layout_name == NARROW else 0
        _put(self.run_line, 0, 0, width, 1)
        _put(self.model_line, 0, 1, width, 1)
        _put(self.tabs, 0, HEAD, width, strip)
        _put(self.footer, 0, height - 1, width, 1)
        top = HEAD + strip
        places = arrange(self.layout_name, width, max(1, height - top - 1), self.focus_name, self.beside, self.zoomed)
        self._ruled = {name for name, place in places.items() if place.rule}
        for name in PANES:
            place = places.get(name, Place(0, 0, 0, 0))
            edge = 1 if place.rule else 0
            self._widths[name] = place.width
            y = top + place.y
            _put(self.titles[name], place.x, y, place.width, min(1, place.height))
            _put(self.rules[name], place.x, y + 1, edge, place.height - 1)
            _put(self.panes[name], place.x + edge, y + 1, place.width - edge, place.height - 1)
            if place.width:
                self.panes[name].fit_to(place.width - edge, place.height - 1)

    def shows(self, name: str) -> bool:
        """Whether the pane is on the screen."""
        return bool(self._widths.get(name))

    def focus_pane(self, name: str) -> None:
        """Give a pane the focus; where it isn't shown, show it."""
        if name in ("tree", "source", "profile"):
            self.beside = name
        self.focus_name = name
        self.place_panes(self.size.width, self.size.height)
        for other, pane in self.panes.items():
            pane.set_active(other == name)
        self.paint_lines()
        self.view.focus_changed()

    def focus_step(self, direction: int) -> None:
        """The next pane, or the one before."""
        self.focus_pane(step(self.layout_name, self.focus_name, self.beside, direction))

    def toggle_zoom(self) -> None:
        """The focused pane alone, or all of them."""
        if self.layout_name == NARROW:
            self.say("one pane shows already at this size; 1 to 5 change it")
            return
        self.zoomed = not self.zoomed
        self.place_panes(self.size.width, self.size.height)
        self.paint_lines()

    def paint_lines(self) -> None:
        """Titles, status lines, tabs and footer: each sends only what changed."""
        width = self.size.width or self.forge.size.width
        glyphs = self.look.glyphs
        view = self.view
        if view.status is not None:
            name = view.model.name if view.model is not None else self.session.name
            self.run_line.show(run_line(view.status, name, width, glyphs, self.session.readonly))
        self.model_line.show(model_line(view.model, width, glyphs))
        self.tabs.show(tab_strip(self.focus_name, width))
        for name in PANES:
            self.paint_title(name)
        self.paint_footer()

    def paint_title(self, name: str) -> None:
        """One pane's title."""
        width = self._widths.get(name, 0)
        if not width:
            return
        notes = {
            "cards": self.cards_pane.title(),
            "tree": self.view.tree_title(),
            "source": self.source_pane.title(),
            "log": self.log_pane.title(),
            "profile": self.profile_pane.title(),
        }
        spans = pane_title(
            PANES.index(name) + 1,
            name,
            notes[name],
            self.panes[name].place(),
            name == self.focus_name,
            width,
            self.look.glyphs,
            name in self._ruled,
        )
        self.titles[name].show(spans)

    def paint_footer(self) -> None:
        if self.message:
            return
        width = self.size.width or self.forge.size.width
        actions = footer_of("main", self.focus_name, self.forge.actions, self.session.readonly)
        self.footer.show(footer_line(actions, width))

    def repaint_all(self) -> None:
        """After a theme switch."""
        for pane in self.panes.values():
            pane.repaint(pane.top)
            pane.refresh()
        self.refresh(layout=True)
        self.paint_lines()

    def on_cursor_view_moved(self, message: CursorView.Moved) -> None:
        self.view.cursor_moved(message.view)

    def on_line_view_scrolled(self, message: LineView.Scrolled) -> None:
        self.view.scrolled(message.view)

    def on_line_view_pressed(self, message: LineView.Pressed) -> None:
        name = next((n for n, pane in self.panes.items() if pane is message.view), "")
        if name and name != self.focus_name:
            self.focus_pane(name)

    @property
    def is_wide(self) -> bool:
        """All five panes show."""
        return self.layout_name == WIDE and not self.zoomed


def _put(widget: Widget, x: int, y: int, width: int, height: int) -> None:
    shown = width > 0 and height > 0
    widget.display = shown
    if shown:
        widget.styles.offset = Offset(x, y)  # type: ignore[assignment]
        widget.styles.width = width
        widget.styles.height = height
