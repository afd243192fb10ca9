"""What every handler is given: settings, workers, what is kept on disk, models' names. Builds nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, fields

from starlette.requests import Request
from starlette.responses import Response

from service.catalog import Catalog
from service.config import Config
from service.dictation.sessions import Sessions
from service.responses.store import ResponseStore
from service.spool import Spool
from service.worker import Worker


@dataclass(frozen=True)
class Workers:
    """One pool of processes for each kind of work."""

    media: Worker
    """Recordings that were sent whole."""
    live: Worker
    """Live speech, so that no upload holds up a dictation."""
    whisper: Worker
    oracle: Worker
    """mlx-whisper's own transcribe, for `faithful`; its process is there only while someone asks for it."""
    llm: Worker | None = None
    """None: no language model is configured."""

    def __iter__(self) -> Iterator[Worker]:
        members = (getattr(self, each.name) for each in fields(self))
        return (worker for worker in members if worker is not None)

    @property
    def resident(self) -> tuple[Worker, ...]:
        """Those without which the house is not ready."""
        return tuple(worker for worker in self if worker is not self.oracle)

    async def stop(self, grace: float) -> None:
        """All at once: the seconds that running jobs may take are theirs together."""
        await asyncio.gather(*(worker.stop(grace) for worker in self))


@dataclass(frozen=True)
class House:
    config: Config
    workers: Workers
    spool: Spool
    sessions: Sessions
    responses: ResponseStore
    catalog: Catalog

    async def stop(self, grace: float) -> None:
        """Sessions first: what their workers do for them is done again by the next service. Idempotent."""
        await self.sessions.stop(grace)
        await self.workers.stop(grace)


Handler = Callable[[House, Request], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """One line of the URL map."""

    method: str
    path: str
    handler: Handler
    summary: str
