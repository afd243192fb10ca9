"""Addresses as people and older programs get them wrong: what they probably meant, for the 404's message.

Nothing is redirected, as with OpenAI: a client that is told its mistake can mend it, for every route at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from starlette.routing import compile_path

LIST = "; GET /v1 lists what there is"

_TASK = re.compile(r"/v1/engines/.+/(completions|embeddings)")
_ENGINE = re.compile(r"/v1/engines/(.+)")
"""As OpenAI's API was before its models had names of their own."""


def hint(path: str, routes: Iterable[str]) -> str:
    """The end of a sentence that says that nothing is at `path`. routes: as Starlette writes them."""
    patterns = [compile_path(route)[0] for route in routes]
    for meant in _variants(path):
        if meant != path and any(pattern.match(meant) for pattern in patterns):
            return f"; {meant[:100]} is probably meant{_because(path, meant)}{LIST}"
    return LIST


def _variants(path: str) -> Iterator[str]:
    """What may be meant, the likeliest first."""
    whole = "/" + "/".join(part for part in path.split("/") if part)
    while whole.startswith("/v1/v1"):
        whole = whole.removeprefix("/v1")
    for versioned in (whole, f"/v1{whole}"):
        if versioned == "/v1/engines":
            yield "/v1/models"
        elif task := _TASK.fullmatch(versioned):
            yield f"/v1/{task[1]}"
        elif engine := _ENGINE.fullmatch(versioned):
            yield f"/v1/models/{engine[1]}"
        else:
            yield versioned


def _because(path: str, meant: str) -> str:
    if path.startswith("/v1/v1"):
        return ": the base URL of this client goes without /v1"
    if meant.startswith("/v1") and not path.startswith("/v1"):
        return ": base URLs of OpenAI's clients end in /v1"
    return ""
