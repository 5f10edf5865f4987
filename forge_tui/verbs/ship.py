"""Shipping and steering without a screen: export, inspect, send."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from forge_tui.records.command import VERBS, Command
from forge_tui.records.problem import UserInputError
from forge_tui.store.lock import SessionLocked
from forge_tui.store.session import Session
from forge_tui.verbs.show import session_path
from forge_tui.verbs.tables import plain, print_json, say


def export(arguments: argparse.Namespace) -> int:
    """Write a session's champions into a cast, through its owner when it is running."""
    session = Session.open(session_path(arguments.session))
    target = Path(arguments.output or f"{session.name}.cast").absolute()
    try:
        count = asyncio.run(_export(session, target))
    except SessionLocked:
        answer = asyncio.run(_send(session, Command("export", value={"path": str(target)})))
        if answer.outcome != "done":
            raise UserInputError(answer.line) from None
        print(target)
        return 0
    say(f"{count} champions")
    print(target)
    return 0


async def _export(session: Session, target: Path) -> int:
    from forge_tui.engine.run import Run
    from forge_tui.settings.load import load
    from forge_tui.verbs.work import spec_of

    run = Run(session, spec_of(session), load().settings)
    try:
        await run.prepare()
        verdicts = run.store.reader.model_verdicts()
        run.verdict = verdicts[-1] if verdicts else None
        return await run.export(target)
    finally:
        await run.close()


def inspect(arguments: argparse.Namespace) -> int:
    """What a cast would do, before anything in it is loaded."""
    from forge_tui.cast.inspect import describe
    from forge_tui.cast.package import read_manifest

    path = Path(arguments.cast)
    if arguments.json:
        print_json(read_manifest(path))
    else:
        print(plain(describe(path)))
    return 0


def send(arguments: argparse.Namespace) -> int:
    """One command to the owner of a running session."""
    value = None
    if arguments.value:
        try:
            value = json.loads(arguments.value)
        except ValueError as error:
            raise UserInputError(f"the value must be JSON: {error}") from None
        if not isinstance(value, dict):
            raise UserInputError('the value must be a JSON object, such as {"attempts": 40}')
    if arguments.verb_to_send not in VERBS:
        raise UserInputError(f"unknown command {arguments.verb_to_send}; known: {', '.join(VERBS)}")
    if arguments.source:
        try:
            value = (value or {}) | {"source": Path(arguments.source).read_text()}
        except (OSError, UnicodeDecodeError) as error:
            raise UserInputError(f"{arguments.source} can't be read: {error}") from None
    session = Session.open(session_path(arguments.session))
    answer = asyncio.run(_send(session, Command(arguments.verb_to_send, arguments.subject or "", value)))
    if arguments.json:
        print_json(answer)
    else:
        say(f"{answer.outcome}{': ' + answer.line if answer.line else ''}")
    return 0 if answer.outcome == "done" else 1


async def _send(session: Session, command: Command):  # type: ignore[no-untyped-def]
    from forge_tui.store.control import send as send_command

    return await send_command(session, command)
