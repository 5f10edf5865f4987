"""Commands from other processes to the owner of a session, over a Unix socket in its folder.

Invariants: the socket is 0600 in a 0700 folder and serves this user alone; a command is a record or it is refused;
each gets one answer, which the owner has stored before it is sent. A socket path too long for the kernel lives
in a private short folder, and control.sock points to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from forge_tui.records.codec import RecordError, from_json, to_json
from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.frames import FrameError, encode, read_stream
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.store.lock import SessionLocked, read_owner
from forge_tui.store.places import private_folder
from forge_tui.store.session import Session

Handler = Callable[[Command, str], Awaitable[Acknowledgement]]
LIMIT = 4 << 20  # a submitted source with its plan
PATH_LIMIT = 100  # sun_path holds 104 bytes on macOS, 108 on Linux
PATIENCE_S = 10.0  # for a request to arrive once connected
TAKE_OVER_VERB = "yield_owner"


class NoOwner(UserInputError):
    """Nobody runs the session, so nobody can carry out a command."""


class ControlServer:
    """The owner's end. `close` removes the socket."""

    def __init__(self, session: Session, server: asyncio.Server, real: Path) -> None:
        self._session = session
        self._server = server
        self._real = real

    async def close(self) -> None:
        self._server.close()
        with contextlib.suppress(OSError):
            self._real.unlink()
        with contextlib.suppress(OSError):
            self._session.socket.unlink()
        await self._server.wait_closed()


async def serve(session: Session, handler: Handler) -> ControlServer:
    """Listen for commands. `handler(command, sender)` stores the command, acts and stores the answer.

    Call it as the owner only: what an earlier owner left is removed. Raises MachineProblem when it can't listen.
    """
    try:
        listener, real = _bind(session)
    except OSError as error:
        raise MachineProblem(f"{session.path} can't listen for commands: {error.strerror or error}") from None

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await _answer(reader, writer, handler)
            writer.write(encode(reply, LIMIT))
            await writer.drain()
        except (ConnectionError, FrameError, EOFError, TimeoutError):
            pass  # the peer went away or sent no request: nothing was carried out
        finally:
            writer.close()

    return ControlServer(session, await asyncio.start_unix_server(connected, sock=listener), real)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> dict[str, Any]:
    sender = _sender(writer)
    if not sender:
        return {"refused": "only the session's user may send commands"}
    message = await asyncio.wait_for(read_stream(reader, LIMIT), PATIENCE_S)
    try:
        command = from_json(Command, message)
    except RecordError as error:
        return {"refused": f"not a command: {error}"}
    try:
        return {"answer": to_json(await handler(command, sender))}
    except UserInputError as error:
        return {"refused": str(error)}
    except (HarnessProblem, MachineProblem) as error:
        return {"failed": str(error)}


def _sender(writer: asyncio.StreamWriter) -> str:
    """Who is connected, "" for another user. Only Linux tells; elsewhere the folder's mode has to do."""
    if sys.platform != "linux":
        return "another process"
    peer = writer.get_extra_info("socket")
    pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return f"process {pid}" if uid in (os.getuid(), 0) else ""


def _bind(session: Session) -> tuple[socket.socket, Path]:
    real = session.socket
    if len(os.fsencode(real)) > PATH_LIMIT:
        real = _short_path(session)
    for old in {real, session.socket}:
        old.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(real))
        real.chmod(0o600)
        listener.listen(16)
        listener.setblocking(False)
        if real != session.socket:
            session.socket.symlink_to(real)
    except OSError:
        listener.close()
        raise
    return listener, real


def _short_path(session: Session) -> Path:
    name = hashlib.sha256(os.fsencode(session.path)).hexdigest()[:16] + ".sock"
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp"):
        folder = Path(base) / f"forge-tui-{os.getuid()}-run"
        if base and len(os.fsencode(folder / name)) <= PATH_LIMIT and private_folder(folder):
            return folder / name
    raise OSError(None, "its path is too long for a socket, and there is no private folder in /tmp")


async def send(session: Session, command: Command, limit_s: float = 60.0) -> Acknowledgement:
    """Have the owner carry out a command; returns its answer.

    Raises NoOwner when nobody runs the session, UserInputError when the owner refuses to read it, MachineProblem
    when it doesn't answer within `limit_s` seconds.
    """
    address = session.socket
    if address.is_symlink():
        address = address.readlink()
    try:
        reader, writer = await asyncio.open_unix_connection(str(address))
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoOwner(_nobody(session)) from None
    except OSError as error:
        raise MachineProblem(f"the owner of {session.name} can't be reached: {error.strerror or error}") from None
    try:
        writer.write(encode(to_json(command), LIMIT))
        await writer.drain()
        reply = await asyncio.wait_for(read_stream(reader, LIMIT), limit_s)
    except TimeoutError:
        owner = read_owner(session.lock)
        raise MachineProblem(f"no answer within {limit_s:.0f} s; {owner.line}") from None
    except (EOFError, FrameError, ConnectionError):
        raise MachineProblem(f"the owner of {session.name} ended before it answered") from None
    finally:
        writer.close()
    return _read_reply(reply)


def _nobody(session: Session) -> str:
    owner = read_owner(session.lock)
    if owner.state in ("live", "elsewhere"):
        return f"{owner.line}, but does not listen for commands yet; try again in a moment"
    return f"{owner.line}; resume it first"


def _read_reply(reply: Any) -> Acknowledgement:
    if isinstance(reply, dict) and "answer" in reply:
        try:
            return from_json(Acknowledgement, reply["answer"])
        except RecordError as error:
            raise HarnessProblem(f"the owner's answer can't be understood: {error}") from None
    if isinstance(reply, dict) and "failed" in reply:
        raise MachineProblem(str(reply["failed"]))
    if isinstance(reply, dict) and "refused" in reply:
        raise UserInputError(str(reply["refused"]))
    raise HarnessProblem("the owner's answer can't be understood")


async def ask_to_yield(session: Session, wait_s: float = 30.0) -> str:
    """Make the session free to be opened: ask a live owner to let go and wait until it has.

    Returns the line that says what was found. Raises SessionLocked when the owner refuses, can't be asked or
    doesn't let go in time. A dead owner's lock is removed by the `Store.open` that follows.
    """
    owner = read_owner(session.lock)
    if owner.state in ("none", "dead"):
        return owner.line
    answer = None
    with contextlib.suppress(NoOwner, MachineProblem):
        answer = await send(session, Command(TAKE_OVER_VERB), wait_s)
    if answer is not None and answer.outcome != "done":
        raise UserInputError(f"{owner.line} and keeps it: {answer.line}")
    deadline = asyncio.get_running_loop().time() + wait_s
    while asyncio.get_running_loop().time() < deadline:
        now = read_owner(session.lock)
        if now.state in ("none", "dead"):
            return f"process {owner.pid} let go of the session"
        await asyncio.sleep(0.05)
    raise SessionLocked(owner)
