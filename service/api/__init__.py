"""The URL map. A route is a line here, and a handler and its contract in a file beside this one."""

from __future__ import annotations

from typing import Literal, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from service.api import (
    adapters,
    admin,
    chat,
    discovery,
    documentation,
    embeddings,
    messages,
    operations,
    responses,
    sessions,
    transcriptions,
)
from service.api.answers import as_json
from service.contract import Contract, Outcome, json
from service.house import Endpoint, House


class Listed(TypedDict):
    method: str
    path: str
    summary: str


class RouteList(TypedDict):
    object: Literal["list"]
    routes: list[Listed]


INDEX = Contract("Discovery", (Outcome("every route", (json(RouteList),)),))


async def index(house: House, request: Request) -> Response:
    """This very map, for people who look around."""
    routes: list[Listed] = [
        {"method": each.method, "path": each.path.replace(":path}", "}"), "summary": each.summary} for each in ROUTES
    ]
    listed: RouteList = {"object": "list", "routes": routes}
    return as_json(listed)


SESSIONS = "/v1/audio/sessions"
RESPONSES = "/v1/responses"
ADAPTERS = "/v1/adapters"

ROUTES: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/audio/transcriptions",
        transcriptions.transcriptions,
        "a recording to text, as spoken",
        transcriptions.CONTRACT,
    ),
    Endpoint(
        "POST",
        "/v1/audio/translations",
        transcriptions.translations,
        "a recording to English text",
        transcriptions.CONTRACT,
    ),
    Endpoint("POST", SESSIONS, sessions.create, "begin a live dictation", sessions.CREATE),
    Endpoint("GET", SESSIONS, sessions.listing, "the live dictations, the newest first", sessions.LISTING),
    Endpoint("GET", f"{SESSIONS}/{{id}}", sessions.state, "one dictation and its text so far", sessions.STATE),
    Endpoint("DELETE", f"{SESSIONS}/{{id}}", sessions.remove, "end a dictation and remove all of it", sessions.REMOVE),
    Endpoint("POST", f"{SESSIONS}/{{id}}/audio", sessions.audio, "the next piece of its audio", sessions.AUDIO),
    Endpoint("GET", f"{SESSIONS}/{{id}}/events", sessions.events, "what happens in it, as it happens", sessions.EVENTS),
    Endpoint(
        "POST", f"{SESSIONS}/{{id}}/finish", sessions.finish, "its whole text, once all is transcribed", sessions.FINISH
    ),
    Endpoint("POST", "/v1/chat/completions", chat.chat, "the next message of a conversation", chat.CHAT),
    Endpoint("POST", "/v1/completions", chat.completions, "a text goes on", chat.COMPLETIONS),
    Endpoint(
        "POST",
        "/v1/messages",
        messages.messages,
        "the next message of a conversation, as Anthropic writes it",
        messages.MESSAGES,
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        messages.count_tokens,
        "how long that conversation's prompt is",
        messages.COUNT,
    ),
    Endpoint(
        "POST", RESPONSES, responses.create, "the next answer of a conversation that is kept here", responses.CREATE
    ),
    Endpoint("POST", f"{RESPONSES}/input_tokens", responses.count, "how long that answer's prompt is", responses.COUNT),
    Endpoint("GET", f"{RESPONSES}/{{id}}", responses.retrieve, "a response that was kept", responses.RETRIEVE),
    Endpoint("DELETE", f"{RESPONSES}/{{id}}", responses.remove, "remove it", responses.REMOVE),
    Endpoint(
        "GET",
        f"{RESPONSES}/{{id}}/input_items",
        responses.input_items,
        "what the client sent with it",
        responses.INPUT_ITEMS,
    ),
    Endpoint("GET", ADAPTERS, adapters.listing, "the LoRA adapters that a request can name", adapters.LISTING),
    Endpoint("POST", ADAPTERS, adapters.mount, "mount one more, from the configured folder", adapters.MOUNT),
    Endpoint(
        "DELETE", f"{ADAPTERS}/{{id}}", adapters.unmount, "unmount it; answers that use it go on", adapters.UNMOUNT
    ),
    Endpoint("POST", "/v1/embeddings", embeddings.embeddings, "texts to vectors", embeddings.EMBEDDINGS),
    Endpoint("GET", "/v1", index, "this list", INDEX),
    Endpoint(
        "GET",
        "/v1/models",
        discovery.models,
        "the models: configured ones, then those in the hub cache",
        discovery.MODELS,
    ),
    Endpoint("GET", "/v1/models/{id:path}", discovery.model, "one model, by id or alias", discovery.MODEL),
    Endpoint(
        "POST",
        "/admin/transcription/unload",
        admin.transcription,
        "speech models out of memory until they are needed",
        admin.UNLOAD,
    ),
    Endpoint(
        "POST", "/admin/llm/unload", admin.llm, "language models out of memory until they are needed", admin.UNLOAD
    ),
    Endpoint("GET", "/openapi.json", documentation.openapi, "all of this for programs", documentation.OPENAPI),
    Endpoint("GET", "/docs", documentation.docs, "the same for people", documentation.DOCS),
    Endpoint("GET", "/health", operations.health, "ok as soon as the server listens", operations.HEALTH),
    Endpoint("GET", "/ready", operations.ready, "whether every worker can serve, else why not", operations.READY),
    Endpoint("GET", "/metrics", operations.metrics, "counts and times, for Prometheus", operations.METRICS),
    Endpoint("GET", "/stats", operations.stats, "workers, queue, backend, spool and sessions", operations.STATS),
)
