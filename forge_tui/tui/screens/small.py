"""Small screens over the present one: a choice, a line of text, a text to read, the command palette."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widgets import Input

from forge_tui.tui.actions import Action, key_name
from forge_tui.tui.cells import Span, clean, clean_lines, wrap
from forge_tui.tui.panes.lines import CursorView, Line, LineView, Look
from forge_tui.tui.screens.keys import KeyScreen


class TextView(LineView):
    """Lines of plain text, wrapped to the width."""

    def __init__(self, look: Look, id: str, text: str = "") -> None:
        super().__init__(look, id)
        self.text = text
        self._lines: list[list[Span]] = []
        self._for = -1

    def set_text(self, text: str) -> None:
        """Show another text."""
        self.text = text
        self._for = -1
        self.top = 0
        self.repaint(0)

    def lines(self) -> list[list[Span]]:
        width = max(10, self.view_width - 2)
        if self._for != width:
            self._for = width
            self._lines = []
            for line in clean_lines(self.text):
                indent = len(line) - len(line.lstrip())
                role = "heading" if line and not indent else "text"
                parts = wrap(line.strip(), max(10, width - indent)) if len(line) > width else [line.lstrip()]
                self._lines += [[(" " + " " * indent + part, role)] for part in parts]
        return self._lines

    def line_count(self) -> int:
        return len(self.lines())

    def spans(self, line: int, width: int) -> list[Span]:
        return self.lines()[line]


class TextScreen(KeyScreen):
    """A text over the whole screen: help, doctor."""

    DEFAULT_CSS = "TextScreen { layout: vertical; } TextScreen Line { height: 1; } TextScreen TextView { height: 1fr; }"

    def __init__(self, look: Look, title: str, text: str) -> None:
        super().__init__(look)
        self.view = TextView(look, "text", text)
        self.head = Line(look, "head")
        self.heading = title
        self.handlers = {
            "up": lambda: self.view.move(-1),
            "down": lambda: self.view.move(1),
            "page_up": lambda: self.view.page(-1),
            "page_down": lambda: self.view.page(1),
            "top": lambda: self.view.edge(-1),
            "bottom": lambda: self.view.edge(1),
            "back": self._leave,
            "quit": self._leave,
            "help": self._leave,
        }

    def _leave(self) -> None:
        self.dismiss(None)

    def compose(self) -> ComposeResult:
        yield self.head
        yield self.view
        yield self.footer
        self.head.show([(f" {clean(self.heading)} ", "title_focus")])
        self.paint_footer()

    def paint_footer(self) -> None:
        self.footer.show([(" esc", "key"), (" back  ", "dim"), ("up down pgup pgdn", "key"), (" scroll", "dim")])


class ChoiceScreen(ModalScreen[str]):
    """A question with one letter an answer; escape gives ""."""

    DEFAULT_CSS = """
    ChoiceScreen { align: center middle; background: transparent; }
    ChoiceScreen #box { height: auto; max-height: 90%; width: 64; max-width: 96%; }
    """

    def __init__(self, look: Look, question: str, explanation: str, choices: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.look = look
        self.choices = tuple(choices)
        self.box = BoxView(look, question, explanation, self.choices)

    def compose(self) -> ComposeResult:
        yield self.box

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if event.key == "escape" or event.key in [key for key, _ in self.choices]:
            self.dismiss("" if event.key == "escape" else event.key)


class BoxView(LineView):
    """The framed question."""

    def __init__(self, look: Look, question: str, explanation: str, choices: Sequence[tuple[str, str]]) -> None:
        super().__init__(look, "box")
        self.body: list[list[Span]] = [[]]
        self.body += [[("  " + line, "heading")] for line in wrap(clean(question), 56)]
        self.body += [[("  " + line, "text")] for line in wrap(clean(explanation), 56)]
        self.body.append([])
        self.body += [[(f"  {key_name(key)}", "key"), (f"  {clean(text)}", "text")] for key, text in choices]
        self.body += [[("  esc", "key"), ("  back", "dim")], []]
        self.styles.height = len(self.body) + 2

    def line_count(self) -> int:
        return len(self.body) + 2

    def spans(self, line: int, width: int) -> list[Span]:
        glyphs = self.look.glyphs
        if line in (0, len(self.body) + 1):
            return [(glyphs.rule * width, "key")]
        return self.body[line - 1]


class LineScreen(ModalScreen[None]):
    """One line of text at the bottom: a filter, a budget, a path."""

    DEFAULT_CSS = """
    LineScreen { align: left bottom; background: transparent; }
    LineScreen Line { height: 1; width: 100%; dock: bottom; }
    LineScreen Input { height: 1; width: 100%; padding: 0 1; dock: bottom; margin-bottom: 1; }
    """

    def __init__(
        self,
        look: Look,
        label: str,
        value: str,
        hint: str,
        on_change: Callable[[str], None] | None,
        on_done: Callable[[str], None],
        on_cancel: Callable[[], None] | None,
    ) -> None:
        super().__init__()
        self.look = look
        self.label = label
        self.hint = hint
        self.input = Input(value, select_on_focus=False, compact=True)
        self.input.cursor_blink = False
        self.line = Line(look, "hint")
        self._on_change, self._on_done, self._on_cancel = on_change, on_done, on_cancel

    def compose(self) -> ComposeResult:
        yield self.input
        yield self.line
        self.line.show(
            [
                (f" {clean(self.label)} ", "title_focus"),
                (f" {clean(self.hint)}  ", "dim"),
                ("enter", "key"),
                (" take  ", "dim"),
                ("esc", "key"),
                (" back", "dim"),
            ]
        )

    def on_mount(self) -> None:
        self.input.focus(scroll_visible=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._on_change is not None and self.is_attached:
            self._on_change(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(None)
        self._on_done(event.value)

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            event.stop()
            self.dismiss(None)
            if self._on_cancel is not None:
                self._on_cancel()


class PaletteView(CursorView):
    """The matching actions."""

    def __init__(self, look: Look, actions: Sequence[Action]) -> None:
        super().__init__(look, "actions")
        self.actions = list(actions)
        self.shown = list(actions)

    def narrow(self, query: str) -> None:
        """Keep the actions that hold every word, names before explanations."""
        words = query.lower().split()
        found = [a for a in self.actions if all(w in f"{a.label} {a.help} {a.group}".lower() for w in words)]
        start = query.lower().strip()
        self.shown = sorted(found, key=lambda a: (not a.label.startswith(start), start not in a.label))
        self.cursor = self.top = 0
        self.repaint(0)

    def item_count(self) -> int:
        return len(self.shown)

    def item_spans(self, item: int, line: int, width: int) -> list[Span]:
        action = self.shown[item]
        return [(f" {key_name(action.keys[0]):<10} ", "key"), (f"{action.label:<16}", "heading"), (action.help, "dim")]


class PaletteScreen(ModalScreen[str]):
    """Every action of the screen below by name; gives its id, "" for none."""

    DEFAULT_CSS = """
    PaletteScreen { align: center top; background: transparent; }
    PaletteScreen Input { height: 1; width: 76; max-width: 100%; padding: 0 1; margin-top: 2; }
    PaletteScreen PaletteView { height: 16; width: 76; max-width: 100%; }
    """

    def __init__(self, look: Look, actions: Sequence[Action]) -> None:
        super().__init__()
        self.look = look
        self.input = Input(placeholder="what to do", compact=True)
        self.input.cursor_blink = False
        self.list = PaletteView(look, actions)
        self.list.active = True

    def compose(self) -> ComposeResult:
        yield self.input
        yield self.list

    def on_mount(self) -> None:
        self.input.focus(scroll_visible=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.list.narrow(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        chosen = self.list.shown[self.list.cursor].id if self.list.shown else ""
        self.dismiss(chosen)

    def on_key(self, event: events.Key) -> None:
        if event.key in ("up", "down", "pageup", "pagedown"):
            event.stop()
            event.prevent_default()
            if event.key in ("up", "down"):
                self.list.move(1 if event.key == "down" else -1)
            else:
                self.list.page(1 if event.key == "pagedown" else -1)
        elif event.key == "escape":
            event.stop()
            self.dismiss("")
