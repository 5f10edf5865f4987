"""Every action by its key: what it changes on the screen, and which command leaves for the owner of the run."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from driving import app_on, footer_says, home_app, main_of, settled, until
from fake_source import FakeHome, FakeSource
from textual.pilot import Pilot

from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.problem import UserInputError
from forge_tui.tui.options import Options
from forge_tui.tui.screens.candidate import CandidateScreen
from forge_tui.tui.screens.home import HomeScreen
from forge_tui.tui.screens.main import MainScreen
from forge_tui.tui.screens.small import ChoiceScreen, LineScreen, PaletteScreen, TextScreen
from forge_tui.tui.source import OpenSession


def source() -> FakeSource:
    return FakeSource(cards=8, nodes=60, logs=60)


async def on_node(pilot: Pilot[Any]) -> str:
    """Put the cursor on a candidate in the tree."""
    await settled(pilot)
    await pilot.press("2", "G")
    await settled(pilot)
    row = main_of(pilot.app).tree_pane.current()
    assert row is not None and row.state != "baseline"
    return row.node_id


@pytest.mark.parametrize(("key", "verb"), [("p", "prune"), ("i", "pin"), ("x", "expand"), ("r", "rejudge")])
async def test_a_key_on_a_node_sends_its_command(key: str, verb: str) -> None:
    fake = source()
    app = app_on(fake)
    async with app.run_test(size=(120, 40)) as pilot:
        name = await on_node(pilot)
        await pilot.press(key)
        await until(pilot, lambda: fake.sent)
        assert fake.sent == [Command(verb, name)]
        await until(pilot, lambda: footer_says(app, f"done: {verb} {name}"))


@pytest.mark.parametrize(("key", "verb"), [("space", "pause"), ("E", "export")])
async def test_a_key_on_the_run_sends_its_command(key: str, verb: str) -> None:
    fake = source()
    async with app_on(fake).run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: fake.sent == [Command(verb)])


async def test_space_on_a_paused_run_resumes_it() -> None:
    fake = FakeSource(cards=2, nodes=10, state="paused")
    async with app_on(fake).run_test(size=(80, 24)) as pilot:
        await pilot.press("space")
        await until(pilot, lambda: fake.sent == [Command("resume")])


async def test_a_node_command_on_eager_sends_nothing() -> None:
    fake = source()
    app = app_on(fake)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("2", "g", "p")
        await until(pilot, lambda: footer_says(app, "choose a candidate"))
        assert fake.sent == []


async def test_stop_asks_first() -> None:
    fake = source()
    async with app_on(fake).run_test(size=(80, 24)) as pilot:
        await pilot.press("S")
        await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceScreen))
        await pilot.press("n")
        await pilot.pause()
        assert fake.sent == []
        await pilot.press("S", "s")
        await until(pilot, lambda: fake.sent == [Command("stop")])


@pytest.mark.parametrize(
    ("typed", "value"), [("800", {"attempts": 800}), ("$5.5", {"dollars": 5.5}), ("many", None), ("-3", None)]
)
async def test_a_budget_is_typed_and_checked(typed: str, value: dict[str, Any] | None) -> None:
    fake = source()
    app = app_on(fake)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("B")
        await until(pilot, lambda: isinstance(app.screen, LineScreen))
        app.screen.input.value = typed
        await pilot.press("enter")
        if value is None:
            await until(pilot, lambda: footer_says(app, "budget"))
            assert fake.sent == []
        else:
            await until(pilot, lambda: fake.sent == [Command("budget", "", value)])


async def test_a_refused_and_a_failed_command_are_shown() -> None:
    fake = source()
    app = app_on(fake)

    async def refuse(command: Command) -> Acknowledgement:
        return Acknowledgement(1, "refused", "the owner is stopping")

    async def fail(command: Command) -> Acknowledgement:
        raise ConnectionRefusedError("no owner listens")

    async with app.run_test(size=(80, 24)) as pilot:
        main = main_of(app)
        main.session = OpenSession("s", fake, refuse)
        await pilot.press("space")
        await until(pilot, lambda: footer_says(app, "refused: the owner is stopping"))
        main.session = OpenSession("s", fake, fail)
        await pilot.press("space")
        await until(pilot, lambda: footer_says(app, "pause: no owner listens"))


async def test_focus_zoom_and_panes_at_every_size() -> None:
    for size, shown in (((80, 24), 1), ((120, 40), 3), ((200, 60), 5)):
        app = app_on(source())
        async with app.run_test(size=size) as pilot:
            main = main_of(app)
            for k, name in enumerate(("cards", "tree", "source", "log", "profile")):
                await pilot.press(str(k + 1))
                await pilot.pause()
                assert main.focus_name == name and main.panes[name].active and main.shows(name)
                assert sum(main.shows(n) for n in main.panes) == shown
            await pilot.press("tab")
            assert main.focus_name == "cards"
            await pilot.press("shift+tab")
            assert main.focus_name == "profile"
            if shown > 1:
                await pilot.press("z")
                assert sum(main.shows(n) for n in main.panes) == 1
                await pilot.press("escape")
                assert sum(main.shows(n) for n in main.panes) == shown


async def test_moving_folding_and_jumping_in_the_tree() -> None:
    app = app_on(FakeSource(cards=1, nodes=80))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.press("2")
        tree = main_of(app).tree_pane
        await pilot.press("g", "j", "down")
        assert tree.cursor == 2
        await pilot.press("b")
        assert tree.current() is not None and tree.current().state == "champion"
        await pilot.press("u")
        assert tree.current().node_id == tree.model.rows[tree.model.parent[tree.model.best()]].node_id
        await pilot.press("g", "h")
        assert len(tree.model.shown) == 1
        await pilot.press("l")
        assert len(tree.model.shown) == 80
        await pilot.press("n")
        assert tree.current().state == "rejected"
        before = tree.cursor
        await pilot.press("n")
        assert tree.current().state == "rejected" and tree.cursor > before
        await pilot.press("N")
        assert tree.cursor == before
        await pilot.press("minus")
        assert tree.folded_failures
        await pilot.press("minus", "G")
        assert tree.cursor == 79
        await pilot.press("g", "o")
        assert len(tree.model.shown) == 1


async def test_the_diff_is_against_parent_eager_champion_and_mark() -> None:
    app = app_on(FakeSource(cards=1, nodes=60))
    async with app.run_test(size=(200, 60)) as pilot:
        await settled(pilot)
        main = main_of(app)
        await pilot.press("2")
        tree = main.tree_pane
        child = next(n for n, r in enumerate(tree.model.rows) if tree.model.depth[n] >= 2 and r.state == "correct")
        tree.go_to(child)
        await settled(pilot)
        parent = tree.model.rows[tree.model.parent[child]].node_id
        assert main.source_pane.text is not None and main.source_pane.text.other == parent
        await pilot.press("d")
        await settled(pilot)
        assert main.source_pane.text.other == "eager" and "torch.ops.aten" in main.source_pane.text.old_text
        await pilot.press("d")
        await settled(pilot)
        assert main.source_pane.text.other == tree.model.rows[tree.model.best()].node_id
        await pilot.press("g", "j", "m")
        marked = tree.current().node_id
        tree.go_to(child)
        await pilot.press("d")
        await settled(pilot)
        assert main.source_pane.text.other == marked
        await pilot.press("3", "n", "v")
        assert main.source_pane.side_by_side


async def test_filters_apply_while_typed_and_escape_takes_them_back() -> None:
    app = app_on(FakeSource(cards=20, nodes=60))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        main = main_of(app)
        await pilot.press("slash", *"gelu")
        await until(pilot, lambda: 0 < len(main.cards_pane.rows) < 20)
        assert all("gelu" in r.title for r in main.cards_pane.rows)
        await pilot.press("escape")
        await until(pilot, lambda: len(main.cards_pane.rows) == 20)
        await pilot.press("2", "slash", *"state=rej", "enter")
        await until(pilot, lambda: main.tree_pane.query_text == "state=rej")
        await pilot.press("escape")
        assert main.tree_pane.query_text == ""
        await pilot.press("4", "slash", *"num", "enter")
        await settled(pilot)
        assert main.log_pane.rows and all("num" in r.text for r in main.log_pane.rows)
        await pilot.press("1", "slash", *"no>1", "enter")
        await until(pilot, lambda: footer_says(app, "no field no;"))


async def test_cards_sort_and_open_their_tree() -> None:
    app = app_on(FakeSource(cards=12, nodes=60))
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        main = main_of(app)
        order = [r.card_id for r in main.cards_pane.rows]
        await pilot.press("s")
        assert [r.card_id for r in main.cards_pane.rows] != order
        await pilot.press("G", "enter")
        await settled(pilot)
        assert main.focus_name == "tree"
        assert main.view.card_id == main.cards_pane.current().card_id
        assert all(r.card_id == main.view.card_id for r in main.tree_pane.model.rows)


async def test_log_levels_scope_and_follow() -> None:
    app = app_on(FakeSource(cards=1, nodes=30, logs=300))
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        main = main_of(app)
        await pilot.press("4", "L", "L")
        await settled(pilot)
        assert {r.level for r in main.log_pane.rows} <= {"good", "warn", "bad"}
        await pilot.press("L", "L", "L", "a", "a")
        await settled(pilot)
        node = main.tree_pane.current().node_id
        assert all(r.candidate_id == node for r in main.log_pane.rows)
        await pilot.press("a", "k", "k")
        await settled(pilot)
        assert not main.log_pane.follow
        await pilot.press("f")
        assert main.log_pane.follow and main.log_pane.cursor == len(main.log_pane.rows) - 1


async def test_the_timeline_of_a_candidate_folds() -> None:
    app = app_on(source())
    async with app.run_test(size=(80, 24)) as pilot:
        await on_node(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, CandidateScreen) and app.screen.timeline.entries)
        timeline = app.screen.timeline
        short = timeline.item_count()
        await pilot.press("g", "enter")
        assert timeline.item_count() > short
        await pilot.press("enter")
        assert timeline.item_count() == short
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))


async def test_the_palette_reaches_an_action_of_another_pane() -> None:
    app = app_on(source())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, PaletteScreen))
        await pilot.press(*"columns", "enter")
        await until(pilot, lambda: main_of(app).focus_name == "source" and main_of(app).source_pane.side_by_side)


async def test_help_lists_the_keys_and_closes() -> None:
    app = app_on(source())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, TextScreen))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))


async def test_a_users_key_works_and_the_old_one_does_not() -> None:
    from forge_tui.tui.actions import with_keymap

    fake = source()
    app = app_on(fake, options=Options(actions=with_keymap({"pause": "ctrl+o"}, "keymap")))
    async with app.run_test(size=(80, 24)) as pilot:
        assert "ctrl-o" in main_of(app).footer.text
        await pilot.press("space", "ctrl+o")
        await until(pilot, lambda: fake.sent)
        assert fake.sent == [Command("pause")]


async def test_saving_a_source_never_overwrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_on(source())
    async with app.run_test(size=(120, 40)) as pilot:
        name = await on_node(pilot)
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, LineScreen))
        await pilot.press("enter")
        file = tmp_path / f"{name}.cpp"
        await until(pilot, file.exists)
        assert "forge_launch" in file.read_text()
        await pilot.press("w", "enter")
        await until(pilot, lambda: footer_says(app, "exists; choose another name"))


async def test_copy_says_how_and_never_that_it_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_on(source())
    async with app.run_test(size=(120, 40)) as pilot:
        await on_node(pilot)
        await pilot.press("y")
        await until(pilot, lambda: footer_says(app, "sent to the terminal's clipboard (OSC 52)"))
        assert "forge_launch" in app.clipboard


async def test_quit_asks_what_a_running_search_should_do() -> None:
    ends: list[str] = []

    async def close(how: str) -> None:
        ends.append(how)

    for key, how in (("k", "keep"), ("s", "stop")):
        fake = source()
        app = app_on(fake)
        app.session = OpenSession("s", fake, fake.send, close=close, can_keep=True)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("q")
            await until(pilot, lambda app=app: isinstance(app.screen, ChoiceScreen))
            await pilot.press("n")
            await pilot.press("q", key)
            await until(pilot, lambda app=app: app.return_value is not None)
        assert app.return_value == how
    assert ends == ["keep", "stop"]


async def test_a_finished_run_and_a_viewer_quit_at_once() -> None:
    for fake, readonly in ((FakeSource(2, 10, "finished"), False), (source(), True)):
        app = app_on(fake, readonly=readonly)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("q")
            await until(pilot, lambda app=app: app.return_value is not None)
        assert app.return_value == "leave"


async def test_a_viewer_steers_and_takes_over() -> None:
    fake = source()
    taken: list[bool] = []

    async def take() -> OpenSession:
        taken.append(True)
        if len(taken) == 1:
            raise UserInputError("the owner is alive and keeps the run")
        return OpenSession("s", fake, fake.send)

    app = app_on(fake, readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        main = main_of(app)
        app.session = main.session = OpenSession("s", fake, fake.send, readonly=True, take_over=take)
        await pilot.press("space")
        await until(pilot, lambda: fake.sent == [Command("pause")])
        await pilot.press("T", "t")
        await until(pilot, lambda: footer_says(app, "keeps the run"))
        await pilot.press("T", "t")
        await until(pilot, lambda: main_of(app) is not main)
        assert not main_of(app).session.readonly


def editor(folder: Path, body: str) -> str:
    """A shell script that stands for the user's editor; returns its path."""
    script = folder / "editor.sh"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


async def test_home_lists_opens_starts_and_deletes() -> None:
    home = FakeHome()
    app = home_app(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        screen = app.screen
        assert isinstance(screen, HomeScreen)
        await pilot.press("n", *"nothing.py", "enter")
        await until(pilot, lambda: footer_says(app, "no such file"))
        await pilot.press("j", "x", "x")
        await until(pilot, lambda: home.deleted == ["/s/1"])
        await until(pilot, lambda: len(screen.list.rows) == 6)
        await pilot.press("g", "enter")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        await pilot.press("H", "s")
        await until(pilot, lambda: isinstance(app.screen, HomeScreen))
        await pilot.press("D")
        await until(pilot, lambda: isinstance(app.screen, TextScreen))
        await pilot.press("escape")
        await pilot.press("n", *"example:x", "enter")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))


async def test_stray_markup_and_escapes_are_shown_as_text() -> None:
    from dataclasses import replace

    fake = FakeSource(cards=2, nodes=12)
    fake._nodes["c1"] = [replace(r, label="[red]x[/] \x1b[31m[link=a]", line="") for r in fake._nodes["c1"]]
    fake._log = [replace(r, text="[/nothing] \x1b]0;title\x07 [bold]") for r in fake._log]
    app = app_on(fake)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("1", "G")
        await settled(pilot)
        await pilot.press("g")
        text = await settled(pilot)
    assert "[/nothing]  [bold]" in text
    assert "\x1b" not in text
