"""Frames between the judge and its workers: one request, one reply, both small. Standard library only.

Invariants: a reply is a claim by hostile bytes; it is parsed with size, depth and field limits and decides nothing
but "the call came back". A reply that is early, doubled, malformed or names another request breaks the protocol.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from forge_tui.records.codec import RecordError, from_json
from forge_tui.records.frames import WORKER_LIMIT, FrameError, decode, encode, read_length


class ProtocolBroken(Exception):
    """The worker sent something that is no answer to the request; the message says what."""


class WorkerGone(Exception):
    """The worker's end of the socket closed before it answered."""


class WorkerSilent(Exception):
    """No answer within the limit."""


@dataclass(frozen=True)
class Reply:
    """A worker's answer. status: "ok", "load error", "no memory", "failed". code: what forge_launch returned.

    ns, prepare_ns: claimed nanoseconds of a batch. facts: small extras (canary results).
    """

    id: int
    status: str
    code: int = 0
    ns: int = 0
    prepare_ns: int = 0
    line: str = ""
    facts: dict[str, Any] | None = None


class Channel:
    """The judge's end of one worker's socket."""

    def __init__(self, sock: socket.socket, limit: int = WORKER_LIMIT) -> None:
        self.sock = sock
        self.limit = limit
        self._number = 0

    def ask(self, message: dict[str, Any], limit_s: float, fds: list[int] | None = None) -> tuple[Reply, int]:
        """Send one request; return the reply and the nanoseconds that passed by the judge's own clock.

        Raises ProtocolBroken, WorkerGone, WorkerSilent.
        """
        if select.select([self.sock], [], [], 0)[0]:
            raise ProtocolBroken(self._early())
        self._number += 1
        frame = encode({"id": self._number, **message}, self.limit)
        deadline = time.monotonic() + limit_s
        start = time.monotonic_ns()
        try:
            self.sock.settimeout(limit_s)
            self.sock.sendall(frame)
            if fds:
                socket.send_fds(self.sock, [b"F"], fds)
            header = self._exact(4, deadline)
            body = self._exact(read_length(header, self.limit), deadline)
        except TimeoutError:
            raise WorkerSilent(f"no answer within {limit_s:.1f} s") from None
        except (BrokenPipeError, ConnectionError):
            raise WorkerGone("the worker ended") from None
        except FrameError as error:
            raise ProtocolBroken(str(error)) from None
        outside = time.monotonic_ns() - start
        try:
            reply = from_json(Reply, decode(body))
        except (FrameError, RecordError) as error:
            raise ProtocolBroken(f"the reply is not one: {error}") from None
        if reply.id != self._number:
            raise ProtocolBroken("the reply belongs to another request")
        if reply.ns < 0 or reply.prepare_ns < 0:
            raise ProtocolBroken("the reply claims a negative time")
        return reply, outside

    def stray(self) -> bool:
        """Whether bytes wait that nobody asked for."""
        return bool(select.select([self.sock], [], [], 0)[0]) and self._early() != "the worker ended early"

    def _early(self) -> str:
        try:
            waiting = self.sock.recv(1, socket.MSG_PEEK)
        except OSError:
            waiting = b""
        return "bytes arrived that nobody asked for" if waiting else "the worker ended early"

    def _exact(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            piece = self.sock.recv(count - len(parts))
            if not piece:
                raise WorkerGone("the worker ended")
            parts += piece
        return bytes(parts)

    def close(self) -> None:
        self.sock.close()


def read_request(sock: socket.socket, limit: int = WORKER_LIMIT) -> dict[str, Any]:
    """The worker's side: the next request. Raises EOFError when the judge is gone, FrameError else."""
    (length,) = struct.unpack("<I", _all(sock, 4))
    message = decode(_all(sock, read_length(struct.pack("<I", length), limit)))
    if not isinstance(message, dict):
        raise FrameError("a request is an object")
    return message


def take_fds(sock: socket.socket, count: int) -> list[int]:
    """The descriptors that follow a "map" request. Raises FrameError when they don't come."""
    _, fds, _, _ = socket.recv_fds(sock, 1, count)
    if len(fds) != count:
        raise FrameError("the buffers' descriptors did not arrive")
    return list(fds)


def _all(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        piece = sock.recv(count - len(parts))
        if not piece:
            raise EOFError
        parts += piece
    return bytes(parts)
