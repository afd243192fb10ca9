"""The end of the service for requests that are under way: they are told, and not cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protocol.events import Progress
from service.closing import Closing
from tests.asgi import FORM, multipart, opened
from tests.scripted import WAV, scripted

URL = "/v1/audio/transcriptions"


def test_when_time_is_over_nothing_more_comes() -> None:
    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            heard.append(message["body"])

    async def ask() -> None:
        over = asyncio.Event()
        messages: asyncio.Queue[Any] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": "first"})
        asyncio.get_running_loop().call_later(0.05, over.set)
        await Closing(app, over)({"type": "http"}, messages.get, None)  # type: ignore[arg-type]

    asyncio.run(ask())
    assert heard == ["first"]


@pytest.mark.parametrize("sent", [multipart([("file", WAV, "a.wav")], end=False), multipart([("file", WAV, "a.wav")])])
def test_a_request_is_told_that_the_service_ends(tmp_path: Path, sent: bytes) -> None:
    """While it is sent, and while it waits for its answer."""

    async def main() -> None:
        over = asyncio.Event()
        with scripted(tmp_path, script=[Progress(0.0, 4.5), asyncio.Event()]) as service:
            async with opened(Closing(service.app, over), "POST", URL, FORM) as exchange:
                exchange.send(sent, more=not sent.endswith(b"--\r\n"))
                asyncio.get_running_loop().call_later(0.1, over.set)
                await exchange.answered.wait()
            assert exchange.reply().error == (503, "shutting_down", None)
            assert exchange.reply().headers["retry-after"] == "5"
            assert len(service.whisper.cancelled) == sent.endswith(b"--\r\n")

    asyncio.run(main())
