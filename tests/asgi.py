"""Drives an ASGI app by hand: whole requests, bodies in pieces, clients that leave. No server and no port."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message

from tests import promised

Part = tuple[str, bytes | str] | tuple[str, bytes, str]
"""Name and value; a third member is the file name and makes it a file."""


class Reply(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def told(self) -> list[Told]:
        """The events of a stream."""
        return told(self.body)[0]

    @property
    def error(self) -> tuple[int, str | None, str | None]:
        """Status, code and param of an error body; all four keys must be there."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return self.status, error["code"], error["param"]


@dataclass(frozen=True)
class Told:
    """One event of a stream; `name` is what its `event:` line says."""

    name: str
    data: Any
    id: str | None = None
    """What its `id:` line says, if it has one."""


def told(body: bytes) -> tuple[list[Told], list[str]]:
    """The events and the comments of a stream, read as the HTML standard says (9.2.6), every event complete."""
    events, comments = [], []
    name, id, data = "", None, list[str]()
    assert body.endswith(b"\n\n"), "the last event was not ended"
    for line in re.split(r"\r\n|\n|\r", body.decode())[:-1]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line.startswith(":"):
            comments.append(value)
        elif field == "event":
            name = value
        elif field == "id":
            id = value
        elif field == "data":
            data.append(value)
        elif not line and data:
            joined = "\n".join(data)
            events.append(Told(name, joined if joined == "[DONE]" else json.loads(joined), id))
            name, id, data = "", None, []
        else:
            assert not line, f"neither event nor data: {line!r}"
    return events, comments


class Exchange:
    """One request whose client is the test. `sent` holds what the app answered so far."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.task: asyncio.Task[None] | None = None
        self.answered = asyncio.Event()
        """Set whenever something has come, the status first."""
        self.reads = asyncio.Event()
        """Cleared, the client takes nothing more and the app's `send` waits."""
        self.reads.set()
        self.stops_at: bytes | None = None
        """After the message that holds this the client takes nothing more."""
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()

    def send(self, chunk: bytes, *, more: bool = True) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": chunk, "more_body": more})

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    @property
    def complete(self) -> bool:
        last = self.sent[-1] if self.sent else {}
        return last.get("type") == "http.response.body" and not last.get("more_body", False)

    def reply(self) -> Reply:
        """What came, once the app is done with the request."""
        start = self.sent[0]
        assert start["type"] == "http.response.start"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        return Reply(start["status"], headers, self.body)

    @property
    def body(self) -> bytes:
        """What came of the body so far."""
        return b"".join(message.get("body", b"") for message in self.sent)

    async def until(self, text: bytes) -> None:
        """Until `text` has come."""
        async with asyncio.timeout(60):
            while text not in self.body:
                self.answered.clear()
                await self.answered.wait()

    async def done(self) -> None:
        assert self.task is not None
        async with asyncio.timeout(60):
            await self.task


@asynccontextmanager
async def opened(
    app: ASGIApp, method: str, target: str, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Exchange]:
    """A request whose body the test sends itself. The app must have finished by the end of the context."""
    exchange = Exchange()
    path, _, query = target.partition("?")
    # Names that differ in case alone are one header twice, as tests may want it.
    given = {"host": "127.0.0.1"} | {
        "host" if name.lower() == "host" else name: v for name, v in (headers or {}).items()
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.1"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
        "extensions": {},
    }

    async def send(message: Message) -> None:
        await exchange.reads.wait()
        exchange.sent.append(message)
        exchange.answered.set()
        if exchange.stops_at is not None and exchange.stops_at in message.get("body", b""):
            exchange.reads.clear()
        if exchange.complete:
            # A client that has its answer goes on to something else: what it does not read ends here.
            exchange.leave()

    exchange.task = asyncio.create_task(app(scope, exchange._incoming.get, send))  # type: ignore[arg-type]
    try:
        yield exchange
        await exchange.done()
        if exchange.complete and isinstance(app, Starlette) and hasattr(app.state, "house"):
            reply = exchange.reply()
            promised.check(method, scope["path"], reply.status, reply.headers, reply.body)
    finally:
        exchange.task.cancel()


async def asked(
    app: ASGIApp,
    method: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | Iterable[bytes] = b"",
) -> Reply:
    """The answer to a whole request; `body` in one piece, or in the pieces that it is given in."""
    chunks = [body] if isinstance(body, bytes) else list(body)
    length = {} if any(name.lower() == "content-length" for name in headers or {}) else _length(chunks)
    async with opened(app, method, target, {**(headers or {}), **length}) as exchange:
        for chunk in chunks:
            exchange.send(chunk)
        exchange.send(b"", more=False)
    return exchange.reply()


def _length(chunks: list[bytes]) -> dict[str, str]:
    return {"content-length": str(sum(map(len, chunks)))}


def ask(
    app: ASGIApp,
    method: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | Iterable[bytes] = b"",
) -> Reply:
    """`asked` in an event loop of its own."""
    return asyncio.run(asked(app, method, target, headers, body))


def multipart(parts: Iterable[Part], boundary: str = "XbX", *, end: bool = True) -> bytes:
    """A body of multipart/form-data."""
    body = b""
    for name, value, *file in parts:
        called = f'; filename="{file[0]}"\r\nContent-Type: audio/wav' if file else ""
        content = value.encode() if isinstance(value, str) else value
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{called}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return body + (f"--{boundary}--\r\n".encode() if end else b"")


FORM = {"content-type": "multipart/form-data; boundary=XbX"}
JSON = {"content-type": "application/json"}
