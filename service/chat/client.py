"""Who a client is, where the engine is fair among clients."""

from __future__ import annotations

from starlette.requests import Request

from service import headers

LONGEST = 100
"""Characters of a name that tell clients apart."""


def name(request: Request) -> str:
    """What the client calls itself, else its connection.

    An API key comes first once keys can be configured. Until then whatever SDKs send as one is the same word
    everywhere and tells nobody apart.
    """
    if called := headers.only(request.headers, "x-starling-client"):
        return called[:LONGEST]
    return f"{request.client.host}:{request.client.port}" if request.client else ""
