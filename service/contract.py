"""What a route takes and how it answers, as types and kinds of failure: what /openapi.json is written from.

A handler's file says it beside the handler, and the line in ROUTES puts the two together. Knows no route and no format.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Meta

from protocol.errors import Kind

ONE_OF = "x-one-of"
"""The key under which `one_of` leaves its types, as `module:name`: a schema holds nothing but JSON."""

Schema = Mapping[str, Any]

FILE: Schema = {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}
"""Bytes that are no text."""


def one_of(*kinds: Any) -> Meta:
    """For `Annotated[Any, one_of(A, B)]`: msgspec knows no union of dicts that differ in a member's value."""
    return Meta(extra_json_schema={ONE_OF: [f"{kind.__module__}:{kind.__qualname__}" for kind in kinds]})


@dataclass(frozen=True)
class Parameter:
    """A header or a part of the query. `kind`: a type that msgspec has a schema for."""

    name: str
    where: Literal["query", "header"]
    kind: Any
    description: str


@dataclass(frozen=True)
class Sent:
    """A request's body in one media type: the fields of a struct, or bytes (`kind` None)."""

    media_type: str
    kind: Any = None
    lenient: bool = False
    """As service/forms.py reads it: one value may stand for a list of it, and "off" ends a threshold."""
    hidden: Collection[str] = ()
    """Members of the struct that no client can set."""
    unheeded: Any = None
    """A struct of the fields that are taken without effect."""
    members: Mapping[str, Schema] = field(default_factory=dict)
    """Fields that are read before the struct is made, or otherwise than its type says."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of fields."""
    about: Mapping[str, str] = field(default_factory=dict)
    """What fields mean to a client, where the type that they come from says it in a worker's words or not at all."""
    needs: tuple[str, ...] = ()
    """Fields of which one must be there, beside those that the struct requires."""
    example: Any = None

    @property
    def is_form(self) -> bool:
        return self.media_type == "multipart/form-data"


@dataclass(frozen=True)
class Told:
    """An answer's body in one media type: JSON of this type, or text (`kind` None)."""

    media_type: str
    kind: Any = None
    events: tuple[Any, ...] = ()
    """Types of a stream's events."""
    end: str = ""
    """The text with which the stream ends, which is none of them."""


def json(kind: Any) -> Told:
    return Told("application/json", kind)


def text(media_type: str) -> Told:
    return Told(media_type)


def events(*kinds: Any, end: str = "") -> Told:
    """A stream of them. The type of the event that tells a late failure is one of them. end: what the last one says."""
    return Told("text/event-stream", events=kinds, end=end)


@dataclass(frozen=True)
class Outcome:
    """How a route answers what it can serve. `headers`: names (see document.HEADERS) that this answer may have."""

    description: str
    told: tuple[Told, ...] = ()
    status: int = 200
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contract:
    """All of one route. What goes for every route (ids, keys, hosts, a bug of ours) is not said here."""

    group: str
    answers: tuple[Outcome, ...]
    failures: tuple[Kind, ...] = ()
    body: tuple[Sent, ...] = ()
    """The same fields in each media type."""
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    needs_key: bool = True


BODY = (
    Kind.INVALID_REQUEST,
    Kind.INVALID_VALUE,
    Kind.MISSING_FIELD,
    Kind.PAYLOAD_TOO_LARGE,
    Kind.UNSUPPORTED_MEDIA_TYPE,
    Kind.REQUEST_TIMEOUT,
)
"""What can be wrong with any body."""

WORK = (
    Kind.QUEUE_FULL,
    Kind.MODEL_NOT_CONFIGURED,
    Kind.WORKER_CRASHED,
    Kind.WORKER_STARTING,
    Kind.SHUTTING_DOWN,
    Kind.REQUEST_TIMEOUT,
)
"""What can become of anything that a worker is asked."""

MODEL = (Kind.MODEL_NOT_FOUND, Kind.WRONG_MODEL_KIND)
"""What can be wrong with the name of a model."""

HINTS = ("retry-after", "retry-after-ms", "x-should-retry")
"""Headers that say when, or whether, to try again (service/errors.py)."""

KNOWN = ("x-starling-model", "x-starling-ignored")
"""Headers that service/headers.py gives before any work is done."""
