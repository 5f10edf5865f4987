"""The app in a real terminal: what it sends, what it survives, how it leaves. Bytes are exact; no test here asserts a time."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest
from pty_harness import Terminal

APP = [sys.executable, str(Path(__file__).parent / "fake_app.py")]
CURSOR_KEY = 600
FOLLOWERS = 24_000
PAGE = 11_000
REST = 0.12  # followers start 150 ms after the key
LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"


def started(terminal: Terminal) -> Terminal:
    terminal.until("quit")
    terminal.quiet(0.4)
    return terminal


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_a_cursor_key_costs_few_bytes_and_nothing_is_sent_when_idle(size: tuple[int, int]) -> None:
    with Terminal([*APP, "50", "2000"], *size) as terminal:
        started(terminal)
        assert terminal.during(1.5) == 0
        for pane in (b"1", b"2", b"4"):
            terminal.send(pane)
            terminal.quiet(0.3)
            # From an end of the list, so that a key moves the cursor without scrolling.
            terminal.send(b"G" if pane == b"4" else b"g")
            terminal.quiet(0.35)
            step = b"k" if pane == b"4" else b"j"
            for _ in range(2):
                assert terminal.key(step, REST) <= CURSOR_KEY, pane
                assert terminal.quiet(0.3) <= FOLLOWERS, pane


def test_a_page_of_the_tree_stays_within_its_bytes() -> None:
    with Terminal([*APP, "1", "2000"], 120, 40) as terminal:
        started(terminal)
        terminal.send(b"2g")
        terminal.quiet(0.6)
        for _ in range(3):
            assert terminal.key(b"\x1b[6~", REST) <= PAGE
            terminal.quiet(0.4)


def test_a_finished_process_leaves_no_trace_on_the_terminal_and_imported_nothing_heavy() -> None:
    with Terminal(APP, 80, 24) as terminal:
        started(terminal)
        terminal.send(b"3n5?")
        terminal.quiet(0.4)
        terminal.send(b"\x1b")
        terminal.quiet(0.4)
        terminal.send(b"q")
        terminal.quiet(0.4)
        terminal.send(b"s")
        assert terminal.wait() == 0
        assert b"ended: stop" in terminal.out
        assert b"heavy: []" in terminal.out
        assert LEFT_ALTERNATE_SCREEN in terminal.out and b"\x1b[?25h" in terminal.out and b"\x1b[?1000l" in terminal.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_app_cleanly(number: signal.Signals) -> None:
    with Terminal(APP, 80, 24) as terminal:
        started(terminal)
        os.kill(terminal.pid, number)
        assert terminal.wait() == 128 + number
        if number == signal.SIGTERM:
            assert b"ended: signal" in terminal.out and LEFT_ALTERNATE_SCREEN in terminal.out


def test_a_lost_terminal_ends_the_app_even_when_the_signal_is_ignored(tmp_path: Path) -> None:
    with Terminal(["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *APP], 80, 24) as terminal:
        started(terminal)
        pid = terminal.pid
        terminal.hang_up()
        for _ in range(200):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                terminal.pid = 0
                assert os.waitstatus_to_exitcode(status) in (128 + signal.SIGHUP, 0, 1, 120)
                return
            time.sleep(0.05)
        raise AssertionError("the app outlived its terminal")


@pytest.mark.parametrize(
    "stray", [b"\x1b[M \xb6\x30", b"\xff\xfe", b"\x1b[<0;5;7M\xf0\x28", b"\x1b[200~text\x1b[201~", b"\x00\x1b"]
)
def test_stray_bytes_never_end_the_app(stray: bytes) -> None:
    with Terminal(APP, 120, 40) as terminal:
        started(terminal)
        terminal.send(stray)
        terminal.quiet(0.3)
        terminal.send(b"?")
        terminal.until("Show all keys", 5)


def test_stop_and_continue_brings_the_screen_back() -> None:
    with Terminal(APP, 80, 24) as terminal:
        started(terminal)
        os.kill(terminal.pid, signal.SIGTSTP)
        terminal.quiet(0.4)
        assert LEFT_ALTERNATE_SCREEN in terminal.out
        mark = len(terminal.out)
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.quiet(0.6)
        assert b"cards" in terminal.out[mark:]
        terminal.send(b"?")
        terminal.until("Show all keys", 5)


def test_an_edited_source_is_submitted_as_a_child(tmp_path: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\necho IN THE EDITOR\nsleep 0.3\necho "// EDITED" >> "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    with Terminal(APP, 120, 40, {"EDITOR": str(editor), "VISUAL": ""}) as terminal:
        started(terminal)
        terminal.send(b"2G")
        terminal.quiet(0.5)
        terminal.send(b"e")
        terminal.until("IN THE EDITOR", 5)
        terminal.until("done: submit", 5)
        terminal.quiet(0.3)
        terminal.send(b"q")
        terminal.quiet(0.3)
        terminal.send(b"s")
        terminal.wait()
        assert b"submit n" in terminal.out and b"True" in terminal.out


def test_without_colours_only_the_terminals_own_are_sent() -> None:
    with Terminal(APP, 120, 40, {"NO_COLOR": "1"}) as terminal:
        started(terminal)
        terminal.send(b"2j3j")
        terminal.quiet(0.5)
        assert b"38;2;" not in terminal.out and b"48;2;" not in terminal.out and b"38;5;" not in terminal.out


def test_a_live_search_paints_within_bounds() -> None:
    """20 nodes and 200 log lines a second at 200x60: the flush loop coalesces, whatever arrives."""
    with Terminal([*APP, "50", "2000", "paused", "--live", "20"], 200, 60) as terminal:
        started_at = terminal.until("quit")
        assert started_at > 0
        terminal.during(0.5)
        assert terminal.during(2.0) <= 2 * 250_000


def test_run_app_opens_a_session_goes_home_and_ends(tmp_path: Path) -> None:
    with Terminal([*APP, "--home", "--open", "/s/1"], 80, 24, {"XDG_CONFIG_HOME": str(tmp_path)}) as terminal:
        started(terminal)
        assert b"cards" in terminal.out
        terminal.send(b"H")
        terminal.quiet(0.3)
        terminal.send(b"s")
        terminal.until("sessions", 5)
        terminal.quiet(0.3)
        terminal.send(b"q")
        assert terminal.wait() == 0


def test_a_session_that_cannot_be_opened_is_one_line_and_no_screen(tmp_path: Path) -> None:
    with Terminal([*APP, "--home", "--open", "/s/broken"], 80, 24, {"XDG_CONFIG_HOME": str(tmp_path)}) as terminal:
        assert terminal.wait() == 2
        assert b"one line: /s/broken is damaged" in terminal.out
        assert b"1049h" not in terminal.out


def test_a_broken_keymap_is_one_line_and_no_screen(tmp_path: Path) -> None:
    (tmp_path / "forge_tui").mkdir()
    (tmp_path / "forge_tui" / "keymap.toml").write_text('[keymap]\npuase = "x"\n')
    with Terminal([*APP, "--home"], 80, 24, {"XDG_CONFIG_HOME": str(tmp_path)}) as terminal:
        assert terminal.wait() == 2
        assert b"did you mean pause?" in terminal.out and b"1049h" not in terminal.out
