"""Runs a program under a pseudo terminal and counts what it sends: bytes, when, and what it costs.

Bytes are exact and belong in tests; times depend on the machine and belong in the bench.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


class Terminal:
    """One program on its own terminal."""

    def __init__(
        self, argv: Sequence[str], columns: int = 120, rows: int = 40, env: dict[str, str] | None = None
    ) -> None:
        self.started = time.perf_counter()
        self.out = bytearray()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            _set_size(0, columns, rows)
            dropped = ("NO_COLOR", "TMUX", "COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE")
            kept = {k: v for k, v in os.environ.items() if k not in dropped}
            # Byte code is written as on a user's machine, but not into the source tree.
            kept["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / f"forge-pycache-{os.getuid()}")
            os.execvpe(
                argv[0],
                list(argv),
                {**kept, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8", **(env or {})},
            )
        _set_size(self.fd, columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        """Another window size."""
        _set_size(self.fd, columns, rows)
        os.kill(self.pid, signal.SIGWINCH)

    def _read(self, timeout: float) -> bytes | None:
        """What came within `timeout`; None at the end."""
        if not select.select([self.fd], [], [], timeout)[0]:
            return b""
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            return None
        self.out += data
        return data or None

    def until(self, marker: str, timeout: float = 30.0) -> float:
        """Wait for a text; returns seconds since the start. Raises TimeoutError or EOFError with the last output."""
        end = time.perf_counter() + timeout
        wanted = marker.encode()
        while wanted not in self.out:
            if time.perf_counter() > end:
                raise TimeoutError(self.tail())
            if self._read(0.05) is None:
                raise EOFError(self.tail())
        return time.perf_counter() - self.started

    def quiet(self, silence: float = 0.25, most: float = 20.0) -> int:
        """Read until nothing came for `silence` seconds; returns the bytes."""
        start = last = time.perf_counter()
        total = 0
        while time.perf_counter() - last < silence and time.perf_counter() - start < most:
            data = self._read(0.01)
            if data is None:
                break
            if data:
                total += len(data)
                last = time.perf_counter()
        return total

    def during(self, seconds: float) -> int:
        """Bytes within a fixed time."""
        end = time.perf_counter() + seconds
        total = 0
        while (left := end - time.perf_counter()) > 0:
            data = self._read(min(left, 0.05))
            if data is None:
                break
            total += len(data)
        return total

    def send(self, keys: bytes) -> None:
        """Type."""
        os.write(self.fd, keys)

    def key(self, keys: bytes, window: float) -> int:
        """Type, and count the bytes of the next `window` seconds."""
        self.send(keys)
        return self.during(window)

    def wait(self, timeout: float = 10.0) -> int | None:
        """Exit code, None while it runs; -signal when one killed it."""
        end = time.perf_counter() + timeout
        while time.perf_counter() < end:
            self._read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        return None

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def resident_mib(self) -> float:
        """Resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def tail(self) -> str:
        """The last output, for a failing test."""
        return bytes(self.out[-3000:]).decode("utf-8", "replace")

    def hang_up(self) -> None:
        """The terminal goes away."""
        os.close(self.fd)
        self.fd = -1

    def close(self) -> None:
        """End the program."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _set_size(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
