"""The action registry, the keymap, the themes and the arrangement of panes."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_source import FakeHome, FakeSource
from hypothesis import given
from hypothesis import strategies as st
from rich.color import Color

from forge_tui.records.problem import UserInputError
from forge_tui.records.views import CARD_STATES, NODE_STATES
from forge_tui.tui.actions import (
    ACTIONS,
    FOOTER_MOST,
    PANES,
    clashes,
    footer_of,
    help_text,
    load_keymap,
    on_screen,
    with_keymap,
)
from forge_tui.tui.app import ForgeApp
from forge_tui.tui.arrangement import arrange, layout_of
from forge_tui.tui.glyphs import ASCII, UNICODE
from forge_tui.tui.options import Options, choose_theme
from forge_tui.tui.palette import ROLES, STATE_ROLES, load_theme, parse_theme, theme_names
from forge_tui.tui.screens.home import HomeScreen

# Keys that tmux, screen and shells take for themselves.
TAKEN = {"ctrl+a", "ctrl+b", "ctrl+h", "ctrl+j", "ctrl+k", "ctrl+l", "ctrl+left_square_bracket"}


def test_no_two_actions_want_one_key_in_one_place() -> None:
    assert clashes(ACTIONS) == []
    assert len({a.id for a in ACTIONS}) == len(ACTIONS)


def test_no_key_is_one_that_a_multiplexer_takes() -> None:
    assert not TAKEN & {key for a in ACTIONS for key in a.keys}


def test_the_footer_shows_at_most_eight_keys_and_always_help_and_quit() -> None:
    for screen, panes in (("main", PANES), ("home", ("",))):
        for pane in panes:
            shown = [a.id for a in footer_of(screen, pane)]
            assert len(shown) <= FOOTER_MOST and {"help", "quit"} <= set(shown), pane


def test_every_action_has_a_handler_and_stands_in_the_help() -> None:
    source = FakeSource(2, 10)
    app = ForgeApp(source, source.send, home=FakeHome())
    main, home = app.get_default_screen(), HomeScreen(app.look, FakeHome())
    for screen in (main, home):
        for action in on_screen(screen.kind):
            known = (
                action.id in screen.handlers or action.id in app.handlers or (screen is home and action.id == "back")
            )
            assert known, action.id
            assert action.help in help_text(screen.kind)


def test_a_keymap_changes_keys_and_says_what_is_wrong(tmp_path: Path) -> None:
    assert load_keymap(tmp_path / "none.toml") == ACTIONS
    file = tmp_path / "keymap.toml"
    file.write_text('[keymap]\npause = "ctrl-o"\nfilter = ["/", "ctrl-f"]\n')
    changed = {a.id: a.keys for a in load_keymap(file)}
    assert changed["pause"] == ("ctrl+o",) and changed["filter"] == ("slash", "ctrl+f")
    for table, said in (
        ({"puase": "x"}, "did you mean pause?"),
        ({"pause": 3}, "needs a key or a list of keys"),
        ({"pause": "z"}, "zoom and pause both want it"),
    ):
        with pytest.raises(UserInputError, match=said.replace("?", r"\?")):
            with_keymap(table, "keymap.toml")
    file.write_text("[keymap\n")
    with pytest.raises(UserInputError, match="not TOML"):
        load_keymap(file)


def luminance(color: Color) -> float:
    """WCAG 2.2 relative luminance."""
    parts = [c / 255 for c in color.get_truecolor()]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: Color, b: Color) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["forge-dark", "forge-light"])
def test_everything_readable_has_contrast(name: str) -> None:
    """WCAG AA: 4.5 for text, 3 for what only separates or repeats."""
    palette = load_theme(theme_names()[name])
    for role in ROLES:
        style = palette.styles[role]
        assert style.color is not None and style.bgcolor is not None
        need = 3.0 if role in ("guide", "rule", "gutter", "pruned", "bar", "bar_good") else 4.5
        if role == "rule":
            need = 2.0
        assert contrast(style.color, style.bgcolor) >= need, (role, contrast(style.color, style.bgcolor))
    for syntax in (r for r in ROLES if r.startswith("syn_")):
        for kind in ("added", "removed"):
            style = palette.styles[f"{syntax}@{kind}"]
            assert style.color is not None and style.bgcolor is not None
            assert contrast(style.color, style.bgcolor) >= 3.0, (syntax, kind)


@pytest.mark.parametrize("name", ["forge-dark", "forge-light"])
def test_red_belongs_to_problems_alone(name: str) -> None:
    palette = load_theme(theme_names()[name])
    for role in ROLES:
        for color in (palette.styles[role].color, palette.styles[role].bgcolor):
            assert color is not None
            red, green, blue = color.get_truecolor()
            is_red = red > 90 and red > 1.6 * green and red > 1.4 * blue
            assert not is_red or role == "problem", role


def test_every_state_has_a_glyph_a_word_and_a_role_that_differ_without_colour() -> None:
    for state in (*NODE_STATES, *CARD_STATES):
        assert state in STATE_ROLES
        for glyphs in (UNICODE, ASCII):
            assert len(glyphs.states[state]) == 1
        assert ASCII.states[state].isascii()
    different = ("baseline", "running", "repair", "correct", "champion", "rejected", "pruned", "unknown", "problem")
    for glyphs in (UNICODE, ASCII):
        assert len({glyphs.states[s] for s in different}) == len(different)


def test_a_broken_theme_is_named_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    (tmp_path / "mine.toml").write_text('name = "mine"\n[colors]\n[roles]\n')
    palette, said = choose_theme(Options(theme="mine", theme_folder=tmp_path))
    assert palette.name == "forge-dark" and "colors.background is missing" in said
    palette, said = choose_theme(Options(theme="nosuch"))
    assert palette.name == "forge-dark" and "there is no theme nosuch" in said
    data = {
        "name": "x",
        "colors": dict.fromkeys(
            ("background", "foreground", "primary", "accent", "surface", "panel", "success", "warning", "error"),
            "#ffffff",
        ),
        "roles": dict.fromkeys(ROLES, "#zz"),
    }
    with pytest.raises(UserInputError, match=r"roles\.text"):
        parse_theme(data, "x.toml")


def test_no_color_chooses_the_terminals_own_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    palette, said = choose_theme(Options())
    assert palette.ansi and said == ""
    for style in palette.styles.values():
        assert style.color is None or style.color.is_default
        assert style.bgcolor is None or style.bgcolor.is_default


@given(st.integers(40, 320), st.integers(12, 110), st.sampled_from(PANES), st.sampled_from(PANES[1:3]), st.booleans())
def test_panes_cover_the_area_and_never_overlap(width: int, height: int, focus: str, beside: str, zoomed: bool) -> None:
    layout = layout_of(width, height)
    places = arrange(layout, width, height, focus, beside, zoomed)
    seen: set[tuple[int, int]] = set()
    for place in places.values():
        assert place.width > 0 and place.height > 1
        cells = {(x, y) for x in range(place.x, place.x + place.width) for y in range(place.y, place.y + place.height)}
        assert not cells & seen
        seen |= cells
    assert len(seen) == width * height


def test_sizes_get_the_layout_they_were_designed_for() -> None:
    assert [layout_of(w, h) for w, h in ((80, 24), (120, 40), (200, 60), (300, 100), (200, 20))] == [
        "narrow",
        "middle",
        "wide",
        "wide",
        "narrow",
    ]
