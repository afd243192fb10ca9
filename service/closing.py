"""The end of the service, as a request sees it that is still under way: as if its client had left, but it is told why.

Knows ASGI's messages; knows no route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import Failure, RequestCancelled, ShuttingDown

OVER = "starling.over"


def departure(message: Mapping[str, Any], doing: str) -> Failure:
    """What a disconnect means: the client left while it was `doing` something, or this service ends."""
    if message.get(OVER):
        return ShuttingDown("the server is shutting down")
    return RequestCancelled(f"the client left {doing}")


class Closing:
    """Wraps an app: once `over` is set, every request still running finds that nothing more comes.

    Hypercorn waits for open connections before it ends the app, since Python 3.12 without a limit.
    """

    def __init__(self, app: ASGIApp, over: asyncio.Event) -> None:
        self._app = app
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        over = asyncio.ensure_future(self._over.wait())
        receiving: asyncio.Future[Message] | None = None

        async def unless_over() -> Message:
            nonlocal receiving
            # It outlives a caller that gives up: what it had received, a disconnect say, is there for the next one.
            receiving = receiving or asyncio.ensure_future(receive())
            await asyncio.wait((receiving, over), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                return {"type": "http.disconnect", OVER: True}
            message, receiving = receiving.result(), None
            return message

        try:
            await self._app(scope, unless_over, send)
        finally:
            over.cancel()
            if receiving is not None:
                receiving.cancel()
