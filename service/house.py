"""What every handler is given: settings, workers, what is kept on disk, models' names. Builds nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from service.catalog import Catalog, Loaded
from service.config import Config
from service.contract import Contract
from service.crowd import Crowd
from service.dictation.sessions import Sessions
from service.metrics import Metrics
from service.openapi.document import Document
from service.responses.store import ResponseStore
from service.spool import Spool
from service.worker import Worker


@dataclass(frozen=True)
class Speech:
    """One speech model's pools."""

    whisper: Worker
    oracle: Worker
    """mlx-whisper's own transcribe, for `faithful`; its process is there only while someone asks for it."""


@dataclass(frozen=True)
class Workers:
    """One pool of processes for each kind of work and each model. Models by their ids, the default first."""

    media: Worker
    """Recordings that were sent whole."""
    live: Worker
    """Live speech, so that no upload holds up a dictation."""
    speech: Mapping[str, Speech]
    language: Mapping[str, Worker]
    """Empty: no language model is configured."""
    embedding: Mapping[str, Worker] = field(default_factory=dict)
    """Empty: language models make the vectors of texts."""

    @property
    def whisper(self) -> Worker:
        """The default speech model's."""
        return next(iter(self.speech.values())).whisper

    @property
    def llm(self) -> Worker | None:
        """The default language model's; None: there is none."""
        return next(iter(self.language.values()), None)

    def writer(self, model: str) -> Worker:
        """What writes a dictation that was begun with that model."""
        return self.speech[self.written_by(model)].whisper

    def written_by(self, model: str) -> str:
        """The id of the model that does: the default's when that one is configured no more."""
        return model if model in self.speech else next(iter(self.speech))

    def embedder(self, model: str) -> Worker:
        """What makes vectors with that model, of whichever kind it is."""
        return self.embedding[model] if model in self.embedding else self.language[model]

    def __iter__(self) -> Iterator[Worker]:
        yield from (self.media, self.live)
        for pair in self.speech.values():
            yield from (pair.whisper, pair.oracle)
        yield from self.language.values()
        yield from self.embedding.values()

    @property
    def resident(self) -> tuple[Worker, ...]:
        """Those without which the house is not ready."""
        oracles = [pair.oracle for pair in self.speech.values()]
        return tuple(worker for worker in self if worker not in oracles)

    @property
    def models(self) -> tuple[Worker, ...]:
        """Those that have a model, which may leave memory while nobody needs it."""
        return tuple(worker for worker in self if worker not in (self.media, self.live))

    @property
    def loaded(self) -> dict[str, Loaded]:
        """What is known of each model."""
        whispers = {id: pair.whisper for id, pair in self.speech.items()}
        return {
            id: Loaded(worker.ready.model if worker.ready else None, resident=worker.state == "ready")
            for id, worker in (whispers | dict(self.language) | dict(self.embedding)).items()
        }

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
    document: Document
    metrics: Metrics
    uploads: Crowd = field(default_factory=Crowd)
    """Recordings on their way through the house."""

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
    contract: Contract
    """What it takes and how it answers: /openapi.json says so."""
