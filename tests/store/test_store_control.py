"""Commands over the session's socket: one answer each, to this user only, whatever the path's length."""

from __future__ import annotations

import asyncio
import os
import stat
import struct
from pathlib import Path

import pytest

from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.frames import encode, read_stream
from forge_tui.records.problem import MachineProblem, UserInputError
from forge_tui.store.control import NoOwner, ask_to_yield, send, serve
from forge_tui.store.lock import SessionLocked
from forge_tui.store.session import Session
from forge_tui.store.store import Store


class Owner:
    """A willing or unwilling owner that stores commands and answers as the engine does."""

    def __init__(self, store: Store, willing: bool = True) -> None:
        self.store = store
        self.willing = willing
        self.senders: list[str] = []

    async def __call__(self, command: Command, sender: str) -> Acknowledgement:
        self.senders.append(sender)
        seq = await self.store.add_command(command, sender)
        if command.verb == "prune" and command.subject == "n404":
            raise UserInputError("there is no candidate n404")
        if command.verb == "export":
            raise MachineProblem("the disk is full")
        outcome = "done" if self.willing or command.verb != "yield_owner" else "refused"
        answer = Acknowledgement(seq, outcome, f"{command.verb} {command.subject}", {"got": command.value})
        await self.store.add_acknowledgement(answer)
        if command.verb == "yield_owner" and self.willing:
            asyncio.get_running_loop().call_later(0.1, self.store.close)
        return answer


async def test_a_command_is_stored_answered_and_the_answer_is_stored(session: Session, store: Store) -> None:
    owner = Owner(store)
    server = await serve(session, owner)
    answer = await send(session, Command("budget", "c1", {"attempts": 9}))
    assert (answer.outcome, answer.line, answer.value) == ("done", "budget c1", {"got": {"attempts": 9}})
    assert owner.senders == [f"process {os.getpid()}"]
    assert [(row.verb, row.subject, row.outcome) for row in store.reader.commands()] == [("budget", "c1", "done")]
    assert stat.S_IMODE(session.socket.stat().st_mode) == 0o600
    await server.close()
    assert not session.socket.exists()


async def test_refusals_and_failures_arrive_as_what_they_are(session: Session, store: Store) -> None:
    server = await serve(session, Owner(store))
    with pytest.raises(UserInputError, match="there is no candidate n404"):
        await send(session, Command("prune", "n404"))
    with pytest.raises(MachineProblem, match="the disk is full"):
        await send(session, Command("export"))
    await server.close()


async def test_many_commands_at_once_get_their_own_answers(session: Session, store: Store) -> None:
    server = await serve(session, Owner(store))
    answers = await asyncio.gather(*(send(session, Command("pin", f"n{n}")) for n in range(20)))
    assert [answer.line for answer in answers] == [f"pin n{n}" for n in range(20)]
    assert len({answer.command_seq for answer in answers}) == 20
    await server.close()


@pytest.mark.parametrize(
    "sent",
    [
        encode({"verb": "format the disk", "subject": "", "value": None}),
        encode({"verb": "pin", "more": 1}),
        encode([1, 2]),
    ],
)
async def test_what_is_no_command_is_refused_with_the_reason(session: Session, store: Store, sent: bytes) -> None:
    owner = Owner(store)
    server = await serve(session, owner)
    reader, writer = await asyncio.open_unix_connection(str(session.socket))
    writer.write(sent)
    reply = await read_stream(reader)
    assert reply["refused"].startswith("not a command")
    assert owner.senders == []
    writer.close()
    await server.close()


@pytest.mark.parametrize(
    "sent", [b"", b"\x01", struct.pack("<I", 1 << 30), struct.pack("<I", 4) + b"nope", b"GET / HTTP"]
)
async def test_noise_ends_its_own_connection_only(session: Session, store: Store, sent: bytes) -> None:
    server = await serve(session, Owner(store))
    reader, writer = await asyncio.open_unix_connection(str(session.socket))
    writer.write(sent)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert (await send(session, Command("pause"))).outcome == "done"
    await server.close()


async def test_nobody_there_is_said_with_what_to_do(session: Session) -> None:
    with pytest.raises(NoOwner, match="nobody runs this session; resume it first"):
        await send(session, Command("pause"))


async def test_a_socket_left_by_a_dead_owner_is_no_owner_and_is_replaced(session: Session, store: Store) -> None:
    first = await serve(session, Owner(store))
    first._server.close()
    with pytest.raises(NoOwner):
        await send(session, Command("pause"))
    second = await serve(session, Owner(store))
    assert (await send(session, Command("pause"))).outcome == "done"
    await second.close()


async def test_an_owner_that_does_not_answer_is_said_to_be_silent(session: Session, store: Store) -> None:
    async def silent(command: Command, sender: str) -> Acknowledgement:
        await asyncio.sleep(30)
        return Acknowledgement(1, "done")

    server = await serve(session, silent)
    with pytest.raises(MachineProblem, match="no answer within 0 s"):
        await send(session, Command("pause"), 0.1)
    await server.close()


async def test_a_path_longer_than_a_socket_may_have_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    session = Session.create(deep / "s", "s")
    store = Store.open(session)
    server = await serve(session, Owner(store))
    assert session.socket.is_symlink()
    real = session.socket.readlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert stat.S_IMODE(real.parent.stat().st_mode) == 0o700
    assert (await send(session, Command("pause"))).outcome == "done"
    await server.close()
    assert not real.exists()
    assert not session.socket.is_symlink()
    store.close()


async def test_a_willing_owner_is_taken_over_from(session: Session) -> None:
    store = Store.open(session)
    server = await serve(session, Owner(store))
    assert "let go" in await ask_to_yield(session, 10)
    await server.close()
    mine = Store.open(session)
    assert mine.taken_over == ""
    assert [row.verb for row in mine.reader.commands()] == ["yield_owner"]
    mine.close()


async def test_an_unwilling_owner_keeps_the_session(session: Session, store: Store) -> None:
    server = await serve(session, Owner(store, willing=False))
    with pytest.raises(UserInputError, match="keeps it"):
        await ask_to_yield(session, 5)
    await server.close()


async def test_a_live_owner_that_cannot_be_asked_keeps_the_session(session: Session, store: Store) -> None:
    with pytest.raises(SessionLocked):
        await ask_to_yield(session, 0.2)


async def test_a_session_without_an_owner_is_free(session: Session) -> None:
    assert await ask_to_yield(session) == "nobody runs this session"
