"""How many requests may be under way at once, of all clients and of each. Counted before anything is read.

Knows how to count; who a client is, is said in service/client.py.
"""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.errors import Failure, TooManyRequests
from service import client, errors

WATCHED = ("/health", "/ready", "/stats", "/metrics")
"""Whoever looks after a service that is full must see that it is. These wait for nothing."""


class Admission:
    """Wraps an app: a request over a limit is refused at once, with when to come back."""

    def __init__(self, app: ASGIApp, most: int, most_of_one: int) -> None:
        self._app = app
        self._most = most
        self._most_of_one = most_of_one
        self._running: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHED:
            await self._app(scope, receive, send)
            return
        try:
            name = client.name(Request(scope))
            self._check(name)
        except Failure as failure:
            await errors.response(failure, path=scope["path"])(scope, receive, send)
            return
        self._running[name] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]

    def _check(self, name: str) -> None:
        """Raises TooManyRequests."""
        if self._running.total() >= self._most:
            raise TooManyRequests(f"{self._most} requests are under way already, and no more are allowed")
        # Clients of a Unix socket that say no name cannot be told apart, and are one only in that.
        if name and self._running[name] >= self._most_of_one:
            raise TooManyRequests(
                f"this client has {self._most_of_one} requests under way already; no more are allowed"
            )
