"""Frames on the pipe: a 4-byte big-endian length, then msgpack of `(job id, message)`.

Knows sockets and bytes; knows nothing about what the messages mean.
"""

from __future__ import annotations

import asyncio
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

MAX_FRAME = 16 << 20
"""Bytes. Audio crosses as a path, so no honest frame comes near; a larger one is noise on the pipe."""

CANCELLED_EXIT = 86
"""Exit status of a worker that ended itself because its one blocking job was cancelled: no crash."""

_PREFIX = 4

M = TypeVar("M")


class FrameError(Exception):
    """The bytes on the pipe are no frame of this protocol; the pipe cannot be used any further."""


def frame(job: int, message: msgspec.Struct) -> bytes:
    """The bytes of one frame. Raises FrameError when it would be over MAX_FRAME."""
    body = msgspec.msgpack.encode((job, message))
    if len(body) > MAX_FRAME:
        raise FrameError(f"a {type(message).__name__} frame of {len(body)} bytes is over {MAX_FRAME}")
    return len(body).to_bytes(_PREFIX, "big") + body


class Codec(Generic[M]):
    """Reads frames whose messages are of the union `messages`."""

    def __init__(self, messages: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(tuple[int, messages])

    def decode(self, body: bytes) -> tuple[int, M]:
        """The job id and the message. Raises FrameError when `body` is neither."""
        try:
            job, message = self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise FrameError(str(error)) from error
        return job, message

    def read(self, pipe: BinaryIO) -> tuple[int, M] | None:
        """The next frame; None at the end of the stream. Raises FrameError for a cut or oversized frame."""
        prefix = pipe.read(_PREFIX)
        if not prefix:
            return None
        body = pipe.read(_length(prefix))
        if len(body) < int.from_bytes(prefix, "big"):
            raise FrameError("the stream ended within a frame")
        return self.decode(body)

    async def read_async(self, pipe: asyncio.StreamReader) -> tuple[int, M] | None:
        """As `read`, without blocking the event loop. A peer that dies within a frame is an end of stream."""
        try:
            prefix = await pipe.readexactly(_PREFIX)
            body = await pipe.readexactly(_length(prefix))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return self.decode(body)


def _length(prefix: bytes) -> int:
    if len(prefix) < _PREFIX:
        raise FrameError("the stream ended within a frame's length")
    length = int.from_bytes(prefix, "big")
    if length > MAX_FRAME:
        raise FrameError(f"a frame of {length} bytes is over {MAX_FRAME}")
    return length
