"""Copy over SSH and tmux, and tell the truth about what was done.

In tmux `load-buffer -w` reaches the outer terminal's clipboard whatever its settings; elsewhere OSC 52
may or may not be honoured, so the message says "sent", never "copied".
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge_tui.tui.app import ForgeApp

# Terminals cut or refuse longer OSC 52 payloads; xterm's limit is the smallest in wide use.
OSC52_MOST = 74_000
TMUX_S = 3.0


async def copy_text(app: ForgeApp, text: str) -> str:
    """Copy; returns the line that says how."""
    if os.environ.get("TMUX"):
        try:
            process = await asyncio.create_subprocess_exec(
                "tmux", "load-buffer", "-w", "-",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            async with asyncio.timeout(TMUX_S):
                await process.communicate(text.encode())
            if process.returncode == 0:
                return f"{len(text):,} characters in tmux's buffer, and sent to the terminal's clipboard"
        except (OSError, TimeoutError):
            pass
    if len(text) * 4 // 3 > OSC52_MOST:
        return "too long for the terminal's clipboard; w saves it as a file"
    app.copy_to_clipboard(text)
    return f"{len(text):,} characters sent to the terminal's clipboard (OSC 52); w saves a file if nothing arrives"
