"""POST /admin/transcription/unload and /admin/llm/unload: the memory of models back to the system.

Knows the order of the work; how a process ends and comes back is said in service/supervision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from service import forms, headers, memory, upload
from service.api.answers import as_json
from service.catalog import absent
from service.contract import BODY, MODEL, Contract, Outcome, Sent, json
from service.house import House
from service.worker import ProcessStats, Worker


class UnloadRequest(msgspec.Struct, frozen=True):
    model: str = ""
    """Id or alias; empty: every model of the kind."""


class Unloaded(msgspec.Struct, frozen=True):
    """What became of one model. `freed_bytes`: what its processes took."""

    id: str
    unloaded: bool
    reason: str | None
    """Why it was not."""
    freed_bytes: int


class Unloading(TypedDict):
    """`unloaded`: whether any model left memory; `reason`: why none did; `workers`: their processes, afterwards."""

    unloaded: bool
    reason: str | None
    freed_bytes: int
    models: list[Unloaded]
    workers: list[ProcessStats]


UNLOAD = Contract(
    "Operations",
    (Outcome("what has left memory, and what has not", (json(Unloading),), headers=(headers.IGNORED,)),),
    failures=(*BODY, *MODEL),
    body=(Sent("application/json", UnloadRequest, lenient=True, example={"model": "whisper-base"}),),
    body_required=False,
)


async def transcription(house: House, request: Request) -> Response:
    pools = {id: (pair.whisper, pair.oracle) for id, pair in house.workers.speech.items()}
    return await _unload(house, request, "speech", pools, house.catalog.named_speech)


async def llm(house: House, request: Request) -> Response:
    pools = {id: (worker,) for id, worker in house.workers.language.items()}
    return await _unload(house, request, "language", pools, house.catalog.named_llm)


async def _unload(
    house: House,
    request: Request,
    kind: Literal["speech", "language"],
    pools: Mapping[str, Sequence[Worker]],
    named: Callable[[str], str | None],
) -> Response:
    """Raises ModelNotFound and WrongModelKind. Here no other model stands in for one that is not there."""
    given = await upload.read_fields(request, house.config.max_json_bytes, upload.Pace.of(house.config))
    wanted, ignored = forms.decode(UnloadRequest, given, {})
    ids = list(pools)
    if wanted.model:
        id = await asyncio.to_thread(named, wanted.model)
        if id is None:
            raise absent(kind, wanted.model, pools)
        ids = [id]
    models = [await _one(id, pools[id]) for id in ids]
    done = any(model.unloaded for model in models)
    body: Unloading = {
        "unloaded": done,
        "reason": None if done else models[0].reason if models else f"no {kind} model is configured",
        "freed_bytes": sum(model.freed_bytes for model in models),
        "models": models,
        "workers": [line for id in ids for worker in pools[id] for line in worker.stats()],
    }
    told = forms.ignored_header(ignored)
    return as_json(body, headers={headers.IGNORED: told} if told else None)


async def _one(id: str, pools: Sequence[Worker]) -> Unloaded:
    """All pools of a model, or none: one that has a job keeps the others."""
    if any(worker.busy for worker in pools):
        jobs = sum(worker.busy for worker in pools)
        return Unloaded(id, False, f"{jobs} of its jobs {'is' if jobs == 1 else 'are'} under way; try again later", 0)
    took = sum([await asyncio.to_thread(memory.rss_bytes, worker) for worker in pools])
    reasons = [await worker.unload() for worker in pools]
    if all(reasons):
        return Unloaded(id, False, reasons[0], 0)
    left = sum([await asyncio.to_thread(memory.rss_bytes, worker) for worker in pools])
    return Unloaded(id, True, None, max(0, took - left))
