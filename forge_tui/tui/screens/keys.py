"""Keys to actions: the part all screens share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self, cast

from textual import events
from textual.geometry import Region
from textual.screen import Screen
from textual.timer import Timer

from forge_tui.tui.actions import Action, on_screen
from forge_tui.tui.cells import clean
from forge_tui.tui.panes.lines import Line, Look

if TYPE_CHECKING:
    from forge_tui.tui.app import ForgeApp

Handler = Callable[[], Awaitable[None] | None]
MESSAGE_S = 6.0


class KeyScreen(Screen[None], inherit_bindings=False):
    """A screen whose keys come from the registry.

    Subclasses set `kind`, put handlers into `handlers`, and paint the footer in `paint_footer`.
    """

    AUTO_FOCUS = None
    kind = "reader"

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look
        self.handlers: dict[str, Handler] = {}
        self.footer = Line(look, "footer")
        self.message = ""
        self._message_timer: Timer | None = None
        self._opening = True

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """As Textual's; until the first layout only a layout is asked for, whose paint is whole. Both would paint twice."""
        if self._opening:
            repaint, layout = False, True
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def on_mount(self) -> None:
        self.call_after_refresh(self._opened)

    def _opened(self) -> None:
        self._opening = False

    @property
    def forge(self) -> ForgeApp:
        """The app, by its own type."""
        return cast("ForgeApp", self.app)

    def pane_name(self) -> str:
        """The focused pane, for actions that apply to some panes only."""
        return ""

    def actions(self) -> list[Action]:
        """The actions of this screen with the user's keys."""
        return on_screen(self.kind, self.forge.actions)

    async def on_key(self, event: events.Key) -> None:
        for action in self.actions():
            if event.key in action.keys and action.applies(self.pane_name()):
                event.stop()
                event.prevent_default()
                await self.do(action.id)
                return

    async def do(self, action_id: str) -> None:
        """Run an action by id; the palette comes here too."""
        handler = self.handlers.get(action_id) or self.forge.handlers.get(action_id)
        if handler is None:
            return
        result = handler()
        if result is not None:
            await result

    def say(self, text: str, role: str = "text") -> None:
        """One line to the user, in place of the footer for a few seconds."""
        self.message = clean(" ".join(text.split()))
        self.footer.show([(" ", "text"), (self.message, role)])
        if self._message_timer is not None:
            self._message_timer.stop()
        self._message_timer = self.set_timer(MESSAGE_S, self._unsay)

    def _unsay(self) -> None:
        self.message = ""
        self._message_timer = None
        self.paint_footer()

    def paint_footer(self) -> None:
        """Draw the footer, unless a message stands there."""
