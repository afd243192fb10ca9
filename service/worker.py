"""One pool of worker processes: spawn, route, bound, restart. `run(job)` is its whole interface."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

import msgspec

from protocol.errors import Failure
from protocol.events import Event, Loading, Ready
from protocol.jobs import Job

State = Literal["starting", "ready", "waiting", "broken", "stopped"]


class ProcessStats(msgspec.Struct, frozen=True):
    """One line of `/stats`."""

    name: str
    pid: int | None
    state: State
    rss_bytes: int
    restarts: int
    queued: int
    running: int


class Worker(Protocol):
    """What the rest of the service knows of a pool of worker processes (tests/fakes.py has another)."""

    name: str

    def run(self, job: Job) -> AsyncGenerator[Event, None]:
        """The job's events, the terminal one last; a Failed is raised as its Failure instead.

        Closing the generator early cancels the job. Raises QueueFull, WorkerStarting, WorkerCrashed,
        ModelNotConfigured, ShuttingDown and whatever the worker refuses.
        """

    @property
    def ready(self) -> Ready | None:
        """What the newest process said when it had loaded; None before the first one did."""

    @property
    def loading(self) -> Loading | None:
        """What a starting process is doing now."""

    @property
    def failure(self) -> Failure | None:
        """Why it cannot serve now and will not by itself: broken or unconfigured. None otherwise."""

    def stats(self) -> list[ProcessStats]: ...

    async def start(self) -> None:
        """Spawn the processes and return at once; loading goes on behind."""

    async def stop(self, grace: float) -> None:
        """Refuse new jobs, let running ones end within `grace` seconds, then end the processes."""
