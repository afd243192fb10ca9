"""The whole front of live dictation over workers that are scripts (tests/dictated.py). Knows no test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from protocol.events import Backend, Model, Ready
from service.app import build, furnish
from service.config import Config
from service.dictation.store import Store
from service.house import House, Speech, Workers
from service.spool import Spool
from tests.asgi import JSON, Exchange, Reply, asked, opened
from tests.dictated import cut, ears, pen
from tests.fakes import FakeWorker
from tests.scripted import MULTILINGUAL

URL = "/v1/audio/sessions"
S16LE = {"content-type": "audio/pcm;encoding=s16le"}


@dataclass
class Dictating:
    """A started service, in the event loop of its test."""

    app: Starlette
    house: House
    live: FakeWorker
    whisper: FakeWorker
    folder: Path

    async def ask(
        self, method: str, path: str = "", headers: Mapping[str, str] | None = None, body: Any = b""
    ) -> Reply:
        return await asked(self.app, method, URL + path, headers, body)

    async def create(self, **fields: Any) -> str:
        """The id of a new session."""
        reply = await self.ask("POST", "", JSON, json.dumps(fields).encode())
        assert reply.status == 201, reply.text
        id: str = reply.json["id"]
        return id

    async def send(self, id: str, audio: bytes, seq: int | None = None, **headers: str) -> Reply:
        """One chunk of s16le, 16 kHz, mono."""
        numbered = {} if seq is None else {"x-starling-seq": str(seq)}
        return await self.ask("POST", f"/{id}/audio", S16LE | numbered | headers, audio)

    async def say(self, id: str, audio: bytes, samples: int = 1600) -> list[Reply]:
        return [await self.send(id, piece) for piece in cut(audio, samples)]

    async def finish(self, id: str) -> Reply:
        return await self.ask("POST", f"/{id}/finish")

    @asynccontextmanager
    async def reading(self, id: str, after: int | None = None) -> AsyncIterator[Exchange]:
        """A reader of the session's events."""
        headers = {} if after is None else {"last-event-id": str(after)}
        async with opened(self.app, "GET", f"{URL}/{id}/events", headers) as exchange:
            exchange.send(b"", more=False)
            await exchange.answered.wait()
            yield exchange

    async def until_state(self, id: str, state: str) -> None:
        """Until the session is at that; nobody is told of it."""
        async with asyncio.timeout(10):
            while self.house.sessions.session(id).state != state:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    @property
    def left(self) -> list[str]:
        """Files of sessions and uploads, but for locks."""
        homes = (self.folder / "sessions", self.house.spool.path)
        return sorted(
            path.name for home in homes for path in home.rglob("*") if path.is_file() and "lock" not in path.name
        )


@asynccontextmanager
async def dictating(
    folder: Path,
    *,
    live: Mapping[Any, Any] | None = None,
    whisper: Mapping[Any, Any] | None = None,
    model: Model = MULTILINGUAL,
    **settings: Any,
) -> AsyncIterator[Dictating]:
    """The service on that data directory; sessions that were left in it go on."""
    config = Config(data_dir=str(folder), whisper_model=(model.id,), **settings)
    ready = Ready(1, Backend("cpu", "0.32", "OpenBLAS 0.3"), model)
    workers = Workers(
        media=FakeWorker("media", {}, ready=Ready(2)),
        live=FakeWorker("live", ears() | dict(live or {}), ready=Ready(32)),
        speech={
            model.id: Speech(FakeWorker("whisper", pen() | dict(whisper or {}), ready=ready), FakeWorker("oracle", {}))
        },
        language={},
    )
    with Spool(folder) as spool, Store(folder) as store:
        house = furnish(config, workers, spool, store)
        await house.sessions.start()
        try:
            assert isinstance(workers.live, FakeWorker) and isinstance(workers.whisper, FakeWorker)
            yield Dictating(build(house), house, workers.live, workers.whisper, folder)
        finally:
            await house.stop(5)
