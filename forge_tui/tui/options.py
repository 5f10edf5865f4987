"""How the app looks and behaves: the user's settings, theme folder and keymap as one record."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge_tui.records.problem import UserInputError
from forge_tui.tui.actions import ACTIONS, Action, load_keymap
from forge_tui.tui.palette import Palette, load_theme, theme_names

if TYPE_CHECKING:
    from forge_tui.settings.schema import Settings

DEFAULT_THEME = "forge-dark"
NO_COLOR_THEME = "ansi"


@dataclass(frozen=True)
class Options:
    """How the app looks and behaves.

    theme "": forge-dark, or the terminal's colours when NO_COLOR is set. flush_hz: screen updates a second while data
    arrives. on_hangup: "keep" or "stop", what a run of ours does when the terminal goes away.
    """

    theme: str = ""
    theme_folder: Path | None = None
    ascii: bool = False
    mouse: bool = True
    flush_hz: float = 8.0
    follow: bool = False
    on_hangup: str = "keep"
    actions: tuple[Action, ...] = ACTIONS


DEFAULT_OPTIONS = Options()


def choose_theme(options: Options) -> tuple[Palette, str]:
    """The wanted theme, or the default with one line that says what is wrong with the wanted one."""
    found = theme_names(options.theme_folder)
    no_color = bool(os.environ.get("NO_COLOR"))
    wanted = options.theme or (NO_COLOR_THEME if no_color else DEFAULT_THEME)
    fallback = NO_COLOR_THEME if no_color else DEFAULT_THEME
    if wanted not in found:
        return load_theme(found[fallback]), f"there is no theme {wanted}; there are {', '.join(found)}"
    try:
        return replace(load_theme(found[wanted]), name=wanted), ""
    except UserInputError as error:
        if wanted == fallback:
            raise
        return load_theme(found[fallback]), str(error)


def options_of(settings: Settings) -> Options:
    """The options that the user's settings ask for. Raises UserInputError for a broken keymap."""
    ui = settings.ui
    folder = config_folder()
    no_color = bool(os.environ.get("NO_COLOR"))
    theme = "" if no_color and ui.theme == DEFAULT_THEME else ui.theme
    return Options(
        theme=theme,
        theme_folder=folder / "themes",
        ascii=ui.ascii,
        mouse=ui.mouse,
        flush_hz=ui.flush_hz,
        follow=ui.follow,
        on_hangup=ui.on_hangup,
        actions=load_keymap(folder / "keymap.toml"),
    )


def config_folder() -> Path:
    """Where the user's themes and keymap.toml lie."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "forge_tui"
