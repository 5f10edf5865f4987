"""Runs the app on the fake source in a real terminal: what the pty tests and the bench start.

usage: fake_app.py [CARDS] [NODES] [STATE] [--ascii] [--theme NAME] [--readonly] [--home] [--open PATH] [--live RATE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from fake_source import FakeHome, FakeSource  # noqa: E402

from forge_tui.records.problem import UserInputError  # noqa: E402
from forge_tui.tui.app import ForgeApp, run_app  # noqa: E402
from forge_tui.tui.options import Options  # noqa: E402


class Live(ForgeApp):
    """A search goes on: a node and ten log lines, `rate` times a second."""

    def __init__(self, source: FakeSource, rate: float, options: Options) -> None:
        super().__init__(source, source.send, options=options)
        self.source, self.rate = source, rate

    def on_ready(self) -> None:
        self.set_interval(1 / self.rate, self.tick)

    def tick(self) -> None:
        self.source.grow(1, 10)
        self.nudge()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cards", type=int, nargs="?", default=50)
    parser.add_argument("nodes", type=int, nargs="?", default=120)
    parser.add_argument("state", nargs="?", default="paused")
    parser.add_argument("--ascii", action="store_true")
    parser.add_argument("--theme", default="")
    parser.add_argument("--readonly", action="store_true")
    parser.add_argument("--home", action="store_true")
    parser.add_argument("--open", default="")
    parser.add_argument("--live", type=float, default=0.0)
    args = parser.parse_args()
    options = Options(theme=args.theme, ascii=args.ascii)
    if args.home:
        from forge_tui.settings.schema import Settings

        try:
            return run_app(FakeHome(), Settings(), args.open)
        except UserInputError as error:
            print(f"one line: {error}")
            return 2
    source = FakeSource(args.cards, args.nodes, args.state)
    app = ForgeApp(source, source.send, args.readonly, options=options)
    if args.live:
        app = Live(source, args.live, options)
    print("ended:", app.run())
    heavy = {"torch", "triton", "cupy", "litellm", "numpy", "pydantic", "sqlite_utils"} & set(sys.modules)
    print("heavy:", sorted(heavy))
    print("sent:", [f"{c.verb} {c.subject} {'EDITED' in str(c.value)}" for c in source.sent])
    return app.return_code or 0


if __name__ == "__main__":
    raise SystemExit(main())
