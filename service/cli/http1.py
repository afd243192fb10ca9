"""Hypercorn for HTTP/1.1 alone.

Without TLS no client that we know speaks HTTP/2, but Hypercorn would, with whoever asks for it; and there (0.18) a
client that closes its window and leaves keeps what was to be sent, and its request's place, for ever: nobody wakes a
`StreamBuffer.drain` (hypercorn/protocol/h2.py) once the connection is closed.
"""

from __future__ import annotations

import h11
from hypercorn.protocol.h11 import H11Protocol


def refuse_http2() -> None:
    """From here on an upgrade to it is passed over, as RFC 9110 (7.8) lets a server do, and its preface is a request
    for what is not there."""
    H11Protocol._check_protocol = _check_nothing  # type: ignore[assignment, method-assign]


async def _check_nothing(protocol: H11Protocol, request: h11.Request) -> None:
    """Whatever is asked for is asked in HTTP/1.1."""
