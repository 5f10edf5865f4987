"""Helpers that drive the app in tests: wait for a state, never for a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cells_of import screen_text
from fake_source import START, FakeHome, FakeSource
from textual.pilot import Pilot

from forge_tui.tui.app import ForgeApp
from forge_tui.tui.options import Options
from forge_tui.tui.screens.main import MainScreen


def app_on(
    source: FakeSource, *, readonly: bool = False, options: Options | None = None, home: FakeHome | None = None
) -> ForgeApp:
    app = ForgeApp(source, source.send, readonly, options=options or Options(), home=home)
    app.now = lambda: START + 600  # type: ignore[method-assign]
    return app


def home_app(home: FakeHome) -> ForgeApp:
    app = ForgeApp(home=home, options=Options())
    app.now = lambda: START + 600  # type: ignore[method-assign]
    return app


async def until(pilot: Pilot[Any], holds: Callable[[], object]) -> None:
    """Let the app work until something holds, for eight seconds at most."""
    for _ in range(400):
        if holds():
            return
        await pilot.pause(0.02)
    raise AssertionError(f"never came true; the screen:\n{screen_text(pilot.app)}")


async def settled(pilot: Pilot[Any]) -> str:
    """The screen once nothing is loading and no cursor is waited for."""
    app = pilot.app
    calm = 0
    for _ in range(400):
        await pilot.pause(0.01)
        busy = any(w.is_running and w.group != "feed" for w in app.workers)
        main = app.main
        calm = 0 if busy or (main is not None and not main.view.resting) else calm + 1
        if calm >= 3:
            break
    return screen_text(app)


def main_of(app: ForgeApp) -> MainScreen:
    assert app.main is not None
    return app.main


def footer_says(app: ForgeApp, words: str) -> bool:
    screen = app.screen
    return words in getattr(screen, "message", "")
