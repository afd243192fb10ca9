"""The only place where things are wired: settings to pools, spool and routes; start and stop.

Knows who needs whom; knows nothing that any of them does.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from protocol.errors import Failure, Kind, MethodNotAllowed, NotFound
from protocol.jobs import Job, Transcribe
from protocol.settings import LlmSettings, MediaSettings, OracleSettings, WhisperSettings
from service import errors, habits
from service.api import ROUTES
from service.catalog import Catalog
from service.config import Config
from service.dictation.session import Session
from service.dictation.sessions import Limits, Sessions
from service.dictation.store import Store
from service.dictation.turns import Turns
from service.house import House, Workers
from service.middleware import Exchange
from service.responses.store import ResponseStore
from service.spool import Spool
from service.timing import Timing
from service.worker import Pool, Worker

ORACLE_STALL_FOR_EACH_SECOND = 20.0
"""Seconds of silence that one second of audio may cost the oracle, which says nothing within a window."""
STEP_STALL_S = 120.0
"""Seconds that one step of the largest model may add on the slowest CPU: two windows are encoded in it."""
WINDOW_SECONDS = 30.0
"""Whisper's window: a shorter recording costs as much as one, and more if it is hard (every fallback temperature)."""

LIVE_CAPACITY = 32
"""Jobs at once of a process for live speech, each of which is a few milliseconds of work."""

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def create(config: Config) -> Starlette:
    """The service with real worker processes; they start when the server does, and HTTP does not wait for them."""
    store = Store(config.data_dir, config.max_session_bytes)
    house = furnish(config, _workers(config), Spool(config.data_dir), store)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        with house.spool, store:
            try:
                for worker in house.workers:
                    await worker.start()
                await house.sessions.start()
                yield
            finally:
                await house.stop(config.grace)

    return build(house, lifespan)


def furnish(config: Config, workers: Workers, spool: Spool, store: Store) -> House:
    """All parts of the service, none of them started."""
    conduct = partial(
        Session,
        live=workers.live,
        whisper=workers.whisper,
        turns=Turns(),
        max_seconds=config.max_session_seconds,
    )
    limits = Limits(idle_s=config.session_idle, keep_s=config.session_keep, most=config.max_sessions)
    catalog = Catalog(config.whisper_model, config.llm_model, config.strict_models, int(time.time()))
    folder = Path(config.data_dir)
    responses = ResponseStore(folder, max_bytes=config.max_response_bytes, keep_s=config.response_keep)
    return House(config, workers, spool, Sessions(store, conduct, limits), responses, catalog)


def build(house: House, lifespan: Lifespan | None = None) -> Starlette:
    """The application over these parts. Without `lifespan` the caller starts and stops them, the spool too."""
    app = Starlette(
        routes=_routes(house),
        middleware=[Middleware(Exchange)],
        exception_handlers={Failure: _refuse, HTTPException: _refuse_route},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.house = house
    return app


def _workers(config: Config) -> Workers:
    """Pools that are not started yet."""
    media = MediaSettings(config.max_audio_seconds, config.max_decode_seconds, config.media_memory_bytes)
    whisper = WhisperSettings(config.whisper_model, config.data_dir, offline=config.offline)
    oracle = OracleSettings(config.whisper_model, config.data_dir, offline=config.offline)
    pool = partial(Pool, queue_limit=config.queue_limit, start_wait=config.start_wait)

    def oracle_stall(job: Job) -> float:
        heard = max(job.audio.seconds, WINDOW_SECONDS) if isinstance(job, Transcribe) else 0.0
        return config.stall_seconds + ORACLE_STALL_FOR_EACH_SECOND * heard

    return Workers(
        media=pool("media", media, processes=config.media_workers, stall=lambda _: config.stall_seconds),
        live=pool(
            "live",
            msgspec.structs.replace(media, capacity=LIVE_CAPACITY),
            processes=config.live_media_workers,
            queue_limit=config.queue_limit + config.max_sessions,
            stall=lambda _: config.stall_seconds,
        ),
        whisper=pool(
            "whisper",
            whisper,
            processes=config.whisper_workers,
            stall=lambda _: config.stall_seconds + STEP_STALL_S,
        ),
        oracle=pool("oracle", oracle, processes=1, stall=oracle_stall, timing=Timing(idle_end=config.faithful_idle_s)),
        llm=_llm(config),
    )


def _llm(config: Config) -> Worker | None:
    """One process: conversations share its batch and its prompt cache."""
    if not config.llm_model:
        return None
    settings = LlmSettings(
        config.llm_model,
        config.data_dir,
        offline=config.offline,
        cache_bytes=config.llm_cache_bytes,
        trace=config.trace,
        trace_text=config.trace_text,
    )
    return Pool(
        "llm",
        settings,
        processes=1,
        queue_limit=config.queue_limit,
        start_wait=config.start_wait,
        stall=lambda _: config.stall_seconds,
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
