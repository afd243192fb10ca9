"""How many recordings may be on their way through the house, from the first byte of an upload to the last of its text.

Knows how to count. Who comes too late is told so before anything is read, not once the work is half done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import QueueFull


class Crowd:
    """Those that have entered and not left yet."""

    def __init__(self) -> None:
        self._inside = 0

    @contextmanager
    def entered(self, room: int) -> Iterator[None]:
        """Raises QueueFull where `room` are inside already."""
        if self._inside >= room:
            raise QueueFull(f"{room} recordings are being worked on or are waiting already; try again later")
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
