"""A search goes on while someone reads: cursors stay, nothing is lost, and a store that fails is said once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from driving import app_on, footer_says, main_of, settled, until
from fake_source import FakeSource

from forge_tui.records.problem import MachineProblem
from forge_tui.records.views import Changes
from forge_tui.tui.feed import Feed
from forge_tui.tui.panes.log import WINDOW


def not_timing(fake: FakeSource) -> FakeSource:
    """While the judge times, the screen reads twice a second only; these tests have many rounds."""
    calm = replace(fake.status(), judging="")
    fake.status = lambda: calm  # type: ignore[method-assign]
    return fake


async def test_new_nodes_never_move_the_cursor_and_follow_does() -> None:
    fake = not_timing(FakeSource(cards=1, nodes=80))
    app = app_on(fake)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.press("2", "G", "k", "k")
        await settled(pilot)
        tree = main_of(app).tree_pane
        node, row_on_screen = tree.current(), tree.cursor - tree.top
        for _ in range(5):
            fake.grow(nodes=3, lines=2)
            app.nudge()
            size = len(fake.nodes("c1"))
            await until(pilot, lambda size=size: len(tree.model) == size)
        assert tree.current() == node
        assert tree.cursor - tree.top == row_on_screen
        await pilot.press("f")
        fake.grow(nodes=1)
        app.nudge()
        await until(pilot, lambda: tree.current() == fake.nodes("c1")[-1])
        await pilot.press("k")
        assert not tree.follow


async def test_a_thousand_nodes_at_once_arrive() -> None:
    fake = FakeSource(cards=1, nodes=40)
    app = app_on(fake)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        fake.grow(nodes=1000, lines=0)
        app.nudge()
        await until(pilot, lambda: len(main_of(app).tree_pane.model) == 1040)


async def test_a_flood_of_log_lines_is_counted_and_can_be_read_back() -> None:
    fake = FakeSource(cards=1, nodes=20, logs=50)
    app = app_on(fake)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        pane = main_of(app).log_pane
        fake.grow(nodes=0, lines=5000)
        app.nudge()
        await until(pilot, lambda: pane.last_seq == 5050)
        assert pane.skipped == 4500 and "4,500 not shown" in pane.title()
        assert len(pane.rows) == 500
        await pilot.press("4", "g", "k")
        await until(pilot, lambda: len(pane.rows) == 1000)
        assert [r.seq for r in pane.rows] == list(range(4051, 5051))
        await pilot.press("G")
        assert pane.follow and pane.skipped == 0


async def test_the_log_keeps_a_bounded_window() -> None:
    fake = not_timing(FakeSource(cards=1, nodes=20, logs=10))
    app = app_on(fake)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        pane = main_of(app).log_pane
        for _ in range(10):
            fake.grow(nodes=0, lines=450)
            app.nudge()
            last = fake.log_count()
            await until(pilot, lambda last=last: pane.last_seq == last)
        assert len(pane.rows) <= WINDOW and pane.skipped == 0


async def test_an_unreadable_store_is_said_once_and_the_app_lives() -> None:
    fake = FakeSource(cards=1, nodes=20)
    app = app_on(fake)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        working = fake.changes

        def broken(since: int) -> Changes:
            raise MachineProblem("disk full")

        fake.changes = broken  # type: ignore[method-assign]
        app.nudge()
        await until(pilot, lambda: footer_says(app, "can't be read: disk full"))
        fake.changes = working  # type: ignore[method-assign]
        fake.grow()
        app.nudge()
        await until(pilot, lambda: len(main_of(app).tree_pane.model) == 21)


async def test_a_resize_storm_ends_in_the_right_layout() -> None:
    app = app_on(FakeSource(cards=8, nodes=40))
    async with app.run_test(size=(80, 24)) as pilot:
        for size in ((200, 60), (40, 12), (120, 40), (300, 100), (81, 25), (160, 40), (200, 60)):
            await pilot.resize_terminal(*size)
        await settled(pilot)
        main = main_of(app)
        assert main.layout_name == "wide" and all(main.shows(name) for name in main.panes)


async def test_an_empty_session_shows_and_fills() -> None:
    fake = FakeSource(cards=0, nodes=0, logs=0)
    app = app_on(fake)
    async with app.run_test(size=(200, 60)) as pilot:
        text = await settled(pilot)
        assert "nothing selected" in text
        await pilot.press("2", "j", "b", "p", "enter", "3", "n", "5", "j", "4", "k", "enter", "1", "enter")
        filled = FakeSource(cards=3, nodes=20)
        fake.cards, fake.nodes = filled.cards, filled.nodes  # type: ignore[method-assign]
        fake._seq = 5
        fake.changes = lambda since: Changes(5, cards=since < 5)  # type: ignore[method-assign]
        app.nudge()
        await until(pilot, lambda: main_of(app).view.card_id)


async def test_many_nudges_are_one_read() -> None:
    reads: list[int] = []

    class Counting(FakeSource):
        def changes(self, since: int) -> Changes:
            reads.append(since)
            return super().changes(since)

    async def nothing(changes: Changes) -> None:
        return None

    feed = Feed(Counting(1, 5), nothing, lambda line: None, 0.05, poll_s=30)
    task = asyncio.create_task(feed.run())
    await asyncio.sleep(0.05)
    for _ in range(1000):
        feed.nudge()
    await asyncio.sleep(0.3)
    task.cancel()
    feed.close()
    assert 1 <= len(reads) <= 4


async def test_the_cards_cursor_stays_on_top_until_someone_moves_it() -> None:
    fake = FakeSource(cards=12, nodes=30)
    app = app_on(fake)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        pane = main_of(app).cards_pane
        rows = list(fake.cards())
        leader = replace(
            next(r for r in rows if r.card_id != pane.current().card_id),
            share=0.9,
            state="running",
            speedup=None,
            best_us=None,
        )
        fake._cards = [leader if r.card_id == leader.card_id else r for r in rows]
        fake.grow()
        app.nudge()
        await until(pilot, lambda: main_of(app).view.card_id == leader.card_id)
        await pilot.press("j")
        chosen = pane.current()
        fake._cards = rows
        fake.grow()
        app.nudge()
        await settled(pilot)
        assert pane.current().card_id == chosen.card_id
