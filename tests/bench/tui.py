"""What the screen costs: time to five panes, bytes a key, idle bytes, a large tree from disk, a live search.

    python tests/bench/tui.py [rounds]      (default 10; medians, best and worst in brackets)

Whole processes under a pseudo terminal, on real sessions in real stores. Bytes are exact; times need a quiet machine.
Budgets: five panes of a 50-card session at 200x60 in 400 ms; a tree of 50,000 nodes from disk, expanded, in 900 ms;
600 bytes a cursor key before followers, 24,000 after; 0 bytes and under 1% of a core when idle.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "store"), str(ROOT / "tests" / "tui")]

from pty_harness import Terminal  # noqa: E402
from rows_for_tests import candidate, card, passed, rejected  # noqa: E402

from forge_tui.store.session import Session  # noqa: E402
from forge_tui.store.store import Store  # noqa: E402

VIEW = """
import sys
sys.path.insert(0, {root!r})
import asyncio
from pathlib import Path
from forge_tui.store.reader import Reader
from forge_tui.tui.app import ForgeApp
reader = Reader(Path({path!r}))
async def send(command):
    raise OSError("no owner in the bench")
ForgeApp(reader, send, True).run()
"""


def fill(path: Path, cards: int, nodes: int) -> str:
    """A stored session: `cards` cards, the first with `nodes` candidates, the others with 20."""
    session = Session.create(path, path.name)
    store = Store.open(session)
    number = 0
    for k in range(1, cards + 1):
        store.add_card(card(f"c{k}", share=0.5 / k))
        first = number + 1
        for _ in range(nodes if k == 1 else 20):
            number += 1
            offset = number - first
            parent = f"n{first + offset // 4}" if offset > 3 else ""
            store.add_candidate(candidate(f"n{number}", parent, f"c{k}"))
            if number % 3:
                store.add_verdict(rejected(f"n{number}", card_id=f"c{k}"))
            else:
                store.add_verdict(passed(f"n{number}", 1 + number % 100 / 100, number % 99 == 0, f"c{k}"))
    for k in range(500):
        store.log("info", f"line {k}: compiled in 0.71 s", "c1", "n1")
    store.add_note("filled", "").result()
    store.close()
    return str(session.path)


def program(path: str) -> list[str]:
    return [sys.executable, "-c", VIEW.format(root=str(ROOT), path=path)]


def report(what: str, values: Sequence[float], unit: str) -> None:
    print(f"{what:58} {statistics.median(values):9.1f} {unit} [{min(values):.1f}, {max(values):.1f}]", flush=True)


def until_drawn(argv: list[str], columns: int, rows: int, mark: str) -> float:
    """Milliseconds from the start of the process to the footer, which is drawn last."""
    with Terminal(argv, columns, rows) as terminal:
        terminal.until(mark)
        terminal.until("quit")
        return (time.perf_counter() - terminal.started) * 1e3


def keys(path: str, columns: int, rows: int) -> None:
    with Terminal(program(path), columns, rows) as terminal:
        terminal.until("quit")
        terminal.quiet(0.6)
        print(f"{columns}x{rows}: start-up {len(terminal.out):,} bytes, {terminal.resident_mib():.0f} MiB")
        for name, pane, edge, step in (
            ("cards", b"1", b"g", b"j"),
            ("tree", b"2", b"g", b"j"),
            ("log", b"4", b"G", b"k"),
        ):
            terminal.send(pane + edge)
            terminal.quiet(0.6)
            own, after = [], []
            for _ in range(6):
                own.append(float(terminal.key(step, 0.12)))
                after.append(float(terminal.quiet(0.4)))
            report(f"  {name}: cursor key", own, "bytes")
            report(f"  {name}: followers", after, "bytes")
        terminal.send(b"2g")
        terminal.quiet(0.6)
        report("  tree: page down", [float(terminal.key(b"\x1b[6~", 0.12)) for _ in range(5)], "bytes")
        terminal.quiet(0.6)
        before = terminal.cpu_seconds()
        idle = terminal.during(5.0)
        print(f"  idle for 5 s: {idle} bytes, {(terminal.cpu_seconds() - before) / 5 * 100:.1f}% of a core")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as folder:
        small = fill(Path(folder) / "small", 50, 200)
        large = fill(Path(folder) / "large", 1, 50_000)
        until_drawn(program(small), 200, 60, "profile")
        plain = [sys.executable, "-c", "import textual.app, textual.screen; print('imported quit')"]
        report(
            "for comparison: python and Textual imported",
            [until_drawn(plain, 80, 24, "imported") for _ in range(rounds)],
            "ms",
        )
        for size in ((80, 24), (120, 40), (200, 60)):
            report(
                f"50 cards, all panes drawn at {size[0]}x{size[1]}",
                [until_drawn(program(small), *size, "cards") for _ in range(rounds)],
                "ms",
            )
        report(
            "50,000 nodes from disk, expanded, at 200x60",
            [until_drawn(program(large), 200, 60, "cards") for _ in range(max(3, rounds // 2))],
            "ms",
        )
        for size in ((80, 24), (120, 40), (200, 60)):
            keys(small, *size)
    live = [sys.executable, str(ROOT / "tests" / "tui" / "fake_app.py"), "50", "5000", "paused", "--live", "20"]
    with Terminal(live, 200, 60) as terminal:
        terminal.until("quit")
        terminal.during(1.0)
        before = terminal.cpu_seconds()
        sent = terminal.during(6.0)
        print(
            f"live, 20 nodes and 200 log lines a second: {sent / 6 / 1000:.0f} KB/s, {(terminal.cpu_seconds() - before) / 6 * 100:.0f}% of a core"
        )


main()
