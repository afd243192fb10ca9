"""GET /health, /ready and /stats: whether the house stands, whether it can serve, and what it is doing."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import Failure, WorkerStarting
from protocol.events import Loading
from service import errors
from service.house import House
from service.worker import Worker


class Readiness(msgspec.Struct, frozen=True):
    """One pool's line of `/ready`."""

    name: str
    ready: bool
    reason: str | None
    loading: Loading | None


async def health(house: House, request: Request) -> Response:
    return _json({"status": "ok"})


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
        return _json({"status": "ready", "workers": lines})
    status = "starting" if isinstance(worst, WorkerStarting) else "unavailable"
    return errors.response(worst, {"status": status, "workers": lines})


def _unready(worker: Worker) -> Failure | None:
    if worker.failure:
        return worker.failure
    if any(process.state == "ready" for process in worker.stats()):
        return None
    doing = f": {worker.loading.message}" if worker.loading and worker.loading.message else ""
    return WorkerStarting(f"the {worker.name} worker is starting{doing}")


async def stats(house: House, request: Request) -> Response:
    whisper = house.workers.whisper.ready
    llm = house.workers.llm.ready if house.workers.llm else None
    lines = [process for worker in house.workers for process in worker.stats()]
    usage = await asyncio.to_thread(house.spool.usage)
    recorded = await asyncio.to_thread(house.sessions.usage)
    return _json(
        {
            "workers": lines,
            "queue": {
                "limit": house.config.queue_limit,
                "queued": sum(line.queued for line in lines),
                "running": sum(line.running for line in lines),
            },
            "backend": whisper.backend if whisper else None,
            "blas": whisper.backend.blas if whisper else None,
            "model": whisper.model if whisper else None,
            "llm": llm.model if llm else None,
            "spool": usage,
            "sessions": {**house.sessions.counts(), "limit": house.config.max_sessions, "bytes": recorded},
        }
    )


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
