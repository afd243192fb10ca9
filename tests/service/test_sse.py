"""A stream under the real server: what a client that does not read costs, and how a connection ends."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.sse import EventStream, Numbered
from tests.asgi import asked, told

pytestmark = [pytest.mark.port, pytest.mark.anyio]

CHUNK = "x" * (64 << 10)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Endless:
    """A route whose stream says as much as it may, up to `events`; `closed` is set when it has been let go."""

    def __init__(self, events: int) -> None:
        self.said = 0
        self.closed = asyncio.Event()
        self.released = False
        self._events = events

    async def answer(self, request: Request) -> Response:
        owned = ExitStack()
        owned.callback(self._release)
        first = {"type": "first"}
        return EventStream(first, self._rest(), owned, {}, keepalive_s=60, unread_s=0.3)

    async def _rest(self) -> AsyncGenerator[dict[str, Any], None]:
        try:
            while self.said < self._events:
                self.said += 1
                yield {"type": "more", "text": CHUNK}
                await asyncio.sleep(0)
        finally:
            self.closed.set()

    def _release(self) -> None:
        self.released = True


@asynccontextmanager
async def serving(route: Endless) -> AsyncIterator[int]:
    """The port."""
    config, over = Config(), asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    port: int = listening.getsockname()[1]
    config.bind, config.errorlog, config.graceful_timeout = [f"fd://{listening.detach()}"], None, 1
    app: Any = Starlette(routes=[Route("/", route.answer)])
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(serve(app, config, shutdown_trigger=over.wait, mode="asgi"))
        yield port
        over.set()


async def test_who_does_not_read_is_given_up_and_his_stream_does_not_pile_up() -> None:
    """STR-09"""
    route = Endless(events=10_000)
    async with serving(route) as port:
        tracemalloc.start()
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(route.closed.wait(), 10)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # What the system's socket buffers took, and no more.
        assert route.said < 200
        assert peak < 8 << 20
        writer.close()
    assert route.released


async def test_an_old_client_s_connection_ends_after_the_last_event() -> None:
    """STR-09"""
    route = Endless(events=3)
    async with serving(route) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert [event.name for event in told(body)[0]] == ["first", "more", "more", "more"]
    assert route.released


async def test_events_of_a_stream_that_can_be_resumed_have_ids_and_need_no_first_one() -> None:
    async def rest() -> AsyncGenerator[Numbered, None]:
        yield Numbered(1, {"type": "kept"})
        yield Numbered(None, {"type": "passing"})
        yield Numbered(2, {"type": "kept"})

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await EventStream(None, rest(), ExitStack(), {}, keepalive_s=60, unread_s=60)(scope, receive, send)

    reply = await asked(answer, "GET", "/")
    assert [(event.name, event.id) for event in reply.told] == [("kept", "1"), ("passing", None), ("kept", "2")]
    assert reply.body.startswith(b"id: 1\n")


async def test_a_kept_connection_s_body_ends_after_the_last_event() -> None:
    """STR-09"""
    route = Endless(events=3)
    async with serving(route) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await reader.readuntil(b"\r\n0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
        writer.close()
    assert route.released
