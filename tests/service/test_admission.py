"""How many requests may be under way: refused at once, told when to come back, and only those over the limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.asgi import FORM, JSON, Exchange, asked, opened
from tests.scripted import scripted

UPLOAD = ("POST", "/v1/audio/transcriptions")


@asynccontextmanager
async def uploading(app: Any, *names: str) -> AsyncIterator[list[Exchange]]:
    """An upload of each of these clients that has not ended; it ends by the clients' leaving."""
    async with AsyncExitStack() as stack:
        begun = []
        for name in names:
            headers = {**FORM, "x-starling-client": name}
            begun.append(await stack.enter_async_context(opened(app, *UPLOAD, headers)))
            await asyncio.sleep(0)
        yield begun
        for exchange in begun:
            exchange.leave()


def test_a_client_over_its_limit_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async def main() -> None:
        with scripted(tmp_path, max_client_requests=2) as service:
            async with uploading(service.app, "editor", "editor"):
                refused = await asked(service.app, "GET", "/v1", {"x-starling-client": "editor"})
                served = await asked(service.app, "GET", "/v1", {"x-starling-client": "player"})
            after = await asked(service.app, "GET", "/v1", {"x-starling-client": "editor"})
        assert refused.error == (429, "too_many_requests", None)
        assert refused.json["error"]["message"].startswith("this client has 2 requests under way")
        assert refused.headers["retry-after"] == "1"
        assert (served.status, after.status) == (200, 200)

    asyncio.run(main())


def test_a_full_house_refuses_all_but_those_who_look_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        with scripted(tmp_path, max_requests=3) as service:
            async with uploading(service.app, "a", "b", "c"):
                statuses = [(await asked(service.app, "GET", path)).status for path in ("/v1", "/health", "/stats")]
                theirs = await asked(service.app, "POST", "/v1/messages", JSON, b"{}")
            assert statuses == [429, 200, 200]
            assert theirs.json["error"]["type"] == "rate_limit_error"
            assert (await asked(service.app, "GET", "/v1")).status == 200

    asyncio.run(main())


def test_a_recording_too_many_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    """The queue's one place and the one that the speech model works on are taken."""

    async def main() -> None:
        with scripted(tmp_path, queue_limit=1) as service:
            async with uploading(service.app, "a", "b"), opened(service.app, *UPLOAD, FORM) as exchange:
                await exchange.answered.wait()
                exchange.leave()
            reply = exchange.reply()
        assert reply.error == (429, "queue_full", None)
        assert reply.headers["retry-after"] == "2"

    asyncio.run(main())


def test_a_client_of_several_names_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        with scripted(tmp_path) as service:
            headers = {"x-starling-client": "a", "X-Starling-Client": "b"}
            reply = await asked(service.app, "GET", "/v1", headers)
            assert reply.error == (400, "invalid_value", "x-starling-client")

    asyncio.run(main())
