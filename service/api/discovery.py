"""GET /v1/models and /v1/models/{id}: what can be asked for by name."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.events import Model
from service.house import House


async def models(house: House, request: Request) -> Response:
    listed = await asyncio.to_thread(house.catalog.listing, *_loaded(house))
    return Response(msgspec.json.encode({"object": "list", "data": listed}), media_type="application/json")


async def model(house: House, request: Request) -> Response:
    found = await asyncio.to_thread(house.catalog.find, request.path_params["id"], *_loaded(house))
    return Response(msgspec.json.encode(found), media_type="application/json")


def _loaded(house: House) -> tuple[Model | None, Model | None]:
    """The speech model and the language model, as far as they are there."""
    workers = house.workers
    whisper, llm = workers.whisper.ready, workers.llm.ready if workers.llm else None
    return whisper.model if whisper else None, llm.model if llm else None
