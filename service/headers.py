"""Headers that say about a transcript what its body may not have room for. Knows no route."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

import msgspec

from service import forms
from service.transcripts import Transcript


def known(model: str, ignored: Iterable[str] = ()) -> dict[str, str]:
    """Those that are there before any work is done: the model, and the names of fields that nobody knows."""
    headers = {"x-starling-model": quote(model, safe="/: "), "x-starling-ignored": forms.ignored_header(ignored)}
    return {name: value for name, value in headers.items() if value is not None}


def measured(transcript: Transcript) -> dict[str, str]:
    """Those of a collected answer."""
    meta = transcript.meta
    language = {"x-starling-language": meta.language} if meta.language is not None else {}
    return language | {
        "x-starling-duration": str(meta.duration),
        "x-starling-timings": msgspec.json.encode(meta.timings).decode(),
    }
