"""Who a client is, where the house is fair among clients or limits what one of them may have."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Scope

from service import headers

LONGEST = 100
"""Characters of a name that tell clients apart."""

_KEY = "starling.key"


def known_by(scope: Scope, key: str) -> None:
    """From here on the request is that of the holder of a key; `key` is a name for it and does not give it away."""
    scope[_KEY] = key


def name(request: Request) -> str:
    """The API key that it was let in with, else what the client calls itself, else its connection.

    Where no keys are configured, whatever SDKs send as one is the same word everywhere and tells nobody apart.
    Raises InvalidValue for a client that calls itself several things.
    """
    if key := request.scope.get(_KEY):
        return str(key)
    if called := headers.only(request.headers, "x-starling-client"):
        return called[:LONGEST]
    return f"{request.client.host}:{request.client.port}" if request.client else ""
