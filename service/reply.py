"""Waiting for workers on behalf of a client: doubts are settled, and a client that leaves cancels the work.

Knows events and ASGI's disconnect; knows no route and no format.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, assert_never

import msgspec
from starlette.requests import Request
from starlette.types import Message

from protocol.errors import Failure, InternalError
from protocol.events import (
    ChoiceEnded,
    Counted,
    Decoded,
    Delta,
    Doubt,
    Embedded,
    Event,
    Failed,
    Followed,
    Generated,
    Guessed,
    Mounted,
    Progress,
    Segment,
    Speech,
    Started,
    Transcribed,
    Vectors,
)
from protocol.jobs import (
    Chat,
    Complete,
    CountTokens,
    Decode,
    DetectSpeech,
    Embed,
    Follow,
    Guess,
    Heard,
    Job,
    ListAdapters,
    MountAdapter,
    Pcm,
    Transcribe,
    UnmountAdapter,
)
from protocol.settings import SAMPLE_RATE
from service.closing import departure
from service.worker import Worker

T = TypeVar("T", bound=Event)
R = TypeVar("R")

log = logging.getLogger("starling.reply")

JOBS_AT_ONCE = 8
"""Of one request: enough to fill a batch, and it leaves others' jobs their room."""


@dataclass(frozen=True)
class Ended:
    """The end of a transcription, and the milliseconds that looking for speech took."""

    transcribed: Transcribed
    vad_ms: float


async def decoded(media: Worker, job: Decode) -> Decoded:
    """Run the job to its end. Raises the worker's refusals."""
    return await _last(media, job, Decoded)


async def spoken(media: Worker, job: DetectSpeech) -> Speech:
    """As `decoded`."""
    return await _last(media, job, Speech)


async def followed(media: Worker, job: Follow) -> Followed:
    """As `decoded`."""
    return await _last(media, job, Followed)


async def guessed(whisper: Worker, job: Guess) -> Guessed:
    """As `decoded`."""
    return await _last(whisper, job, Guessed)


async def counted(llm: Worker, job: CountTokens) -> Counted:
    """As `decoded`."""
    return await _last(llm, job, Counted)


async def mounted(llm: Worker, job: MountAdapter | UnmountAdapter | ListAdapters) -> Mounted:
    """As `decoded`."""
    return await _last(llm, job, Mounted)


Hear = Callable[[DetectSpeech], Awaitable[Speech]]


async def transcribing(
    whisper: Worker, media: Worker, job: Transcribe, hear: Hear | None = None
) -> AsyncGenerator[Progress | Segment | Ended, None]:
    """What the worker says, to its end; `media`, or `hear`, answers its doubts. Raises its refusals."""
    hear = hear or partial(spoken, media)
    vad_ms = 0.0
    heard: Heard | None = None
    async with aclosing(whisper.run(job)) as events:
        while True:
            try:
                event = await events.asend(heard)
            except StopAsyncIteration:
                raise _cut_short() from None
            heard = None
            match event:
                case Progress() | Segment():
                    yield event
                case Doubt():
                    heard, spent = await _settle(hear, job.audio, event)
                    vad_ms += spent
                case Transcribed():
                    yield Ended(event, vad_ms)
                    return
                case (
                    Decoded()
                    | Speech()
                    | Followed()
                    | Guessed()
                    | Started()
                    | Delta()
                    | ChoiceEnded()
                    | Generated()
                    | Counted()
                    | Mounted()
                    | Vectors()
                    | Embedded()
                    | Failed()
                ):
                    raise _out_of_place(event)
                case _:
                    assert_never(event)


Generating = Started | Delta | ChoiceEnded | Generated


async def generating(llm: Worker, jobs: Sequence[Chat | Complete]) -> AsyncGenerator[Generating, None]:
    """What the worker says about each job, to the end of all. Raises its refusals; the first ends everything.

    All jobs have as many choices; those of the second are counted on from those of the first. A few jobs run at once.
    """
    if len(jobs) == 1:
        async with aclosing(_generating(llm, jobs[0], 0)) as events:
            async for event in events:
                yield event
        return
    waiting = [_generating(llm, job, place * job.generation.n) for place, job in enumerate(jobs)]
    waiting.reverse()
    coming: dict[asyncio.Task[Generating], AsyncGenerator[Generating, None]] = {}
    try:
        while waiting or coming:
            while waiting and len(coming) < JOBS_AT_ONCE:
                events = waiting.pop()
                coming[asyncio.create_task(_next(events))] = events
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                events = coming.pop(task)
                if isinstance(failure := task.exception(), StopAsyncIteration):
                    continue
                if failure is not None:
                    raise failure
                coming[asyncio.create_task(_next(events))] = events
                yield task.result()
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for events in (*coming.values(), *waiting):
            await events.aclose()


async def _next(events: AsyncGenerator[Generating, None]) -> Generating:
    return await anext(events)


async def _generating(llm: Worker, job: Chat | Complete, base: int) -> AsyncGenerator[Generating, None]:
    """The events of one job, whose first choice is `base`."""
    async with aclosing(llm.run(job)) as events:
        async for event in events:
            match event:
                case Delta() | ChoiceEnded():
                    yield msgspec.structs.replace(event, choice=base + event.choice) if base else event
                case Started():
                    yield event
                case Generated():
                    yield event
                    return
                case Progress():
                    pass
                case (
                    Decoded()
                    | Speech()
                    | Followed()
                    | Guessed()
                    | Segment()
                    | Doubt()
                    | Transcribed()
                    | Counted()
                    | Mounted()
                    | Vectors()
                    | Embedded()
                    | Failed()
                ):
                    raise _out_of_place(event)
                case _:
                    assert_never(event)
    raise _cut_short()


async def embedded(worker: Worker, job: Embed) -> tuple[list[bytes], Embedded]:
    """The vectors of its inputs in their order (float32, little-endian), and the job's end. Raises the worker's
    refusals."""
    vectors = [b""] * len(job.inputs)
    async with aclosing(worker.run(job)) as events:
        async for event in events:
            if isinstance(event, Vectors):
                size = len(event.data) // len(event.places)
                for number, place in enumerate(event.places):
                    vectors[place] = event.data[number * size : (number + 1) * size]
            elif isinstance(event, Embedded):
                return vectors, event
            elif not isinstance(event, Progress):
                raise _out_of_place(event)
    raise _cut_short()


async def _settle(hear: Hear, audio: Pcm, doubt: Doubt) -> tuple[Heard, float]:
    """The answer to a doubt and the milliseconds it took. Nobody to ask: then there is speech, and no text is lost."""
    start = audio.start + math.floor(doubt.start * SAMPLE_RATE)
    stop = min(audio.start + math.ceil(doubt.end * SAMPLE_RATE), audio.stop)
    try:
        found = await hear(DetectSpeech(Pcm(audio.path, min(start, stop), stop)))
    except Failure as failure:
        log.warning("could not look for speech (%s): a doubtful window is kept", failure.message)
        return Heard(speech=True), 0.0
    return Heard(speech=bool(found.spans)), found.elapsed_ms


async def _last(worker: Worker, job: Job, kind: type[T]) -> T:
    """The job's terminal event, which must be a `kind`."""
    end: T | None = None
    async with aclosing(worker.run(job)) as events:
        async for event in events:
            if isinstance(event, kind):
                end = event
            elif not isinstance(event, Progress):
                raise _out_of_place(event)
    if end is None:
        raise _cut_short()
    return end


def _out_of_place(event: Event) -> InternalError:
    return InternalError(f"the worker answered with {type(event).__name__}, which does not belong to the job")


def _cut_short() -> InternalError:
    return InternalError("the worker stopped answering before the end of the job")


async def unless_gone(request: Request, work: Coroutine[Any, Any, R]) -> R:
    """The work's result. The server does not cancel a handler whose client leaves: here it loses a race instead.

    The request's body must have been read. Raises RequestCancelled when the client left first, ShuttingDown when the
    service ended first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise departure(watching.result(), "before its answer was there")
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(request: Request) -> Message:
    """The message that says so."""
    while (message := await request.receive())["type"] != "http.disconnect":
        pass
    return message
