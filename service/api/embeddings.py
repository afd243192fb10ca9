"""POST /v1/embeddings: texts in, vectors out.

Knows the order of the work; what a field means and how an answer is written is said in service/embeddings.
"""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import Kind
from protocol.jobs import Embed
from service import headers, reply
from service.api import language
from service.api.answers import as_json
from service.chat.naming import renaming
from service.contract import BODY, KNOWN, MODEL, WORK, Contract, Outcome, Sent, json
from service.embeddings import rendering
from service.embeddings.request import EmbeddingsRequest, Unheeded, read
from service.house import House

EMBEDDINGS = Contract(
    language.GROUP,
    (Outcome("a vector of length 1 for each text", (json(rendering.EmbeddingList),), headers=KNOWN),),
    failures=(*BODY, *MODEL, *WORK, Kind.CONTEXT_LENGTH_EXCEEDED, Kind.UNSUPPORTED_TASK, Kind.UNKNOWN_ADAPTER),
    body=(
        Sent(
            "application/json",
            EmbeddingsRequest,
            unheeded=Unheeded,
            example={"input": ["A bird sings.", "It is raining."]},
        ),
    ),
    parameters=language.PARAMETERS[:1],
)


async def embeddings(house: House, request: Request) -> Response:
    asking = await language.read(house, request)

    def parsed() -> tuple[EmbeddingsRequest, list[str], Embed, str]:
        fields, ignored = read(asking.members)
        return fields, ignored, fields.job(asking.client), house.catalog.resolve_embedding(fields.model)

    # Many texts are megabytes to look at, and the name of a model may be looked up on disk.
    fields, ignored, job, model = await asyncio.to_thread(parsed)
    with renaming(fields.names):
        vectors, embedded = await reply.unless_gone(request, reply.embedded(house.workers.embedder(model), job))
    data = await asyncio.to_thread(rendering.entries, vectors, fields.encoding_format)
    total = time.perf_counter() - asking.began
    body = rendering.body(data, model, embedded, total)
    return as_json(body, headers=headers.known(model, ignored))
