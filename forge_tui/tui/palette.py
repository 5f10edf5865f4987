"""Themes: a TOML file gives the Textual colours and a style for every role the panes draw with.

Invariants: every role of `ROLES` exists in every theme that loads; a broken theme file is a
`UserInputError` that names file and field, and the caller falls back to a shipped theme. Panes ask
for roles, never for colours.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.color import Color
from rich.errors import StyleSyntaxError
from rich.style import Style

from forge_tui.records.problem import UserInputError

if TYPE_CHECKING:
    from textual.theme import Theme

ROLES = (
    "text", "dim", "guide", "title", "title_focus", "rule", "key", "heading", "good", "champion", "warn", "problem",
    "baseline", "running", "repair", "rejected", "pruned", "cursor", "cursor_blurred", "match", "bar", "bar_good",
    "added", "removed", "added_word", "removed_word", "gutter", "syn_keyword", "syn_type", "syn_function",
    "syn_comment", "syn_string", "syn_number", "syn_preproc",
)  # fmt: skip
COLORS = ("background", "foreground", "primary", "accent", "surface", "panel", "success", "warning", "error")

# Role of a state wherever it is named; "problem" alone is red.
STATE_ROLES = {
    "baseline": "baseline", "queued": "running", "running": "running", "repair": "repair", "correct": "good",
    "champion": "champion", "rejected": "rejected", "pruned": "pruned", "unknown": "warn", "problem": "problem",
    "waiting": "dim", "tie": "text", "done": "good", "refused": "pruned", "undiscriminating": "warn",
    "paused": "warn", "stopping": "warn", "finished": "good", "interrupted": "warn", "elsewhere": "running",
}  # fmt: skip


class Styles(dict[str, Style]):
    """Role -> style. "a@b" is role a on the background of role b, made when first asked for."""

    def __missing__(self, role: str) -> Style:
        over, _, under = role.partition("@")
        if not under:
            return self["text"]
        style = self[over] + Style(bgcolor=self[under].bgcolor, dim=self[under].dim)
        self[role] = style
        return style


@dataclass(frozen=True)
class Palette:
    """A loaded theme. styles: role -> style with its background filled in; an unknown role reads as text."""

    name: str
    dark: bool
    ansi: bool
    colors: dict[str, str]
    styles: Styles

    def textual_theme(self) -> Theme:
        """The same theme for Textual's own widgets (inputs, toasts)."""
        from textual.theme import BUILTIN_THEMES, Theme

        variables = {"input-cursor-text-style": "reverse", "border": self.colors["primary"]}
        if self.ansi:
            variables = {**BUILTIN_THEMES["ansi-dark"].variables, **variables}
        return Theme(name=self.name, dark=self.dark, ansi=self.ansi, variables=variables, **self.colors)  # type: ignore[arg-type]


def shipped_folder() -> Path:
    """Where the shipped themes lie: inside the wheel, or beside the package in a checkout."""
    here = Path(__file__).parent
    inside = here / "shipped_themes"
    return inside if inside.is_dir() else here.parent.parent / "themes"


def theme_names(user_folder: Path | None = None) -> dict[str, Path]:
    """Theme name -> file; a user's file wins over a shipped one of the same name."""
    found: dict[str, Path] = {}
    for folder in (shipped_folder(), user_folder):
        if folder is not None and folder.is_dir():
            found.update({path.stem: path for path in sorted(folder.glob("*.toml"))})
    return found


def load_theme(path: Path) -> Palette:
    """Read one theme file. Raises UserInputError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserInputError(f"theme {path}: {error.strerror or error}; choose another with --theme") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserInputError(f"theme {path}: not TOML ({error}); fix the file or choose another with --theme") from None
    return parse_theme(data, str(path))


def parse_theme(data: dict[str, Any], where: str) -> Palette:
    """Build a palette from a theme's tables. Raises UserInputError that names the field."""
    colors, roles = data.get("colors"), data.get("roles")
    name = data.get("name")
    if not isinstance(name, str) or not isinstance(colors, dict) or not isinstance(roles, dict):
        raise UserInputError(f"theme {where}: needs name, [colors] and [roles]; see the shipped forge-dark.toml")
    ansi = bool(data.get("ansi", False))
    missing = [f"colors.{c}" for c in COLORS if not isinstance(colors.get(c), str)]
    missing += [f"roles.{r}" for r in ROLES if not isinstance(roles.get(r), str)]
    if missing:
        raise UserInputError(f"theme {where}: {missing[0]} is missing ({len(missing)} in all); add it")
    base = (
        Style()
        if ansi
        else Style(color=_color(colors, "foreground", where), bgcolor=_color(colors, "background", where))
    )
    styles = Styles()
    for role in ROLES:
        try:
            styles[role] = base + Style.parse(roles[role])
        except StyleSyntaxError as error:
            raise UserInputError(
                f"theme {where}: roles.{role}: {error}; write it as 'bold #rrggbb on #rrggbb'"
            ) from None
    if not ansi:
        for key in COLORS:
            _color(colors, key, where)
    return Palette(name, bool(data.get("dark", True)), ansi, {c: colors[c] for c in COLORS}, styles)


def _color(colors: dict[str, Any], key: str, where: str) -> Color:
    from rich.color import ColorParseError

    try:
        return Color.parse(colors[key])
    except ColorParseError:
        raise UserInputError(
            f"theme {where}: colors.{key} = {colors[key]!r} is no colour; write it as #rrggbb"
        ) from None
