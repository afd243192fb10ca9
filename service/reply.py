"""Waiting for workers on behalf of a client: events are collected, and a client that leaves cancels the work.

Knows events and ASGI's disconnect; knows no route and no format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, TypeVar, assert_never

from starlette.requests import Request

from protocol.errors import InternalError, RequestCancelled
from protocol.events import Decoded, Event, Failed, Progress, Segment, Transcribed
from protocol.jobs import Decode, Transcribe
from service.worker import Worker

T = TypeVar("T")


async def decoded(media: Worker, job: Decode) -> Decoded:
    """Run the job to its end. Raises the worker's refusals."""
    end: Decoded | None = None
    async with aclosing(media.run(job)) as events:
        async for event in events:
            match event:
                case Progress():
                    pass
                case Decoded():
                    end = event
                case Segment() | Transcribed() | Failed():
                    raise _out_of_place(event)
                case _:
                    assert_never(event)
    return _ended(end)


async def transcribed(whisper: Worker, job: Transcribe) -> tuple[list[Segment], Transcribed]:
    """As `decoded`; the segments in the order in which they came."""
    segments: list[Segment] = []
    end: Transcribed | None = None
    async with aclosing(whisper.run(job)) as events:
        async for event in events:
            match event:
                case Progress():
                    pass
                case Segment():
                    segments.append(event)
                case Transcribed():
                    end = event
                case Decoded() | Failed():
                    raise _out_of_place(event)
                case _:
                    assert_never(event)
    return segments, _ended(end)


def _out_of_place(event: Event) -> InternalError:
    return InternalError(f"the worker answered with {type(event).__name__}, which does not belong to the job")


def _ended(end: T | None) -> T:
    if end is None:
        raise InternalError("the worker stopped answering before the end of the job")
    return end


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. The server does not cancel a handler whose client leaves: here it loses a race instead.

    The request's body must have been read. Raises RequestCancelled when the client left first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestCancelled("the client left before its answer was there")
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
