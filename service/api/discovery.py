"""GET /v1/models and /v1/models/{id}: what can be asked for by name."""

from __future__ import annotations

import asyncio
from typing import Literal, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import Kind, ModelNotFound
from service.api.answers import as_json
from service.catalog import Listed
from service.contract import Contract, Outcome, json
from service.house import House


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Listed]


MODELS = Contract("Discovery", (Outcome("all that could serve", (json(ModelList),)),))
MODEL = Contract("Discovery", (Outcome("what it can do", (json(Listed),)),), failures=(Kind.MODEL_NOT_FOUND,))


async def models(house: House, request: Request) -> Response:
    listed = await asyncio.to_thread(house.catalog.listing, house.workers.loaded)
    return as_json({"object": "list", "data": listed})


async def model(house: House, request: Request) -> Response:
    given = request.path_params["id"]
    if given.endswith("/") or not given:
        meant = f"/v1/models/{given}".rstrip("/")
        raise ModelNotFound(f"there is no model {given[:100]!r} here; {meant[:100]} is probably meant")
    found = await asyncio.to_thread(house.catalog.find, given, house.workers.loaded)
    return as_json(found)
