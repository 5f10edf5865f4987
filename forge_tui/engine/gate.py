"""Who may use the machine: compiles share it, the judge has it alone.

On a CPU target a compile next to a measurement would be measured with it (baselines: p90 of a 250 us
loop rises to milliseconds with one core busy elsewhere). First come, first served, so neither side starves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class MachineGate:
    """Shared/exclusive lock in order of arrival. `exclusive_needed` False (a GPU target) makes both sides share."""

    def __init__(self, exclusive_needed: bool = True) -> None:
        self._exclusive_needed = exclusive_needed
        self._sharing = 0
        self._alone = False
        self._queue: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the machine beside other sharers (a compile)."""
        await self._enter(alone=False)
        try:
            yield
        finally:
            self._sharing -= 1
            self._wake()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the machine alone (a measurement)."""
        if not self._exclusive_needed:
            async with self.shared():
                yield
            return
        await self._enter(alone=True)
        try:
            yield
        finally:
            self._alone = False
            self._wake()

    async def _enter(self, alone: bool) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (alone, future)
        self._queue.append(entry)
        self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # admitted and cancelled at once: give it back
                if alone:
                    self._alone = False
                else:
                    self._sharing -= 1
            elif entry in self._queue:
                self._queue.remove(entry)
            self._wake()
            raise

    def _wake(self) -> None:
        while self._queue:
            alone, future = self._queue[0]
            if future.cancelled():
                self._queue.popleft()
                continue
            if self._alone or (alone and self._sharing):
                return
            self._queue.popleft()
            if alone:
                self._alone = True
            else:
                self._sharing += 1
            future.set_result(None)
