"""GET /openapi.json and /docs: what can be asked here, for programs and for people. Knows where the two are kept."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from service.contract import Contract, Outcome, json, text
from service.house import House
from service.openapi import page

OPENAPI = Contract("Discovery", (Outcome("this document, OpenAPI 3.1", (json(dict[str, Any]),)),))
DOCS = Contract(
    "Discovery", (Outcome("a page that shows it", (text("text/html"),), headers=("content-security-policy",)),)
)


async def openapi(house: House, request: Request) -> Response:
    document = await asyncio.to_thread(lambda: house.document.json)
    return Response(document, media_type="application/json")


async def docs(house: House, request: Request) -> Response:
    return Response(page.html(), headers={"content-security-policy": page.policy()}, media_type="text/html")
