"""What keys do on the main screen without changing the run: moving, finding, comparing, copying."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from forge_tui.tui.actions import PANES
from forge_tui.tui.filters import parse_filter
from forge_tui.tui.palette import STATE_ROLES
from forge_tui.tui.panes import cards as cards_pane
from forge_tui.tui.panes import tree as tree_pane
from forge_tui.tui.panes.log import LEVELS, SCOPES
from forge_tui.tui.screens.keys import Handler
from forge_tui.tui.tree_model import NO_NODE

if TYPE_CHECKING:
    from forge_tui.tui.screens.main import MainScreen

SIDEWAYS = 8


class Navigation:
    """Handlers of the reading actions."""

    def __init__(self, screen: MainScreen) -> None:
        self.screen = screen

    def handlers(self) -> dict[str, Handler]:
        """Action id -> handler."""
        screen = self.screen
        focus: dict[str, Handler] = {f"pane_{k + 1}": partial(screen.focus_pane, name) for k, name in enumerate(PANES)}
        return {
            **focus,
            "up": lambda: screen.pane.move(-1),
            "down": lambda: screen.pane.move(1),
            "page_up": lambda: screen.pane.page(-1),
            "page_down": lambda: screen.pane.page(1),
            "top": lambda: screen.pane.edge(-1),
            "bottom": lambda: screen.pane.edge(1),
            "left": self.left,
            "right": self.right,
            "next_pane": lambda: screen.focus_step(1),
            "previous_pane": lambda: screen.focus_step(-1),
            "zoom": screen.toggle_zoom,
            "filter": self.filter,
            "open": self.open,
            "best": self.best,
            "parent": self.parent,
            "next": lambda: self.next(1),
            "previous": lambda: self.next(-1),
            "follow": self.follow,
            "fold": screen.tree_pane.toggle_fold,
            "fold_failures": self.fold_failures,
            "sort": self.sort,
            "levels": self.levels,
            "scope": self.scope,
            "mark": self.mark,
            "against": self.against,
            "columns": self.columns,
            "back": self.back,
            "home": lambda: screen.forge.go_home(),
        }

    def left(self) -> None:
        if self.screen.focus_name == "tree":
            self.screen.tree_pane.fold()
        else:
            self.screen.pane.sideways(-SIDEWAYS)

    def right(self) -> None:
        if self.screen.focus_name == "tree":
            self.screen.tree_pane.unfold()
        else:
            self.screen.pane.sideways(SIDEWAYS)

    def open(self) -> None:
        screen = self.screen
        if screen.focus_name == "cards":
            screen.view.cards_rested()
            screen.focus_pane("tree")
            return
        if screen.focus_name == "log":
            row = screen.log_pane.current()
            if row is None or not row.candidate_id:
                screen.say("this line belongs to no candidate")
                return
            screen.forge.show_candidate(screen, row.candidate_id)
            return
        node = screen.tree_pane.current()
        if node is None or node.state == "baseline":
            screen.say("eager has no timeline; choose a candidate")
        else:
            screen.forge.show_candidate(screen, node.node_id)

    def best(self) -> None:
        tree = self.screen.tree_pane
        if not tree.go_to(tree.model.best()):
            self.screen.say(
                "no timed node here yet" if tree.model.best() == NO_NODE else "the filter hides the best node"
            )

    def parent(self) -> None:
        tree = self.screen.tree_pane
        if tree.node == NO_NODE or not tree.go_to(tree.model.parent[tree.node]):
            self.screen.say("this node has no parent")

    def next(self, step: int) -> None:
        screen = self.screen
        if screen.focus_name == "source":
            if not screen.source_pane.next_change(step):
                screen.say("no more changes")
        elif not screen.tree_pane.next_failure(step):
            screen.say("no failure here")

    def follow(self) -> None:
        screen = self.screen
        if screen.focus_name == "log":
            screen.log_pane.follow = not screen.log_pane.follow
            if screen.log_pane.follow:
                screen.log_pane.edge(1)
        else:
            screen.tree_pane.follow = not screen.tree_pane.follow
            if screen.tree_pane.follow:
                screen.tree_pane.go_to(screen.tree_pane.model.newest())
        screen.paint_title(screen.focus_name)

    def fold_failures(self) -> None:
        self.screen.tree_pane.toggle_failures()
        self.screen.paint_title("tree")

    def sort(self) -> None:
        self.screen.cards_pane.next_sort()
        self.screen.paint_title("cards")

    def levels(self) -> None:
        pane = self.screen.log_pane
        pane.level = (pane.level + 1) % len(LEVELS)
        self.screen.view.reload_log()
        self.screen.paint_title("log")

    def scope(self) -> None:
        pane = self.screen.log_pane
        pane.scope = (pane.scope + 1) % len(SCOPES)
        self.screen.view.reload_log()
        self.screen.paint_title("log")

    def mark(self) -> None:
        screen = self.screen
        node = screen.tree_pane.current()
        if node is None:
            return
        old = screen.tree_pane.marked
        screen.tree_pane.marked = "" if old == node.node_id else node.node_id
        for name in (old, node.node_id):
            n = screen.tree_pane.model.index.get(name, NO_NODE)
            row = screen.tree_pane.model.row_of(n) if n != NO_NODE else NO_NODE
            if row != NO_NODE:
                screen.tree_pane.repaint(row, 1)
        screen.say(f"{node.node_id} marked; d compares with it" if screen.tree_pane.marked else "mark taken off")

    def against(self) -> None:
        self.screen.view.next_against()
        self.screen.say(f"source against {self.screen.view.against}")

    def columns(self) -> None:
        if not self.screen.source_pane.toggle_side_by_side():
            self.screen.say("two columns need 90 cells; z gives the pane the whole screen")
        self.screen.paint_title("source")

    def back(self) -> None:
        """Ends, in this order: the filter of the focused list, the zoom, the tree's follow."""
        screen = self.screen
        if getattr(screen.pane, "query_text", ""):
            self.apply_filter("")
        elif screen.zoomed:
            screen.toggle_zoom()

    def filter(self) -> None:
        """Ask for a filter; it applies while it is typed."""
        screen = self.screen
        old = getattr(screen.pane, "query_text", "")
        hints = {
            "cards": f"words, !word, field>value: {', '.join(cards_pane.FIELDS)}",
            "tree": f"words, !word, field>value: {', '.join(tree_pane.FIELDS)}",
            "log": "text to look for",
        }
        screen.forge.ask_line(
            f"filter {screen.focus_name}",
            old,
            hints[screen.focus_name],
            self.apply_filter,
            self.apply_filter,
            lambda: self.apply_filter(old),
        )

    def apply_filter(self, query: str) -> None:
        """Filter the focused list."""
        screen = self.screen
        if screen.focus_name == "cards":
            screen.cards_pane.query_text = query
            screen.cards_pane.filter = parse_filter(query, cards_pane.FIELDS)
            screen.cards_pane.reorder()
            screen.view.cursor_moved(screen.cards_pane)
            problem = screen.cards_pane.filter.problem
        elif screen.focus_name == "tree":
            screen.tree_pane.set_filter(parse_filter(query, tree_pane.FIELDS), query)
            screen.view.cursor_moved(screen.tree_pane)
            problem = screen.tree_pane.filter.problem
        else:
            screen.log_pane.query_text = query
            screen.view.reload_log()
            problem = ""
        screen.paint_title(screen.focus_name)
        if problem:
            screen.say(problem, STATE_ROLES["unknown"])
