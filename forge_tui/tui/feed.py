"""News from the store to the screen: one loop, coalesced, at most `1 / flush_s` times a second.

Invariants: the event loop never waits for the store; however often `nudge` is called, one batch is read
at a time; while the judge times on the CPU the screen reads and paints at most twice a second, since
both run on the cores being timed. With nothing new nothing is painted.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.views import Changes
from forge_tui.tui.source import Reader

T = TypeVar("T")
TIMING_FLUSH_S = 0.5
POLL_S = 1.0
# What a reader may raise without it being a fault of the screen.
READ_ERRORS = (HarnessProblem, MachineProblem, UserInputError, OSError, sqlite3.Error)


class Feed:
    """Reads for one session. `on_changes` runs on the event loop; `on_problem` gets one line when a read fails."""

    def __init__(
        self,
        reader: Reader,
        on_changes: Callable[[Changes], Awaitable[None]],
        on_problem: Callable[[str], None],
        flush_s: float,
        poll_s: float = POLL_S,
    ) -> None:
        self.reader = reader
        self.seq = 0
        self.timing = False
        self.hold = False
        self._on_changes = on_changes
        self._on_problem = on_problem
        self._poll_s = poll_s
        self._flush_s = flush_s
        self._pool = ThreadPoolExecutor(1, "forge-read")
        self._lexing = ThreadPoolExecutor(1, "forge-lex")
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed = ""

    def nudge(self) -> None:
        """Something changed. Callable from any thread, as often as one likes."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake.set)

    async def read(self, call: Callable[..., T], *args: Any) -> T:
        """Call a reader's method off the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args))

    async def lex(self, call: Callable[..., T], *args: Any) -> T:
        """Run slow text work off the loop, apart from the reads."""
        return await asyncio.get_running_loop().run_in_executor(self._lexing, lambda: call(*args))

    async def run(self) -> None:
        """Read and hand on, until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            if not self._wake.is_set():
                try:
                    async with asyncio.timeout(self._poll_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._wake.clear()
            if self.hold:
                continue
            await self.step()
            await asyncio.sleep(max(self._flush_s, TIMING_FLUSH_S if self.timing else 0.0))

    async def step(self) -> None:
        """One batch."""
        try:
            changes = await self.read(self.reader.changes, self.seq)
            if changes.seq != self.seq:
                self.seq = changes.seq
                await self._on_changes(changes)
            self._failed = ""
        except READ_ERRORS as error:
            line = f"the session can't be read: {' '.join(str(error).split())}"
            if line != self._failed:
                self._failed = line
                self._on_problem(line)

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._lexing.shutdown(wait=False, cancel_futures=True)
