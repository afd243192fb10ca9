"""Lines for whoever started the service. Nobody need be there to read them."""

from __future__ import annotations

from contextlib import suppress


def say(text: str) -> None:
    """Print a line. Its reader may have left, or the disk be full on which it is kept: the service goes on."""
    with suppress(OSError):
        print(text, flush=True)
