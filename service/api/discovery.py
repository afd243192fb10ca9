"""GET /v1/models and /v1/models/{id}: what can be asked for by name."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.events import Model
from service.house import House


async def models(house: House, request: Request) -> Response:
    listed = await asyncio.to_thread(house.catalog.listing, _loaded(house))
    return Response(msgspec.json.encode({"object": "list", "data": listed}), media_type="application/json")


async def model(house: House, request: Request) -> Response:
    found = await asyncio.to_thread(house.catalog.find, request.path_params["id"], _loaded(house))
    return Response(msgspec.json.encode(found), media_type="application/json")


def _loaded(house: House) -> Model | None:
    ready = house.workers.whisper.ready
    return ready.model if ready else None
