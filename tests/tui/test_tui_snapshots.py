"""Every screen as text in the three layouts. FORGE_UPDATE_SNAPSHOTS=1 writes them anew; look at the difference before committing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from driving import app_on, home_app, settled
from fake_source import FakeHome, FakeSource

from forge_tui.tui.options import Options

FOLDER = Path(__file__).parent / "snapshots"
SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x60": (200, 60)}
CASES: dict[str, tuple[tuple[str, ...], Options]] = {
    "cards": ((), Options()),
    "tree": (("2",), Options()),
    "source": (("2", "G", "k", "3"), Options()),
    "side-by-side": (("2", "G", "k", "3", "z", "v"), Options()),
    "log": (("4",), Options()),
    "profile": (("5",), Options()),
    "rejected": (("2", "G", "k", "5"), Options()),
    "candidate": (("2", "enter"), Options()),
    "help": (("question_mark",), Options()),
    "palette": (("colon",), Options()),
    "quit": (("q",), Options()),
    "filter": (("2", "slash", *"state=rej"), Options()),
    "ascii": (("2",), Options(ascii=True)),
}


def compare(name: str, text: str) -> None:
    file = FOLDER / f"{name}.txt"
    if os.environ.get("FORGE_UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
async def test_the_main_screens_look_as_before(case: str, size: str) -> None:
    keys, options = CASES[case]
    app = app_on(FakeSource(cards=20, nodes=60, logs=60), options=options)
    async with app.run_test(size=SIZES[size]) as pilot:
        await settled(pilot)
        await pilot.press(*keys)
        text = await settled(pilot)
    assert all(len(line) <= SIZES[size][0] for line in text.splitlines())
    if options.ascii:
        assert text.isascii()
    compare(f"{case}-{size}", text)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", ["home", "doctor", "delete"])
async def test_the_home_screens_look_as_before(case: str, size: str) -> None:
    app = home_app(FakeHome())
    async with app.run_test(size=SIZES[size]) as pilot:
        await settled(pilot)
        await pilot.press(*{"home": (), "doctor": ("D",), "delete": ("x",)}[case])
        text = await settled(pilot)
    compare(f"{case}-{size}", text)


@pytest.mark.parametrize("theme", ["forge-light", "ansi"])
async def test_a_theme_changes_colours_and_not_one_letter(theme: str) -> None:
    app = app_on(FakeSource(cards=20, nodes=60, logs=60), options=Options(theme=theme))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.press("2")
        text = await settled(pilot)
    compare("tree-120x40", text)
