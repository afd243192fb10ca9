"""What every request gets, whatever its route: an id, a line in the log, an answer, and a reader for its body.

Knows ASGI messages; knows no route and no failure but the unforeseen one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import InternalError
from protocol.lines import naming
from service import errors, logs
from service.metrics import Metrics

log = logging.getLogger("starling.http")

DRAIN_S = 5.0
"""Seconds for which the rest of a refused body is read. Closing on unread bytes would reset the connection, and the
client would see that instead of the refusal; a client that stops sending ends the wait."""

PIECE = 64 << 10
"""Bytes of an answer, each of which has to be taken in time: as many as wait in a connection's buffer."""

_ID = re.compile(r"[\x20-\x7e]{1,128}")


class Unread(Exception):
    """The client leaves the answer unread."""


class Exchange:
    """Wraps an app: x-request-id on every answer, 500 for the unforeseen, one log line, refused bodies drained, and
    answers that nobody reads given up after `unread_s`."""

    def __init__(self, app: ASGIApp, metrics: Metrics, unread_s: float) -> None:
        self.app = app
        self._metrics = metrics
        self._unread_s = unread_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request_id = request_id_of(Headers(scope=scope))
        with naming(request_id):
            await self._exchange(scope, _Exchange(scope, receive, send, request_id, self._unread_s), request_id)

    async def _exchange(self, scope: Scope, exchange: _Exchange, request_id: str) -> None:
        began = time.perf_counter()
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Unread:
            log.info("%s: its client read nothing of the answer for %.3g s", request_id, self._unread_s)
        except Exception:
            log.exception("%s failed", request_id)
            await exchange.fail()
        finally:
            seconds = time.perf_counter() - began
            _note(scope, exchange.status, seconds, request_id)
            route, status = getattr(scope.get("route"), "path", None), exchange.status
            first_byte = None if exchange.answered is None else exchange.answered - began
            told = "cut" if status is None else str(status)
            self._metrics.answered(scope.get("method", "WebSocket"), route, told, seconds, first_byte)


def request_id_of(headers: Headers) -> str:
    """The client's own id when it is 1 to 128 printable ASCII characters, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def _note(scope: Scope, status: int | None, seconds: float, request_id: str) -> None:
    said = "cut off" if status is None else status
    method = scope.get("method", "WebSocket")
    facts = {"method": method[:20], "path": scope["path"][:200], "status": status}
    extra = logs.about((request_id,), **facts, milliseconds=round(seconds * 1000, 1))
    log.info("%s %.200r %s %.0f ms %s", method, scope["path"], said, seconds * 1000, request_id, extra=extra)


class _Exchange:
    """One request's messages, both ways."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str, unread_s: float) -> None:
        self.scope = scope
        self._unread_s = unread_s
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._unread = scope["type"] == "http"
        self.status: int | None = None
        self.answered: float | None = None
        """perf_counter when the answer began."""

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"].endswith("http.response.start"):  # A WebSocket that is refused has such an answer too.
            self.status = message["status"]
            self.answered = time.perf_counter()
            message.setdefault("headers", [])
            headers = MutableHeaders(raw=message["headers"])
            headers["x-request-id"] = self._request_id
            if errors.speaks_anthropic(self.scope["path"]):
                headers["request-id"] = self._request_id
        if self.status == errors.CLIENT_GONE:
            return
        if message["type"] == "http.response.body" and not message.get("more_body", False) and self._unread:
            await self._pass({**message, "more_body": True})
            await self._drain()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._pass(message)

    async def _pass(self, message: Message) -> None:
        """Piece by piece. Raises Unread."""
        body, sent = message.get("body", b""), 0
        while len(body) - sent > PIECE:
            await self._taken({**message, "body": body[sent : sent + PIECE], "more_body": True})
            sent += PIECE
        await self._taken({**message, "body": body[sent:]} if sent else message)

    async def _taken(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._unread_s):
                await self._send(message)
        except TimeoutError:
            raise Unread from None

    async def fail(self) -> None:
        """Answer for an exception that nobody foresaw. A body that has begun can only be cut."""
        if self.status is not None:
            return
        told = f"The server met an error of its own; its log has it under request id {self._request_id}."
        await errors.response(InternalError(told), path=self.scope["path"])(self.scope, self.receive, self.send)

    async def _drain(self) -> None:
        """Read and forget what the client still sends; the answer has been given already."""
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._unread:
                    await self.receive()
        except TimeoutError:
            log.debug("%s: the client goes on sending a body that was refused", self._request_id)
