"""GET /health, /ready and /stats: whether the house stands, whether it can serve, and what it is doing."""

from __future__ import annotations

import asyncio
from typing import Literal, TypedDict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import Failure, Kind, WorkerStarting
from protocol.events import Backend, Loading, Model
from service import errors
from service.api.answers import as_json
from service.contract import HINTS, Contract, Outcome, json, text
from service.house import House
from service.metrics import CONTENT_TYPE, Now
from service.spool import Usage
from service.worker import ProcessStats, Worker


class Readiness(msgspec.Struct, frozen=True):
    """One pool's line of `/ready`."""

    name: str
    ready: bool
    reason: str | None
    loading: Loading | None


class Health(TypedDict):
    status: Literal["ok"]


class Ready(TypedDict):
    status: Literal["ready"]
    workers: list[Readiness]


class Unready(TypedDict):
    error: errors.Error
    status: Literal["starting", "unavailable"]
    workers: list[Readiness]


class Queue(TypedDict):
    """Of all pools together; `limit` is each pool's."""

    limit: int
    queued: int
    running: int


class Dictations(TypedDict):
    """How many are in which state, and the bytes of all."""

    open: int
    finishing: int
    finished: int
    failed: int
    limit: int
    bytes: int


class Memory(TypedDict):
    """What all workers take together, and what they may (null: no limit)."""

    rss_bytes: int
    limit: int | None


class Loaded(TypedDict):
    """`resident`: its weights are in memory now."""

    id: str
    resident: bool


class PromptCache(TypedDict):
    """Of a language model's pool, after its last answer."""

    pool: str
    entries: int
    bytes: int
    limit_bytes: int


class Stats(TypedDict):
    """`backend`: what the speech model computes with; `blas`: the library, where MLX needs one."""

    workers: list[ProcessStats]
    queue: Queue
    memory: Memory
    backend: Backend | None
    blas: str | None
    model: Model | None
    llm: Model | None
    models: list[Loaded]
    caches: list[PromptCache]
    spool: Usage
    sessions: Dictations


GROUP = "Operations"
HEALTH = Contract(GROUP, (Outcome("it listens", (json(Health),)),), needs_key=False)
READY = Contract(
    GROUP,
    (
        Outcome("every worker can serve", (json(Ready),)),
        Outcome("not yet, or not at all", (json(Unready),), 503, headers=HINTS),
    ),
    failures=(Kind.WORKER_STARTING, Kind.WORKER_CRASHED, Kind.MODEL_NOT_CONFIGURED, Kind.SHUTTING_DOWN),
)
METRICS = Contract(GROUP, (Outcome("Prometheus's text format", (text("text/plain"),)),))
STATS = Contract(GROUP, (Outcome("what it is doing", (json(Stats),)),))


async def health(house: House, request: Request) -> Response:
    body: Health = {"status": "ok"}
    return as_json(body)


async def ready(house: House, request: Request) -> Response:
    """503 until every resident pool can serve, in the shape of an error, with the progress of what still loads."""
    lines = []
    worst: Failure | None = None
    for worker in house.workers.resident:
        failure = _unready(worker)
        lines.append(Readiness(worker.name, failure is None, failure.message if failure else None, worker.loading))
        if worst is None or isinstance(worst, WorkerStarting):
            worst = failure or worst
    if worst is None:
        return as_json({"status": "ready", "workers": lines})
    status = "starting" if isinstance(worst, WorkerStarting) else "unavailable"
    return errors.response(worst, {"status": status, "workers": lines})


def _unready(worker: Worker) -> Failure | None:
    if worker.failure:
        return worker.failure
    if worker.able:
        return None
    doing = f": {worker.loading.message}" if worker.loading and worker.loading.message else ""
    return WorkerStarting(f"the {worker.name} worker is starting{doing}")


async def stats(house: House, request: Request) -> Response:
    whisper = house.workers.whisper.ready
    llm = house.workers.llm.ready if house.workers.llm else None
    lines = [process for worker in house.workers for process in worker.stats()]
    usage = await asyncio.to_thread(house.spool.usage)
    recorded = await asyncio.to_thread(house.sessions.usage)
    sessions = house.sessions.counts()
    body: Stats = {
        "workers": lines,
        "queue": {
            "limit": house.config.queue_limit,
            "queued": sum(line.queued for line in lines),
            "running": sum(line.running for line in lines),
        },
        "memory": {
            "rss_bytes": sum(line.rss_bytes for line in lines),
            "limit": house.config.memory_limit or None,
        },
        "backend": whisper.backend if whisper else None,
        "blas": whisper.backend.blas if whisper else None,
        "model": whisper.model if whisper else None,
        "llm": llm.model if llm else None,
        "models": [{"id": id, "resident": known.resident} for id, known in house.workers.loaded.items()],
        "caches": [
            {"pool": pool, "entries": kept.entries, "bytes": kept.bytes, "limit_bytes": house.config.llm_cache_bytes}
            for pool, kept in house.metrics.kept.items()
        ],
        "spool": usage,
        "sessions": {
            "open": sessions["open"],
            "finishing": sessions["finishing"],
            "finished": sessions["finished"],
            "failed": sessions["failed"],
            "limit": house.config.max_sessions,
            "bytes": recorded,
        },
    }
    return as_json(body)


async def metrics(house: House, request: Request) -> Response:
    now = Now(
        processes=[process for worker in house.workers for process in worker.stats()],
        sessions=house.sessions.counts(),
        session_bytes=await asyncio.to_thread(house.sessions.usage),
        spool_bytes=(await asyncio.to_thread(house.spool.usage)).bytes,
        spooled_bytes=house.spool.received,
        kept=dict(house.metrics.kept),
    )
    return Response(house.metrics.text(now), media_type=CONTENT_TYPE)
