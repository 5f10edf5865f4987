"""The sessions behind the screen: searches run in this process, sessions of others are watched and steered through their socket."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.views import SessionSummary
from forge_tui.records.workload import WorkloadSpec
from forge_tui.settings.load import load
from forge_tui.settings.schema import Settings, text_of
from forge_tui.store.catalog import delete_session, list_sessions
from forge_tui.store.control import ask_to_yield, serve
from forge_tui.store.control import send as send_to_owner
from forge_tui.store.lock import read_owner
from forge_tui.store.reader import Reader
from forge_tui.store.session import Session
from forge_tui.tui.source import OpenSession

if TYPE_CHECKING:
    from forge_tui.engine.commands import Commands
    from forge_tui.engine.run import Run

START_AFTER_S = 0.3


@dataclass
class Work:
    """One session worked on here. run and commands are there once `ready` is set; failed says why they never will be."""

    task: asyncio.Task[None]
    ready: asyncio.Event
    run: Run | None = None
    commands: Commands | None = None
    failed: str = ""


class Sessions:
    """The screen's `Home`: lists, opens, starts and deletes sessions. One per app.

    The engine is imported and started after the first paint, in a thread: opening a session only reads.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._works: dict[Path, Work] = {}

    async def sessions(self) -> Sequence[SessionSummary]:
        return await asyncio.to_thread(list_sessions)

    async def open(self, path: str) -> OpenSession:
        """Become the session's owner and go on with its search, or watch it when another process has it."""
        session = await asyncio.to_thread(Session.open, Path(path))
        work = self._works.get(session.path)
        if work is not None and not work.task.done():
            return self._owned(session, work)
        owner = read_owner(session.lock)
        if owner.state in ("live", "elsewhere") and not owner.mine:
            return self._watched(session)
        return self._begin(session)

    async def new(self, source: str) -> OpenSession:
        from forge_tui.engine.options import options_from
        from forge_tui.verbs.start import check_source
        from forge_tui.verbs.work import session_name

        spec = WorkloadSpec(source, device=self._settings.run.device, threads=options_from(self._settings).threads)
        check_source(spec)
        session = await asyncio.to_thread(Session.create, None, session_name(source), spec)
        return await self.open(str(session.path))

    async def delete(self, path: str) -> None:
        await asyncio.to_thread(delete_session, Path(path))

    async def doctor(self) -> str:
        from forge_tui.verbs.doctor import findings, report

        return await asyncio.to_thread(lambda: report(list(findings())))

    async def close(self) -> None:
        """Let go of every session this app works on; their searches resume later."""
        for path in list(self._works):
            await self._let_go(path)

    def _begin(self, session: Session) -> OpenSession:
        ready = asyncio.Event()
        work = Work(asyncio.create_task(self._work(session, ready)), ready)
        self._works[session.path] = work
        return self._owned(session, work)

    async def _work(self, session: Session, ready: asyncio.Event) -> None:
        """Own the session and go on with its search; a finished one waits until a command asks for more."""
        await asyncio.sleep(START_AFTER_S)  # the first paint comes first
        work = self._works[session.path]
        try:
            run, commands = await asyncio.to_thread(_engine, session, self._settings)
        except (UserInputError, MachineProblem, HarnessProblem) as error:
            work.failed = str(error)
            ready.set()
            return
        work.run, work.commands = run, commands
        ready.set()
        finished = run.store.reader.status().state == "finished"

        async def handle(command: Command, sender: str) -> Acknowledgement:
            answer = await commands(command, sender)
            if commands.quit_requested:
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, self._let_go(session.path))
            return answer

        server = await serve(session, handle)
        try:
            # The problem is in the log already; the session stays open so that it can be read.
            with contextlib.suppress(UserInputError, MachineProblem, HarnessProblem):
                if finished:
                    await run.prepare()
                    await commands.wanted.wait()
                await run.go()
            await asyncio.Event().wait()
        finally:
            await server.close()

    def _owned(self, session: Session, work: Work) -> OpenSession:
        reader = Reader(session.path)

        async def send(command: Command) -> Acknowledgement:
            await work.ready.wait()
            if work.commands is None:
                return Acknowledgement(0, "failed", work.failed)
            return await work.commands(command, "key")

        async def close(how: str) -> None:
            keep = how == "keep" or (how == "signal" and self._settings.ui.on_hangup == "keep")
            working = work.run is not None and work.run.phase != "finished"
            reader.close()
            await self._let_go(session.path)
            if keep and working:
                self._go_on_without_screen(session)

        return OpenSession(session.name, reader, send, False, close, str(Path.cwd()), can_keep=True)

    def _watched(self, session: Session) -> OpenSession:
        reader = Reader(session.path)

        async def send(command: Command) -> Acknowledgement:
            return await send_to_owner(session, command)

        async def close(how: str) -> None:
            reader.close()

        async def take_over() -> OpenSession:
            await ask_to_yield(session)
            reader.close()
            return self._begin(session)

        return OpenSession(session.name, reader, send, True, close, str(Path.cwd()), take_over)

    def _go_on_without_screen(self, session: Session) -> None:
        """A process of its own takes the search over; its narration goes to run.log in the session."""
        flat = self._settings.flat()
        usual = load().settings.flat()
        changed = [f"{key}={text_of(value)}" for key, value in flat.items() if value != usual[key]]
        flags = [part for text in changed for part in ("--set", text.replace('"', ""))]
        command = [sys.executable, "-m", "forge_tui.cli", "resume", str(session.path), "--headless", *flags]
        with (session.path / "run.log").open("ab") as log:
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    async def _let_go(self, path: Path) -> None:
        work = self._works.pop(path, None)
        if work is None:
            return
        work.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work.task
        if work.run is not None:
            await work.run.close()


def _engine(session: Session, settings: Settings) -> tuple[Run, Commands]:
    from forge_tui.engine.commands import Commands
    from forge_tui.engine.run import Run
    from forge_tui.verbs.work import spec_of

    run = Run(session, spec_of(session), settings)
    return run, Commands(run)


def show_home(settings: Settings) -> int:
    """The session list. Returns the exit code."""
    from forge_tui.tui.app import run_app

    return run_app(Sessions(settings), settings)


def show_session(session: Session, settings: Settings) -> int:
    """One session on the main screen: worked on here, or watched. Returns the exit code."""
    from forge_tui.tui.app import run_app

    return run_app(Sessions(settings), settings, open_path=str(session.path))
