"""A streamed answer: one event after the other, comments while it is silent, an `error` event for a late failure.

Knows server-sent events; knows no event's meaning. What the stream needs is released when it ends, however it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing
from typing import Any, NamedTuple

import msgspec
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from protocol.errors import Failure, InternalError
from service import errors

Message = Mapping[str, Any]
"""One event's data. Its `type` is also the event's name: some clients go by the one, some by the other. Without a
`type` it has no name: chunks of OpenAI's completions are such."""

DONE = {"[DONE]": True}
"""The last message of a stream of chunks, which is no JSON."""


class Numbered(NamedTuple):
    """An event of a stream that can be resumed. Without an id it cannot be told again."""

    id: int | None
    message: Message


Told = Callable[[Failure], Message]
"""How a late failure is told."""

log = logging.getLogger("starling.sse")

END = "\n"
_LINE_ENDS = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "\x85\u2028\u2029"})
"""JSON leaves them as they are, and clients that split text at every line end that Unicode knows would cut there."""


class EventStream(EventSourceResponse):
    """`first`, then `rest` to its end. A client that leaves, or reads nothing for `unread_s`, closes `rest`.

    `first` was awaited before this was made, so that what is refused gets its status; None where nothing can be
    refused and the headers do not wait for an event. `owned` is closed at the end. `failing` makes the last event of a
    stream that fails.
    """

    def __init__(
        self,
        first: Message | None,
        rest: AsyncGenerator[Message | Numbered, None],
        owned: ExitStack,
        headers: Mapping[str, str],
        *,
        keepalive_s: float,
        unread_s: float,
        failing: Told | None = None,
    ) -> None:
        super().__init__(
            _written(first, rest, failing or failed),
            headers=headers,
            ping=keepalive_s,
            ping_message_factory=lambda: ServerSentEvent(comment="still here", sep=END),
            sep=END,
        )
        del self.headers["connection"]  # HTTP/2 forbids it, and HTTP/1.1 does not need it.
        self._rest = rest
        self._owned = owned
        self._unread_s = unread_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: AsgiMessage) -> None:
            # Not the library's own limit: that one leaves out the first and the last message of an answer.
            try:
                async with asyncio.timeout(self._unread_s):
                    await send(message)
            except TimeoutError:
                raise SendTimeoutError from None

        with self._owned:
            async with aclosing(self._rest):
                try:
                    await super().__call__(scope, receive, bounded)
                except* SendTimeoutError:
                    log.info("a client read nothing of its stream for %.3g s", self._unread_s)


async def _written(
    first: Message | None, rest: AsyncGenerator[Message | Numbered, None], failing: Told
) -> AsyncGenerator[ServerSentEvent, None]:
    try:
        if first is not None:
            yield _event(first)
        async for told in rest:
            yield _event(told.message, told.id) if isinstance(told, Numbered) else _event(told)
    except Failure as failure:
        yield _event(failing(failure))
    except Exception:
        log.exception("a stream failed")
        yield _event(failing(InternalError("the server met an error of its own; its log has the details")))


def failed(failure: Failure) -> Message:
    """As clients of OpenAI's protocols expect it."""
    return {"type": "error", "error": errors.body(failure)}


def _event(message: Message, id: int | None = None) -> ServerSentEvent:
    data = "[DONE]" if message is DONE else msgspec.json.encode(message).decode().translate(_LINE_ENDS)
    return ServerSentEvent(data, event=message.get("type"), id=None if id is None else str(id), sep=END)
