"""The application: screens, themes, signals, and how it ends. Everything it shows comes from a `Reader`, everything it wants leaves as a `Command`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App
from textual.screen import Screen

from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.tui.actions import help_text
from forge_tui.tui.driver import ForgeDriver
from forge_tui.tui.glyphs import ASCII, UNICODE
from forge_tui.tui.options import DEFAULT_OPTIONS, Options, choose_theme, options_of
from forge_tui.tui.palette import load_theme, theme_names
from forge_tui.tui.panes.lines import Look
from forge_tui.tui.screens.keys import Handler, KeyScreen
from forge_tui.tui.screens.main import MainScreen
from forge_tui.tui.source import Home, OpenSession, Reader, Send

if TYPE_CHECKING:
    from forge_tui.settings.schema import Settings

LIVE = ("running", "paused", "stopping")
COLLECT_AFTER_S = 1.0


class ForgeApp(App[str], inherit_bindings=False):
    """The screen of forge_tui.

    Its result says how it ended: "keep", "stop", "leave" or "signal" (see `OpenSession.close`).
    """

    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        source: Reader | None = None,
        send: Send | None = None,
        readonly: bool = False,
        *,
        session: OpenSession | None = None,
        home: Home | None = None,
        options: Options = DEFAULT_OPTIONS,
        notice: str = "",
    ) -> None:
        """Give a session (or its reader and send), a home, or both. notice: one line shown first.

        Raises what the reader raises when the session can't be read.
        """
        self.options = options
        self.actions = options.actions
        palette, problem = choose_theme(options)
        super().__init__(driver_class=ForgeDriver, ansi_color=palette.ansi)
        self.animation_level = "none"
        # Tens of thousands of rows that live on: collections while they are read cost more than the rows.
        self._collect = gc.isenabled()
        gc.disable()
        self.look = Look(palette, ASCII if options.ascii else UNICODE)
        self.register_theme(palette.textual_theme())
        self.theme = palette.name
        if session is None and source is not None and send is not None:
            session = OpenSession("session", source, send, readonly)
        if session is None and home is None:
            raise HarnessProblem("the app was started with neither a session nor a list of sessions")
        self.home = home
        self.session: OpenSession | None = None
        self.main: MainScreen | None = None
        self._first: Screen[None] = self._home_screen() if session is None else self._main_screen(session)
        self._notice = problem or notice
        self._leaving = False
        self._opening = contextlib.ExitStack()
        self.handlers: dict[str, Handler] = {
            "help": self.show_help,
            "palette": self.show_palette,
            "quit": self.ask_quit,
            "suspend": self.action_suspend_process,
            "theme": self.next_theme,
            "screenshot": self.save_screen,
        }

    # -- starting ----------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[None]:
        """The first screen, in place of an empty one, so that the first paint is the only one."""
        return self._first

    def _main_screen(self, session: OpenSession) -> MainScreen:
        screen = MainScreen(self.look, session, self.options.flush_hz)
        screen.tree_pane.follow = self.options.follow
        screen.view.load()
        self.session, self.main = session, screen
        return screen

    def _home_screen(self) -> Screen[None]:
        from forge_tui.tui.screens.home import HomeScreen

        if self.home is None:
            raise HarnessProblem("there is no list of sessions to show")
        return HomeScreen(self.look, self.home)

    def on_load(self) -> None:
        # Textual paints a screen three times while it mounts; held back, it is sent once.
        self._opening.enter_context(self.batch_update())

    def on_ready(self) -> None:
        self._opening.close()
        self.set_timer(COLLECT_AFTER_S, self._collect_again)

    def _collect_again(self) -> None:
        if self._collect:
            self._collect = False
            gc.freeze()
            gc.enable()

    def on_unmount(self) -> None:
        self._collect_again()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.end_by_signal, number)
        # After fg the terminal is blank, and Textual paints only what it thinks has changed.
        self.app_resume_signal.subscribe(self, lambda _: self.screen.refresh(layout=True))
        if self._notice:
            self.call_after_refresh(self.say, self._notice, "warn")

    def now(self) -> float:
        """Seconds since the epoch; tests put a fixed clock here."""
        return time.time()

    def nudge(self) -> None:
        """Something changed in the session. Callable from any thread, as often as one likes."""
        if self.main is not None:
            self.main.view.feed.nudge()

    def say(self, text: str, role: str = "text") -> None:
        """One line in the footer of the present screen."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, KeyScreen):
                screen.say(text, role)
                return

    # -- sessions ----------------------------------------------------------------------------------

    def open_session(self, session: OpenSession) -> None:
        """Show a session in place of what shows now. Raises what its reader raises."""
        left = self.main
        screen = self._main_screen(session)
        if left is not None:
            left.view.close()
        self._show(screen)

    def _show(self, screen: Screen[None]) -> None:
        """Show a screen in place of the present one; the first one stays below for good, Textual can't replace it."""
        if len(self.screen_stack) > 1:
            self.switch_screen(screen)
        else:
            self.push_screen(screen)

    def go_home(self) -> None:
        """Back to the list of sessions, after asking what a running search should do."""
        if self.home is None:
            self.say("there is no list of sessions here; q quits")
        else:
            self._ask_how("Back to the sessions?", self._leave_session)

    def _leave_session(self, how: str) -> None:
        self.run_worker(self._to_home(how), group="leave")

    async def _to_home(self, how: str) -> None:
        await self._close_session(how)
        self._show(self._home_screen())

    async def _close_session(self, how: str) -> None:
        session, self.session = self.session, None
        main, self.main = self.main, None
        if main is not None:
            main.view.close()
        if session is not None and session.close is not None:
            await session.close(how)

    def take_over(self) -> None:
        """Become the owner of the run."""
        if self.session is None or self.session.take_over is None:
            self.say("this session can't be taken over from here", "warn")
        else:
            self.run_worker(self._take_over(self.session.take_over), group="take over")

    async def _take_over(self, take: Callable[[], Awaitable[OpenSession]]) -> None:
        try:
            session = await take()
            self.open_session(session)
        except (UserInputError, HarnessProblem, MachineProblem, OSError) as error:
            self.say(str(error), "warn")

    # -- ending --------------------------------------------------------------------------------------

    def ask_quit(self) -> None:
        """Quit; a running search is asked about first."""
        self._ask_how("Quit?", self._quit)

    def _ask_how(self, question: str, then: Callable[[str], None]) -> None:
        main, session = self.main, self.session
        status = main.view.status if main is not None else None
        if session is None or session.readonly or status is None or status.state not in LIVE:
            then("leave")
            return
        choices = [("s", "stop the search; it can be resumed"), ("n", "stay here")]
        if session.can_keep:
            choices.insert(0, ("k", "keep it running without the screen"))
        ways = {"k": "keep", "s": "stop"}
        self.ask_choice(
            question, f"A search is {status.state}.", choices, lambda key: then(ways[key]) if key in ways else None
        )

    def _quit(self, how: str) -> None:
        if not self._leaving:
            self._leaving = True
            self.run_worker(self._end(how, 0), group="leave")

    async def _end(self, how: str, code: int) -> None:
        await self._close_session(how)
        self.exit(how, return_code=code)

    def end_by_signal(self, number: int) -> None:
        """SIGTERM, SIGHUP: stop cleanly, keep everything that was found."""
        if not self._leaving:
            self._leaving = True
            if number == signal.SIGHUP and isinstance(self._driver, ForgeDriver):
                self._driver.lost = True
            self.run_worker(self._end("signal", 128 + number), group="leave")

    def terminal_lost(self) -> None:
        """The terminal is gone: as if we had been told by SIGHUP."""
        self.end_by_signal(signal.SIGHUP)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Hand the terminal to another program; the event loop goes on, nothing is drawn."""
        main = self.main
        with self.suspend(), self.batch_update():
            if main is not None:
                main.view.feed.hold = True
            try:
                yield
            finally:
                if main is not None:
                    main.view.feed.hold = False
                    main.view.feed.nudge()

    # -- small screens -----------------------------------------------------------------------------

    def ask_choice(
        self, question: str, explanation: str, choices: Sequence[tuple[str, str]], then: Callable[[str], None]
    ) -> None:
        """Ask for one of the letters; `then` gets it, "" when the user backs out."""
        from forge_tui.tui.screens.small import ChoiceScreen

        self.push_screen(ChoiceScreen(self.look, question, explanation, choices), lambda key: then(key or ""))

    def ask_line(
        self,
        label: str,
        value: str,
        hint: str,
        on_change: Callable[[str], None] | None,
        on_done: Callable[[str], None],
        on_cancel: Callable[[], None] | None,
    ) -> None:
        """Ask for a line of text."""
        from forge_tui.tui.screens.small import LineScreen

        self.push_screen(LineScreen(self.look, label, value, hint, on_change, on_done, on_cancel))

    def show_text(self, title: str, text: str) -> None:
        """A text over the whole screen."""
        from forge_tui.tui.screens.small import TextScreen

        self.push_screen(TextScreen(self.look, title, text))

    def _kind(self) -> str:
        screen = self.screen
        return screen.kind if isinstance(screen, KeyScreen) else "reader"

    def show_help(self) -> None:
        """All keys of the present screen."""
        self.show_text("keys", help_text(self._kind(), self.actions))

    def show_palette(self) -> None:
        """Find an action by name."""
        from forge_tui.tui.screens.small import PaletteScreen

        below = self.screen
        if not isinstance(below, KeyScreen):
            return
        pane = below.pane_name()
        actions = [a for a in below.actions() if a.group != "move" and a.id != "palette" and a.applies(pane)]
        actions += [a for a in below.actions() if a.panes and not a.applies(pane) and a.group != "move"]
        self.push_screen(PaletteScreen(self.look, actions), lambda chosen: self._chosen(below, chosen or ""))

    def _chosen(self, screen: KeyScreen, action_id: str) -> None:
        action = next((a for a in self.actions if a.id == action_id), None)
        if action is None:
            return
        if isinstance(screen, MainScreen) and not action.applies(screen.focus_name):
            screen.focus_pane(action.panes[0])
        screen.run_worker(screen.do(action_id), group="palette")

    def show_candidate(self, screen: MainScreen, candidate_id: str) -> None:
        """The timeline of one candidate."""
        from forge_tui.tui.screens.candidate import CandidateScreen

        self.push_screen(CandidateScreen(self.look, screen.session.reader, screen.view.feed, candidate_id))

    # -- looks -----------------------------------------------------------------------------------------

    def next_theme(self) -> None:
        """The next theme, shipped or the user's; files are read again, so an edited one shows."""
        names = list(theme_names(self.options.theme_folder))
        current = self.look.palette.name
        start = names.index(current) if current in names else -1
        name = names[(start + 1) % len(names)]
        try:
            palette = load_theme(theme_names(self.options.theme_folder)[name])
        except UserInputError as error:
            self.say(str(error), "warn")
            return
        palette = replace(palette, name=name)
        self.look.palette = palette
        self.register_theme(palette.textual_theme())
        self.ansi_color = palette.ansi
        self.theme = palette.name
        for screen in self.screen_stack:
            for widget in screen.walk_children(with_self=True):
                widget.refresh()
        self.say(f"theme {name}")

    def save_screen(self) -> None:
        """Save the screen as SVG beside the present folder's files."""
        path = Path.cwd() / time.strftime("forge-%Y%m%d-%H%M%S.svg")
        try:
            path.write_text(self.export_screenshot(title="forge_tui"), encoding="utf-8")
        except OSError as error:
            self.say(f"{path}: {error.strerror or error}", "warn")
        else:
            self.say(f"saved {path}", "good")


def run_app(home: Home, settings: Settings, open_path: str = "") -> int:
    """Show the list of sessions, or the session at `open_path`, until the user leaves. Returns the exit code.

    A session that can't be opened raises what `home.open` raises, before the terminal is touched. The code is
    128 + signal when a signal or a lost terminal ended the app.
    """
    return asyncio.run(_run(home, options_of(settings), open_path))


async def _run(home: Home, options: Options, open_path: str) -> int:
    try:
        session = await home.open(open_path) if open_path else None
        app = ForgeApp(session=session, home=home, options=options)
        await app.run_async(mouse=options.mouse)
        return app.return_code or 0
    finally:
        await home.close()
