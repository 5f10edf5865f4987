"""The terminal driver: Textual's, made to survive what arrives over SSH and through tmux.

Invariants: bytes that are no UTF-8 (old mouse reports, line noise) never end the app; a terminal that is
gone is noticed at once, is not read in a busy loop and is not written to.
"""

from __future__ import annotations

import codecs
import os
import selectors
from typing import Any

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

CHUNK = 4096
WAIT_S = 0.1


class ForgeDriver(LinuxDriver):
    """`app.terminal_lost` is called, on the event loop, when the terminal is gone."""

    lost = False

    def write(self, data: str) -> None:
        writer: Any = self._writer_thread
        if self.lost or writer is None or not writer.is_alive():
            return
        writer.write(data)

    def flush(self) -> None:
        if not self.lost:
            super().flush()

    def run_input_thread(self) -> None:
        """Read keys until told to stop, or until the terminal is gone."""
        parser = XTermParser(self._debug)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(WAIT_S):
                    try:
                        data = os.read(self.fileno, CHUNK)
                    except OSError:
                        data = b""
                    if not data:
                        self._gone()
                        break
                    for event in parser.feed(decode(data)):
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
        try:
            for _ in parser.feed(""):
                pass
        except (EOFError, ParseError):
            pass

    def _gone(self) -> None:
        self.lost = True
        lost = getattr(self._app, "terminal_lost", None)
        if lost is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(lost)
