"""Headers of ours: what a client says in them, and what they say about a transcript. Knows no route."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers

from protocol.errors import InvalidValue
from service import forms
from service.transcripts import Transcript

IGNORED = "x-starling-ignored"


def only(given: Headers, name: str) -> str:
    """The value of a header that a request has once at most; "" where it is not there. Raises InvalidValue."""
    first, *more = given.getlist(name) or [""]
    if more:
        raise InvalidValue(f"{name} was given {len(more) + 1} times; send it once", param=name)
    return first


def known(model: str, ignored: Iterable[str] = ()) -> dict[str, str]:
    """Those that are there before any work is done: the model, and the names of fields that nobody knows."""
    headers = {"x-starling-model": quote(model, safe="/: "), IGNORED: forms.ignored_header(ignored)}
    return {name: value for name, value in headers.items() if value is not None}


def measured(transcript: Transcript) -> dict[str, str]:
    """Those of a collected answer."""
    meta = transcript.meta
    language = {"x-starling-language": meta.language} if meta.language is not None else {}
    return language | {
        "x-starling-duration": str(meta.duration),
        "x-starling-timings": msgspec.json.encode(meta.timings).decode(),
    }
