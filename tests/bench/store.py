"""How fast a large session opens and is written.

    python tests/bench/store.py [nodes]      (default 50,000; medians of 7, best in brackets)

Budget: the rows of 50,000 nodes in 250 ms at most, an empty poll far below a millisecond.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "store")]

from rows_for_tests import candidate, card, passed, rejected  # noqa: E402

from forge_tui.store.reader import Reader  # noqa: E402
from forge_tui.store.session import Session  # noqa: E402
from forge_tui.store.store import Store  # noqa: E402


def timed(what: str, action: Callable[[], object], rounds: int = 7) -> None:
    times, work = [], []
    for _ in range(rounds):
        begin, used = time.perf_counter(), time.process_time()
        action()
        times.append((time.perf_counter() - begin) * 1e3)
        work.append((time.process_time() - used) * 1e3)
    print(
        f"{what:44} {statistics.median(times):9.3f} ms [{min(times):.3f}]  processor {statistics.median(work):.3f} ms"
    )


def fill(session: Session, count: int) -> None:
    store = Store.open(session)
    begin = time.perf_counter()
    store.add_card(card())
    for number in range(1, count + 1):
        parent = f"n{number // 3}" if number > 3 else ""
        store.add_candidate(candidate(f"n{number}", parent))
        verdict = (
            rejected(f"n{number}") if number % 3 else passed(f"n{number}", 1 + number % 100 / 100, number % 99 == 0)
        )
        store.add_verdict(verdict)
    store.add_note("filled", "").result()
    seconds = time.perf_counter() - begin
    print(f"{2 * count} facts written in {seconds:.1f} s: {2 * count / seconds:.0f} a second")
    one = [0.0] * 50
    for index in range(50):
        begin = time.perf_counter()
        store.add_note("single", "").result()
        one[index] = (time.perf_counter() - begin) * 1e3
    print(f"{'one fact, put to announced':44} {statistics.median(one):9.3f} ms [{min(one):.3f}]")
    timed("statistics of every node written", lambda: store.write_snapshot("c1", {f"n{n}": (n, time.time()) for n in range(1, count + 1)}).result(), 3)  # fmt: skip
    store.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    with tempfile.TemporaryDirectory() as folder:
        session = Session.create(Path(folder) / "s", "bench")
        fill(session, count)
        timed("open a reader", lambda: Reader(session.path).close())
        with Reader(session.path) as reader:
            timed(f"rows of {len(reader.nodes('c1'))} nodes", lambda: reader.nodes("c1"))
            timed("cards", reader.cards)
            timed("status", reader.status)
            timed("summary", reader.summary)
            seq = reader.changes(reader.seq()).seq
            timed("a poll when nothing changed", lambda: reader.changes(seq), 100)
            timed("one candidate whole", lambda: reader.candidate("n77"), 100)
        timed("open as owner", lambda: Store.open(session).close(), 3)


main()
