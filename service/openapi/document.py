"""GET /openapi.json: the routes and their contracts as an OpenAPI 3.1 document.

Knows the format; what a route takes and answers is said beside its handler (service/contract.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.errors import Kind
from service import errors
from service.contract import FILE, HINTS, Contract, Outcome, Parameter, Sent, Told
from service.openapi.schemas import Schema, Schemas

if TYPE_CHECKING:
    from service.house import Endpoint

ABOUT = """\
Speech and language models on this machine, behind OpenAI's and Anthropic's interfaces. `HEAD` works wherever `GET` \
does, and `OPTIONS` everywhere. `null`, in a form `""`, and an absent field mean the default; fields that nobody knows \
are ignored and listed in `x-starling-ignored`. In forms the name of a list may end in `[]`."""

ALWAYS = (
    Kind.INVALID_REQUEST,
    Kind.INVALID_VALUE,
    Kind.FORBIDDEN_HOST,
    Kind.FORBIDDEN_ORIGIN,
    Kind.TOO_MANY_REQUESTS,
    Kind.INTERNAL_ERROR,
)
"""Failures that any request may meet."""
KEYED = (Kind.INVALID_API_KEY,)
"""Failures that a request may meet where keys are configured."""
UNROUTED = (Kind.NOT_FOUND, Kind.METHOD_NOT_ALLOWED, Kind.REQUEST_CANCELLED)
"""Failures that no route answers with: there is none, or nobody is left to answer."""

HEADERS: Mapping[str, tuple[Schema, str]] = {
    "x-request-id": ({"type": "string"}, "The request's own id, else one of ours. The log has it."),
    "request-id": ({"type": "string"}, "The same, where Anthropic's clients look for it."),
    "x-starling-model": ({"type": "string"}, "The model that serves."),
    "x-starling-ignored": ({"type": "string"}, "Names of fields that nobody knows, at most 20, escaped."),
    "x-starling-language": ({"type": "string"}, "The code of the language that was spoken."),
    "x-starling-duration": ({"type": "number"}, "Seconds of audio."),
    "x-starling-timings": ({"type": "string", "contentMediaType": "application/json"}, "Milliseconds by phase."),
    "location": ({"type": "string"}, "Where it is from now on."),
    "content-security-policy": ({"type": "string"}, "The page loads nothing but the document."),
    "www-authenticate": ({"const": "Bearer"}, "How a key is sent; x-api-key does as well."),
    "retry-after": ({"type": "integer", "minimum": 1, "maximum": 120}, "Seconds to wait before the next try."),
    "retry-after-ms": ({"type": "integer"}, "The same in milliseconds."),
    "x-should-retry": ({"const": "false"}, "The same request would fail again."),
}
REQUEST_ID = Parameter("x-request-id", "header", str, "1 to 128 printable ASCII characters; comes back.")
PATH_PART = re.compile(r"\{(\w+)(?::\w+)?\}")


class Document:
    """Made at the first request, once."""

    def __init__(self, routes: Sequence[Endpoint]) -> None:
        self._routes = routes

    @cached_property
    def json(self) -> bytes:
        return msgspec.json.encode(_tree(self._routes))


def _tree(routes: Sequence[Endpoint]) -> Schema:
    contracts = [route.contract for route in routes]
    sent = [each for contract in contracts for each in contract.body if each.kind is not None]
    schemas = Schemas(_kinds(contracts))
    paths: dict[str, Schema] = {}
    for route in routes:
        path = PATH_PART.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schemas)
    schemas.drop({kind: None for each in sent for kind in (each.kind, each.unheeded) if kind is not None})
    groups = dict.fromkeys(contract.group for contract in contracts)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Starling", "version": version("starling"), "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": group} for group in groups],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "headers": {name: {"schema": schema, "description": about} for name, (schema, about) in HEADERS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "Where keys are configured."},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same."},
            },
        },
        "security": [{"bearer": []}, {"key": []}, {}],
    }


def _kinds(contracts: Iterable[Contract]) -> list[Any]:
    """Every type that the document needs a schema of."""
    found: list[Any] = [errors.ErrorBody, errors.AnthropicErrorBody, REQUEST_ID.kind]
    for contract in contracts:
        found += [kind for sent in contract.body for kind in (sent.kind, sent.unheeded) if kind is not None]
        found += [parameter.kind for parameter in contract.parameters]
        for told in (told for answer in contract.answers for told in answer.told):
            found += told.events if told.events else [told.kind] if told.kind is not None else []
    return found


def _operation(route: Endpoint, path: str, schemas: Schemas) -> Schema:
    contract = route.contract
    body = {}
    if contract.body:
        content = {sent.media_type: _sent(sent, schemas) for sent in contract.body}
        body = {"requestBody": {"required": contract.body_required, "content": content}}
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in PATH_PART.findall(route.path)
    ]
    parameters = [
        {
            "name": each.name,
            "in": each.where,
            "required": False,
            "description": each.description,
            "schema": schemas.of(each.kind),
        }
        for each in (*contract.parameters, REQUEST_ID)
    ]
    about = (route.handler.__doc__ or "").strip()
    return {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{path}").strip("_"),
        "tags": [contract.group],
        "summary": route.summary,
        **({"description": about} if about else {}),
        "parameters": [*named, *parameters],
        **body,
        "responses": _responses(contract, path, schemas),
        **({} if contract.needs_key else {"security": []}),
    }


def _sent(sent: Sent, schemas: Schemas) -> Schema:
    example = {} if sent.example is None else {"example": sent.example}
    if sent.kind is not None:
        schema = schemas.sent(sent)
    elif sent.is_form:
        schema = {"type": "object", "properties": dict(sent.members), "required": list(sent.needs)}
    else:
        schema = dict(FILE)
    return {"schema": schema, **example}


def _responses(contract: Contract, path: str, schemas: Schemas) -> Schema:
    always = ("x-request-id", "request-id") if errors.speaks_anthropic(path) else ("x-request-id",)
    found = {str(answer.status): _answer(answer, always, schemas) for answer in contract.answers}
    unknown = [Kind.NOT_FOUND] if "{" in path else []
    kinds: dict[int, list[Kind]] = {}
    keyed = KEYED if contract.needs_key else ()
    for kind in dict.fromkeys((*contract.failures, *unknown, *keyed, *ALWAYS)):
        kinds.setdefault(errors.STATUS[kind].status, []).append(kind)
    shape = schemas.of(errors.AnthropicErrorBody if errors.speaks_anthropic(path) else errors.ErrorBody)
    for status, codes in sorted(kinds.items()):
        hints = [name for kind in codes for name in _hints(kind)]
        failure = {
            "description": ", ".join(codes),
            "headers": _headers((*always, *dict.fromkeys(hints))),
            "content": {"application/json": {"schema": shape}},
            "x-starling-codes": [str(code) for code in codes],
        }
        found[str(status)] = {**failure, **found.get(str(status), {})}
    return found


def _hints(kind: Kind) -> Iterable[str]:
    """The retry hints that this failure may come with: whoever raises it may say that it would fail again."""
    if kind in KEYED:
        return ("www-authenticate",)
    return HINTS if errors.STATUS[kind].wait_s is not None else HINTS[2:]


def _answer(answer: Outcome, always: tuple[str, ...], schemas: Schemas) -> Schema:
    content = {told.media_type: _told(told, schemas) for told in answer.told}
    return {
        "description": answer.description,
        "headers": _headers((*always, *answer.headers)),
        **({"content": content} if content else {}),
    }


def _told(told: Told, schemas: Schemas) -> Schema:
    if told.events:
        event = {"anyOf": [schemas.of(kind) for kind in told.events]}
        data: Schema = {"type": "string", "contentMediaType": "application/json", "contentSchema": event}
        # OpenAPI 3.1 has no word for it; what clients' generators expect is the schema of one event.
        members = {
            "event": {"type": "string", "description": "The data's `type`, where it has one."},
            "id": {"type": "string", "description": "Where the stream can be resumed."},
            "data": {"anyOf": [data, {"const": told.end}]} if told.end else data,
        }
        about = "One of the stream's events."
        return {"schema": {"type": "object", "description": about, "properties": members, "required": ["data"]}}
    return {"schema": {"type": "string"} if told.kind is None else schemas.of(told.kind)}


def _headers(names: Iterable[str]) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
