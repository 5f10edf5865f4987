"""Runs the command line with a bomb inside: SIGKILL to itself at the nth commit or the nth blob rename.

`python kill_driver.py WHAT:N ARGUMENTS...` with WHAT one of "commit-before", "commit-after", "rename-before",
"rename-after" (of a blob), or "none". The kill is a real one: nothing in the program gets a chance to clean up.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any


class Bomb:
    """Counts down; the nth call kills the process."""

    def __init__(self, count: int) -> None:
        self.left = count

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Connection(sqlite3.Connection):
    """A writer's connection with a bomb before or after COMMIT."""

    bomb: Bomb | None = None
    before = True

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        commit = sql.strip().upper().startswith("COMMIT") and Connection.bomb is not None
        if commit and Connection.before and Connection.bomb is not None:
            Connection.bomb.tick()
        cursor = super().execute(sql, *arguments)
        if commit and not Connection.before and Connection.bomb is not None:
            Connection.bomb.tick()
        return cursor


def plant(what: str, count: int) -> None:
    """Arm one bomb."""
    bomb = Bomb(count)
    where = what.partition("-")[2]
    if what.startswith("commit"):
        from forge_tui.store import schema

        Connection.bomb, Connection.before = bomb, where == "before"
        real = sqlite3.connect

        def connect(path: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
            return real(path, *arguments, **({"factory": Connection} | options))

        schema.sqlite3.connect = connect  # type: ignore[assignment]
    elif what.startswith("rename"):
        for name in ("rename", "replace"):
            original = getattr(Path, name)

            def moved(self: Path, target: Any, original: Any = original) -> Any:
                blob = "blobs" in Path(target).parts
                if blob and where == "before":
                    bomb.tick()
                result = original(self, target)
                if blob and where == "after":
                    bomb.tick()
                return result

            setattr(Path, name, moved)


def main() -> int:
    what, _, count = sys.argv[1].partition(":")
    if what != "none":
        plant(what, int(count))
    from forge_tui.cli import main as run

    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
