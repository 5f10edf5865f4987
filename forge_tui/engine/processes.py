"""Trusted child processes of the engine: started by exec, spoken to in frames, killed as a group.

A child gets one end of a socket (FORGE_FD), no stdin, piped stdout and stderr that are drained
into a callback, its own session, and an environment built from an allow-list.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from forge_tui.records.boot import BOOT, PACKAGE, boot_command
from forge_tui.records.codec import from_json, to_json
from forge_tui.records.frames import FrameError, encode, read_stream
from forge_tui.records.problem import BUSY, HarnessProblem, MachineBusy, MachineProblem, Problem, UserInputError

__all__ = ["BOOT", "PACKAGE", "Child", "boot_command"]
T = TypeVar("T")
PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "TZ", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
    "CONDA_PREFIX", "OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME",
)  # fmt: skip


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a child that must not see keys: an allow-list of the present one, plus `extra`."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return kept | {"PYTHONUNBUFFERED": "1"} | dict(extra or {})


class ProblemReply(Exception):
    """The child answered with a problem; `problem` is its value."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.line)
        self.problem = problem


class Child:
    """One running child. `request` may be called by several tasks; replies are matched by number."""

    def __init__(self, name: str, on_output: Callable[[str, str], None] | None = None) -> None:
        self.name = name
        self.on_output = on_output or (lambda name, line: None)
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[dict[str, Any]], None] | None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0
        self.last_lines: list[str] = []

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None and self._writer is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, command: list[str], environment: Mapping[str, str], cwd: str | None = None) -> None:
        """Exec the child. Raises MachineProblem when it can't be started."""
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**environment, "FORGE_FD": str(theirs.fileno())},
                cwd=cwd,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                limit=1 << 20,
            )
        except OSError as error:
            ours.close()
            raise MachineProblem(f"{self.name} could not be started: {error}") from None
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._tasks = [
            asyncio.create_task(self._replies(reader)),
            asyncio.create_task(self._drain(self._process.stdout)),
            asyncio.create_task(self._drain(self._process.stderr)),
        ]

    async def request(
        self,
        verb: str,
        body: Any,
        result: type[T],
        limit_s: float,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> T:
        """Send one request and wait for its record.

        Raises ProblemReply for a problem the child reports, HarnessProblem when the child ends, breaks the
        protocol or stays silent for `limit_s` seconds (it is killed then).
        """
        if not self.alive or self._writer is None:
            raise HarnessProblem(f"{self.name} is not running")
        self._number += 1
        number = self._number
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (future, progress)
        try:
            self._writer.write(encode({"id": number, "verb": verb, "body": to_json(body)}))
            await self._writer.drain()
            reply = await asyncio.wait_for(future, limit_s)
        except TimeoutError:
            await self.kill()
            raise HarnessProblem(
                f"{self.name} did not answer {verb!r} within {limit_s:.0f} s and was stopped"
            ) from None
        except (ConnectionError, FrameError) as error:
            raise HarnessProblem(f"{self.name} broke off during {verb!r}: {error}") from None
        finally:
            self._waiting.pop(number, None)
        if "problem" in reply:
            raise ProblemReply(from_json(Problem, reply["problem"]))
        body = reply.get("body")
        return body if result is dict else from_json(result, body)  # type: ignore[return-value]

    async def kill(self) -> None:
        """Kill the child with its group and reap it. Safe to call twice."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for task in self._tasks:
            task.cancel()
        self._fail_waiting(f"{self.name} was stopped")

    async def close(self, grace: float = 3.0) -> None:
        """Close the socket (the child ends by itself), then kill what is left after `grace` seconds."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace)
        await self.kill()

    async def _replies(self, reader: asyncio.StreamReader) -> None:
        line = "the process ended"
        try:
            while True:
                message = await read_stream(reader)
                entry = self._waiting.get(message.get("id", -1))
                if entry is None:
                    continue
                future, progress = entry
                if "progress" in message:
                    if progress is not None:
                        progress(message["progress"])
                elif not future.done():
                    future.set_result(message)
        except EOFError:
            pass
        except (FrameError, ConnectionError, OSError) as error:
            line = str(error)
        if self._process is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                code = await asyncio.wait_for(self._process.wait(), 2.0)
                line += f" (exit {code})" if code >= 0 else f" (signal {signal.Signals(-code).name})"
        tail = f": {self.last_lines[-1]}" if self.last_lines else ""
        self._fail_waiting(f"{self.name}: {line}{tail}")

    def _fail_waiting(self, line: str) -> None:
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(HarnessProblem(line))

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                raw = await stream.readline()
            except ValueError:  # a line over the limit: drop it, keep draining
                continue
            if not raw:
                return
            line = plain_text(raw.decode("utf-8", "replace"))
            self.last_lines = [*self.last_lines[-19:], line]
            self.on_output(self.name, line)


def plain_text(text: str, limit: int = 2000) -> str:
    """Text from a child without control bytes, one line, capped: it may hold terminal escapes."""
    return "".join(c if c.isprintable() else " " for c in text.rstrip())[:limit]


def raise_problem(problem: Problem) -> None:
    """Turn a problem that isn't a candidate's into its exception."""
    if problem.blame == "user":
        raise UserInputError(problem.line)
    if problem.kind == BUSY:
        raise MachineBusy(problem.line)
    if problem.blame == "machine":
        raise MachineProblem(problem.line)
    raise HarnessProblem(problem.line)


def current_python() -> str:
    """Our own interpreter, used for workers that need the standard library only."""
    return sys.executable
