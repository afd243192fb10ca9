"""The URL map. A route is a line here and a handler in a file beside this one."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from service.api import chat, discovery, messages, operations, responses, sessions, transcriptions
from service.house import Endpoint, House


async def index(house: House, request: Request) -> Response:
    """This very map, for people who look around."""
    routes = [
        {"method": each.method, "path": each.path.replace(":path}", "}"), "summary": each.summary} for each in ROUTES
    ]
    return Response(msgspec.json.encode({"object": "list", "routes": routes}), media_type="application/json")


SESSIONS = "/v1/audio/sessions"
RESPONSES = "/v1/responses"

ROUTES: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/audio/transcriptions", transcriptions.transcriptions, "a recording to text, as spoken"),
    Endpoint("POST", "/v1/audio/translations", transcriptions.translations, "a recording to English text"),
    Endpoint("POST", SESSIONS, sessions.create, "begin a live dictation"),
    Endpoint("GET", SESSIONS, sessions.listing, "the live dictations, the newest first"),
    Endpoint("GET", f"{SESSIONS}/{{id}}", sessions.state, "one dictation and its text so far"),
    Endpoint("DELETE", f"{SESSIONS}/{{id}}", sessions.remove, "end a dictation and remove all of it"),
    Endpoint("POST", f"{SESSIONS}/{{id}}/audio", sessions.audio, "the next piece of its audio"),
    Endpoint("GET", f"{SESSIONS}/{{id}}/events", sessions.events, "what happens in it, as it happens"),
    Endpoint("POST", f"{SESSIONS}/{{id}}/finish", sessions.finish, "its whole text, once all is transcribed"),
    Endpoint("POST", "/v1/chat/completions", chat.chat, "the next message of a conversation"),
    Endpoint("POST", "/v1/completions", chat.completions, "a text goes on"),
    Endpoint("POST", "/v1/messages", messages.messages, "the next message of a conversation, as Anthropic writes it"),
    Endpoint("POST", "/v1/messages/count_tokens", messages.count_tokens, "how long that conversation's prompt is"),
    Endpoint("POST", RESPONSES, responses.create, "the next answer of a conversation that is kept here"),
    Endpoint("POST", f"{RESPONSES}/input_tokens", responses.count, "how long that answer's prompt is"),
    Endpoint("GET", f"{RESPONSES}/{{id}}", responses.retrieve, "a response that was kept"),
    Endpoint("DELETE", f"{RESPONSES}/{{id}}", responses.remove, "remove it"),
    Endpoint("GET", f"{RESPONSES}/{{id}}/input_items", responses.input_items, "what the client sent with it"),
    Endpoint("GET", "/v1", index, "this list"),
    Endpoint("GET", "/v1/models", discovery.models, "the models: configured ones, then those in the hub cache"),
    Endpoint("GET", "/v1/models/{id:path}", discovery.model, "one model, by id or alias"),
    Endpoint("GET", "/health", operations.health, "ok as soon as the server listens"),
    Endpoint("GET", "/ready", operations.ready, "whether every worker can serve, else why not"),
    Endpoint("GET", "/stats", operations.stats, "workers, queue, backend, spool and sessions"),
)
