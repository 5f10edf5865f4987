"""The sessions behind the screen: searches run in this process, sessions of others are watched and steered through their socket."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from forge_tui.engine.commands import Commands
from forge_tui.engine.options import options_from
from forge_tui.engine.run import Run
from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.views import SessionSummary
from forge_tui.records.workload import WorkloadSpec
from forge_tui.settings.load import load
from forge_tui.settings.schema import Settings, text_of
from forge_tui.store.catalog import delete_session, list_sessions
from forge_tui.store.control import ask_to_yield, serve
from forge_tui.store.control import send as send_to_owner
from forge_tui.store.lock import SessionLocked
from forge_tui.store.reader import Reader
from forge_tui.store.session import Session
from forge_tui.tui.source import OpenSession
from forge_tui.verbs.work import session_name, spec_of


class Sessions:
    """The screen's `Home`: lists, opens, starts and deletes sessions. One per app."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runs: dict[Path, tuple[Run, asyncio.Task[None]]] = {}

    async def sessions(self) -> Sequence[SessionSummary]:
        return await asyncio.to_thread(list_sessions)

    async def open(self, path: str) -> OpenSession:
        """Become the session's owner and go on with its search, or watch it when another process has it."""
        session = await asyncio.to_thread(Session.open, Path(path))
        running = self._runs.get(session.path)
        if running is not None and not running[1].done():
            return self._owned(session, running[0])
        try:
            run = await asyncio.to_thread(Run, session, spec_of(session), self._settings)
        except SessionLocked:
            return self._watched(session)
        return self._begin(session, run)

    async def new(self, source: str) -> OpenSession:
        spec = WorkloadSpec(source, device=self._settings.run.device, threads=options_from(self._settings).threads)
        session = await asyncio.to_thread(Session.create, None, session_name(source), spec)
        return await self.open(str(session.path))

    async def delete(self, path: str) -> None:
        await asyncio.to_thread(delete_session, Path(path))

    async def doctor(self) -> str:
        from forge_tui.verbs.doctor import findings, report

        return await asyncio.to_thread(lambda: report(list(findings())))

    async def close(self) -> None:
        """Let go of every session this app works on; their searches resume later."""
        for run, task in self._runs.values():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await run.close()
        self._runs.clear()

    def _begin(self, session: Session, run: Run) -> OpenSession:
        """Go on with the search; a finished one is shown as it is until a command asks for more."""
        commands = Commands(run)
        finished = run.store.reader.status().state == "finished"

        async def handle(command: Command, sender: str) -> Acknowledgement:
            answer = await commands(command, sender)
            if commands.quit_requested:
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, self._let_go(session.path))
            return answer

        async def work() -> None:
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

        self._runs[session.path] = (run, asyncio.create_task(work()))
        return self._owned(session, run, commands)

    def _owned(self, session: Session, run: Run, commands: Commands | None = None) -> OpenSession:
        steer = commands or Commands(run)

        async def send(command: Command) -> Acknowledgement:
            return await steer(command, "key")

        async def close(how: str) -> None:
            keep = how == "keep" or (how == "signal" and self._settings.ui.on_hangup == "keep")
            working = run.phase != "finished"
            await self._let_go(session.path)
            if keep and working:
                self._go_on_without_screen(session)

        return OpenSession(session.name, run.store.reader, send, False, close, str(Path.cwd()), can_keep=True)

    def _watched(self, session: Session) -> OpenSession:
        reader = Reader(session.path)

        async def send(command: Command) -> Acknowledgement:
            return await send_to_owner(session, command)

        async def close(how: str) -> None:
            reader.close()

        async def take_over() -> OpenSession:
            await ask_to_yield(session)
            run = await asyncio.to_thread(Run, session, spec_of(session), self._settings)
            reader.close()
            return self._begin(session, run)

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
        run, task = self._runs.pop(path, (None, None))
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if run is not None:
            await run.close()


def show_home(settings: Settings) -> int:
    """The session list. Returns the exit code."""
    from forge_tui.tui.app import run_app

    return run_app(Sessions(settings), settings)


def show_session(session: Session, settings: Settings) -> int:
    """One session on the main screen: worked on here, or watched. Returns the exit code."""
    from forge_tui.tui.app import run_app

    return run_app(Sessions(settings), settings, open_path=str(session.path))
