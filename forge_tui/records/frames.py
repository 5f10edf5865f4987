"""Length-prefixed JSON between processes: 4 bytes little-endian length, then UTF-8 JSON.

The bytes may come from a hostile worker: size, depth and syntax are limited
before anything else looks at them. Nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from typing import Any

TRUSTED_LIMIT = 64 << 20  # between the engine, the judge and the model process
WORKER_LIMIT = 64 << 10  # from a run worker (research: request and reply frames stay tiny)
MAX_DEPTH = 32


class FrameError(ValueError):
    """The peer broke the protocol; the message says how."""


def encode(message: Any, limit: int = TRUSTED_LIMIT) -> bytes:
    """One frame. Raises FrameError when it would be larger than `limit` bytes."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > limit:
        raise FrameError(f"frame of {len(body)} bytes is over the limit of {limit}")
    return struct.pack("<I", len(body)) + body


def decode(body: bytes) -> Any:
    """JSON value of one frame's body. Raises FrameError."""
    depth = deepest = 0
    quoted = escaped = False
    for byte in body:  # nesting is checked before the parser may recurse
        if quoted:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                quoted = False
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    if deepest > MAX_DEPTH:
        raise FrameError("frame nested too deep")
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise FrameError(f"frame is not JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def read_length(header: bytes, limit: int) -> int:
    """Body length from the 4 header bytes. Raises FrameError over `limit`."""
    (length,) = struct.unpack("<I", header)
    if length > limit:
        raise FrameError(f"frame of {length} bytes is over the limit of {limit}")
    return int(length)


def write_fd(fd: int, message: Any, limit: int = TRUSTED_LIMIT) -> None:
    """Write one whole frame to a blocking descriptor."""
    view = memoryview(encode(message, limit))
    while view:
        view = view[os.write(fd, view) :]


def read_fd(fd: int, limit: int = TRUSTED_LIMIT) -> Any:
    """Read one whole frame from a blocking descriptor. Raises EOFError at a clean end, FrameError else."""
    header = _read_exact(fd, 4, b"")
    return _body(fd, header, limit)


def _body(fd: int, header: bytes, limit: int) -> Any:
    body = _read_exact(fd, read_length(header, limit), header)
    return decode(body)


def _read_exact(fd: int, count: int, so_far: bytes) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        piece = os.read(fd, min(count - len(parts), 1 << 20))
        if not piece:
            if parts or so_far:
                raise FrameError("the peer stopped in the middle of a frame")
            raise EOFError
        parts += piece
    return bytes(parts)


async def read_stream(stream: asyncio.StreamReader, limit: int = TRUSTED_LIMIT) -> Any:
    """Read one frame from an asyncio stream. Raises EOFError at a clean end, FrameError else."""
    try:
        header = await stream.readexactly(4)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameError("the peer stopped in the middle of a frame") from None
        raise EOFError from None
    try:
        body = await stream.readexactly(read_length(header, limit))
    except asyncio.IncompleteReadError:
        raise FrameError("the peer stopped in the middle of a frame") from None
    return decode(body)
