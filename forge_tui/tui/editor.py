"""Hand a text to the user's editor and take back what they saved.

Invariants: the event loop keeps running (the search goes on) while the editor has the terminal, and
nothing is drawn over it; the file is private and gone afterwards.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from forge_tui.records.problem import UserInputError

if TYPE_CHECKING:
    from forge_tui.tui.app import ForgeApp


def editor_command() -> list[str]:
    """The user's editor. Raises UserInputError when there is none."""
    for name in (os.environ.get("VISUAL"), os.environ.get("EDITOR"), "nano", "vi"):
        words = shlex.split(name) if name else []
        if words and shutil.which(words[0]):
            return words
    raise UserInputError("no editor found; set EDITOR, or save the source with w")


async def edit_text(app: ForgeApp, text: str, name: str) -> str | None:
    """Let the user edit; returns the saved text, None when the editor failed. Raises UserInputError."""
    command = editor_command()
    with tempfile.TemporaryDirectory(prefix="forge-edit-") as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        try:
            with app.suspended():
                process = await asyncio.create_subprocess_exec(*command, str(path))
                code = await process.wait()
        except SuspendNotSupported:
            raise UserInputError("this terminal can't be handed to an editor; save the source with w") from None
        except OSError as error:
            raise UserInputError(f"{command[0]}: {error.strerror or error}; set EDITOR") from None
        if code != 0:
            raise UserInputError(f"{command[0]} ended with code {code}; nothing submitted")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserInputError(f"the edited file can't be read ({error}); nothing submitted") from None
