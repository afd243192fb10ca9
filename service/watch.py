"""What a pool says of its jobs to whoever counts. Knows jobs and events; counts nothing."""

from __future__ import annotations

from typing import Protocol

from protocol.events import Event
from protocol.jobs import Job


class Watch(Protocol):
    """Called by the pool on the event loop, for every job."""

    def given(self, pool: str, job: Job, waited_s: float) -> None:
        """A process has it now, after `waited_s` seconds in the queue."""

    def told(self, pool: str, job: Job, event: Event, seconds: float, *, first: bool) -> None:
        """It was answered with `event`, `seconds` after it came; `first`: with text for the first time."""


class Unwatched:
    """Nobody counts."""

    def given(self, pool: str, job: Job, waited_s: float) -> None:
        pass

    def told(self, pool: str, job: Job, event: Event, seconds: float, *, first: bool) -> None:
        pass


UNWATCHED = Unwatched()
