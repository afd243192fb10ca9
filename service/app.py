"""The only place where things are wired: settings to pools, spool and routes; start and stop.

Knows who needs whom; knows nothing that any of them does.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from protocol.errors import Failure, Kind, MethodNotAllowed, NotFound
from protocol.jobs import Job, Transcribe
from protocol.settings import EmbedSettings, LlmSettings, MediaSettings, OracleSettings, WhisperSettings
from service import adapters, errors, habits
from service.access import Access, Rules
from service.admission import Admission
from service.api import ROUTES
from service.catalog import Catalog
from service.config import Config
from service.dictation.session import Session
from service.dictation.sessions import Limits, Sessions
from service.dictation.store import Store, Stored
from service.dictation.turns import Turns
from service.house import House, Speech, Workers
from service.memory import Keeper
from service.metrics import Metrics
from service.middleware import Exchange
from service.names import by_alias, by_id
from service.openapi.document import Document
from service.responses.store import ResponseStore
from service.spool import Spool
from service.timing import Timing
from service.watch import Watch
from service.worker import Pool, Worker

ORACLE_STALL_FOR_EACH_SECOND = 20.0
"""Seconds of silence that one second of audio may cost the oracle, which says nothing within a window."""
STEP_STALL_S = 120.0
"""Seconds that one step of the largest model may add on the slowest CPU: two windows are encoded in it."""
WINDOW_SECONDS = 30.0
"""Whisper's window: a shorter recording costs as much as one, and more if it is hard (every fallback temperature)."""

MEDIA_ROOM = 4
"""Recordings that wait to be decoded, to one that may wait for the speech model."""
LIVE_CAPACITY = 32
"""Jobs at once of a process for live speech, each of which is a few milliseconds of work."""

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def create(config: Config) -> Starlette:
    """The service with real worker processes; they start when the server does, and HTTP does not wait for them."""
    store = Store(config.data_dir, config.max_session_bytes)
    metrics = Metrics()
    house = furnish(config, _workers(config, metrics), Spool(config.data_dir), store, metrics)
    memory = Keeper(tuple(house.workers), house.workers.models, config.memory_limit)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        with house.spool, store:
            try:
                for worker in house.workers:
                    await worker.start()
                await house.sessions.start()
                async with memory.watching():
                    yield
            finally:
                await house.stop(config.grace)

    return build(house, lifespan)


def furnish(config: Config, workers: Workers, spool: Spool, store: Store, metrics: Metrics | None = None) -> House:
    """All parts of the service, none of them started."""
    turns = Turns()

    def conduct(stored: Stored) -> Session:
        model = workers.written_by(stored.spec.model)
        return Session(
            stored,
            live=workers.live,
            whisper=workers.writer(model),
            model=model,
            turns=turns,
            max_seconds=config.max_session_seconds,
        )

    limits = Limits(
        idle_s=config.session_idle,
        keep_s=config.session_keep,
        most=config.max_sessions,
        most_of_one=config.max_client_sessions,
    )
    folder = Path(config.data_dir)
    responses = ResponseStore(folder, max_bytes=config.max_response_bytes, keep_s=config.response_keep)
    catalog = _catalog(config)
    return House(
        config,
        workers,
        spool,
        Sessions(store, conduct, limits),
        responses,
        catalog,
        Document(ROUTES),
        metrics or Metrics(),
    )


def _catalog(config: Config) -> Catalog:
    aliases = by_alias(config.model_alias, config.models)
    speech, llm, embedding = (
        by_id(given) for given in (config.whisper_model, config.llm_model, config.embedding_model)
    )
    return Catalog(speech, llm, config.strict_models, int(time.time()), aliases, embedding)


def build(house: House, lifespan: Lifespan | None = None) -> Starlette:
    """The application over these parts. Without `lifespan` the caller starts and stops them, the spool too."""
    app = Starlette(
        routes=_routes(house),
        middleware=[
            Middleware(Exchange, metrics=house.metrics, unread_s=house.config.unread_s),
            Middleware(Access, rules=Rules.of(house.config)),
            Middleware(Admission, most=house.config.max_requests, most_of_one=house.config.max_client_requests),
        ],
        exception_handlers={Failure: _refuse, HTTPException: _refuse_route},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.house = house
    return app


def _workers(config: Config, watch: Watch) -> Workers:
    """Pools that are not started yet."""
    media = MediaSettings(config.max_audio_seconds, config.max_decode_seconds, config.media_memory_bytes)
    pool = _pools(config, watch)
    return Workers(
        media=pool(
            "media",
            media,
            processes=config.media_workers,
            # How many recordings there are is bounded before they are sent, and none is turned away half done.
            queue_limit=MEDIA_ROOM * config.queue_limit,
            stall=lambda _: config.stall_seconds,
        ),
        live=pool(
            "live",
            msgspec.structs.replace(media, capacity=LIVE_CAPACITY),
            processes=config.live_media_workers,
            queue_limit=config.queue_limit + config.max_sessions,
            stall=lambda _: config.stall_seconds,
        ),
        speech={each.id: _speech(config, each, watch) for each in _models(config.whisper_model)},
        language={each.id: _language(config, each, watch) for each in _models(config.llm_model)},
        embedding={each.id: _embedding(config, each, watch) for each in _models(config.embedding_model)},
    )


def _pools(config: Config, watch: Watch) -> Callable[..., Pool]:
    """What makes a pool, given what differs from one to the next."""
    return partial(Pool, queue_limit=config.queue_limit, start_wait=config.start_wait, watch=watch)


class _Model(NamedTuple):
    """One that is configured. The default of its kind is there from the start, others when they are asked for."""

    id: str
    given: str
    default: bool

    def pool(self, name: str) -> str:
        """The name of one of its pools."""
        return name if self.default else f"{name}:{self.id}"


def _models(given: Sequence[str]) -> list[_Model]:
    return [_Model(id, model, number == 0) for number, (id, model) in enumerate(by_id(given).items())]


def _resident(config: Config, model: _Model) -> Timing:
    """How long a model's processes are in memory."""
    return Timing(idle_end=config.idle_unload or None, on_demand=not model.default)


def _speech(config: Config, model: _Model, watch: Watch) -> Speech:
    pool = _pools(config, watch)

    def oracle_stall(job: Job) -> float:
        heard = max(job.audio.seconds, WINDOW_SECONDS) if isinstance(job, Transcribe) else 0.0
        return config.stall_seconds + ORACLE_STALL_FOR_EACH_SECOND * heard

    return Speech(
        whisper=pool(
            model.pool("whisper"),
            WhisperSettings(model.given, config.data_dir, offline=config.offline),
            processes=config.whisper_workers,
            stall=lambda _: config.stall_seconds + STEP_STALL_S,
            timing=_resident(config, model),
        ),
        # Above temperature 0 mlx-whisper draws from one random state for all windows: none can be heard again.
        oracle=pool(
            model.pool("oracle"),
            OracleSettings(model.given, config.data_dir, offline=config.offline),
            processes=1,
            stall=oracle_stall,
            timing=Timing(idle_end=config.faithful_idle_s, on_demand=True),
            exact=False,
        ),
    )


def _language(config: Config, model: _Model, watch: Watch) -> Worker:
    """One process: conversations share its batch and its prompt cache."""
    adapter = config.adapter if model.default else ""
    settings = LlmSettings(
        model.given,
        config.data_dir,
        offline=config.offline,
        cache_bytes=config.llm_cache_bytes,
        trace=config.trace,
        trace_text=config.trace_text,
        adapters=adapters.at_start(adapter),
        default_adapter=adapters.name_of(adapter),
    )
    return _pools(config, watch)(
        model.pool("llm"),
        settings,
        processes=1,
        stall=lambda _: config.stall_seconds,
        timing=_resident(config, model),
        learn=adapters.learn,
    )


def _embedding(config: Config, model: _Model, watch: Watch) -> Worker:
    """An encoder reads a text in one step, which may take as long as one of Whisper's."""
    return _pools(config, watch)(
        model.pool("embedding"),
        EmbedSettings(model.given, config.data_dir, offline=config.offline),
        processes=1,
        stall=lambda _: config.stall_seconds + STEP_STALL_S,
        timing=_resident(config, model),
    )


def _routes(house: House) -> list[Route]:
    """The map, and OPTIONS for each of its paths."""
    routes = [Route(each.path, partial(each.handler, house), methods=[each.method]) for each in ROUTES]
    paths = dict.fromkeys(each.path for each in ROUTES)
    return routes + [Route(path, _options, methods=["OPTIONS"]) for path in paths]


def _allowed(request: Request) -> str:
    """The value of Allow for the path that the request found."""
    route = request.scope["route"]
    methods = {each.method for each in ROUTES if each.path == route.path}
    return ", ".join(sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))


async def _options(request: Request) -> Response:
    return Response(status_code=204, headers={"allow": _allowed(request)})


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Failure)
    return errors.response(error, path=request.url.path)


async def _refuse_route(request: Request, error: Exception) -> Response:
    """What the router has to say: there is no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method[:20]
    if error.status_code == errors.STATUS[Kind.METHOD_NOT_ALLOWED].status:
        allowed = _allowed(request)
        refusal = MethodNotAllowed(f"{path[:100]} takes {allowed}, not {method}")
        return errors.response(refusal, allow=allowed, path=path)
    paths = [each.path for each in ROUTES]
    return errors.response(NotFound(f"there is nothing at {path[:100]}{habits.hint(path, paths)}"), path=path)
