"""POST /v1/audio/transcriptions and /v1/audio/translations: one recording in, its text out.

Knows the order of the work; what a field means is said in requests, how a text is written in transcripts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, assert_never

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import EmptyAudio, Kind
from protocol.events import Decoded, Progress, Segment, Timings, Transcribed
from protocol.jobs import Decode, DetectSpeech, Pcm, Span, Task, Transcribe
from protocol.settings import SAMPLE_RATE
from service import gate, headers, loudness, reply, requests, transcripts, upload, written
from service.contract import BODY, FILE, KNOWN, MODEL, WORK, Contract, Outcome, Sent, events, json, one_of, text
from service.house import House, Workers
from service.requests import TranscriptRequest
from service.sse import EventStream
from service.ticket import again
from service.transcripts import Transcript
from service.worker import Worker

ENCODED = {"type": "string", "contentEncoding": "base64", "description": "the recording, in base64 or as a data: URL"}
FORM = Sent(
    "multipart/form-data",
    TranscriptRequest,
    lenient=True,
    hidden=(*requests.OURS, *requests.NOT_YET),
    members={"file": {**FILE, "description": "the recording: any format, whatever its name"}},
    aliases=requests.ALIASES,
    about=requests.ABOUT,
    needs=("file",),
    example={"file": "@recording.wav", "response_format": "json"},
)
JSON = replace(
    FORM,
    media_type="application/json",
    members={
        "file": ENCODED,
        "input_audio": {"type": "object", "properties": {"data": ENCODED}, "description": "looked at next"},
        "audio": {**ENCODED, "description": "looked at last"},
    },
    needs=("file", "input_audio", "audio"),
    example=None,
)
TEXTS = tuple(
    text(format.media_type.partition(";")[0]) for name, format in transcripts.FORMATS.items() if "json" not in name
)
WHOLE = json(Annotated[Any, one_of(written.Json, written.VerboseJson)])
MEASURED = ("x-starling-model", "x-starling-language", "x-starling-duration", "x-starling-timings")

CONTRACT = Contract(
    "Speech to text",
    (
        Outcome(
            "the text, in the format that was asked for",
            (WHOLE, *TEXTS, events(*written.EVENTS)),
            headers=(*KNOWN, *MEASURED[1:]),
        ),
    ),
    failures=(
        *BODY,
        *MODEL,
        *WORK,
        Kind.UNSUPPORTED_VALUE,
        Kind.UNSUPPORTED_TASK,
        Kind.UNDECODABLE_AUDIO,
        Kind.EMPTY_AUDIO,
        Kind.AUDIO_TOO_LONG,
        Kind.DISK_FULL,
    ),
    body=(FORM, JSON),
)


async def transcriptions(house: House, request: Request) -> Response:
    return await _answer(house, request, "transcribe")


async def translations(house: House, request: Request) -> Response:
    return await _answer(house, request, "translate")


@dataclass(frozen=True)
class _Asked:
    """One request, its upload complete."""

    task: Task
    wanted: TranscriptRequest
    model: str
    source: Path
    pcm: Path
    began: float
    """perf_counter at the end of the upload."""


async def _answer(house: House, request: Request, task: Task) -> Response:
    config = house.config
    limits = upload.Limits(
        multipart_bytes=config.max_upload_bytes, json_bytes=config.max_json_bytes, pace=upload.Pace.of(config)
    )
    with ExitStack() as files:
        files.enter_context(house.uploads.entered(_room(house)))
        received = files.enter_context(house.spool.upload(limits.multipart_bytes))
        given = await upload.read(request, received, limits)
        began = time.perf_counter()
        wanted, ignored = requests.parse(given)
        model = await asyncio.to_thread(house.catalog.resolve, wanted.model)
        speech = _servable(house.workers, model, wanted, task)
        if received.size == 0:
            raise EmptyAudio("the file is empty: it has no bytes", param="file")
        pcm = files.enter_context(house.spool.pcm())
        asked = _Asked(task, wanted, model, received.path, pcm, began)
        events = _transcribing(house.workers.media, speech, asked)
        known = headers.known(model, ignored)
        if wanted.stream:
            told = _told(events, wanted.response_format)
            first = await reply.unless_gone(request, _first(told))
            return EventStream(
                first, told, files.pop_all(), known, keepalive_s=config.keepalive_s, unread_s=config.unread_s
            )
        transcript = await reply.unless_gone(request, _collected(events))
    form = transcripts.FORMATS[wanted.response_format]
    return Response(form.write(transcript), headers=known | headers.measured(transcript), media_type=form.media_type)


def _room(house: House) -> int:
    """As many as the queue holds, and those that the default model works on beside it."""
    ready = house.workers.whisper.ready
    return house.config.queue_limit + (ready.capacity * house.config.whisper_workers if ready else 0)


def _servable(workers: Workers, model: str, wanted: TranscriptRequest, task: Task) -> Worker:
    """The speech worker for it. Refuses at once what would be refused after minutes of decoding.

    Raises the workers' own failure, and what `check_model` does once the model is known; a model that still
    loads refuses in its worker.
    """
    pair = workers.speech[model]
    speech = pair.oracle if wanted.faithful else pair.whisper
    for worker in (workers.media, speech):
        if worker.failure:
            raise again(worker.failure)
    if (ready := speech.ready or pair.whisper.ready) and ready.model:
        requests.check_model(wanted, task, ready.model)
    return speech


@dataclass(frozen=True)
class _Gated:
    """What a look for speech came to."""

    speech: tuple[Span, ...]
    spans: tuple[Span, ...]
    """What is to be heard of the recording."""
    elapsed_ms: float


async def _gated(media: Worker, wanted: TranscriptRequest, audio: Pcm) -> _Gated:
    """Look for speech. Raises the worker's refusals."""
    job = DetectSpeech(audio, wanted.speech_threshold, wanted.vad_min_speech_ms)
    found = await reply.spoken(media, job)
    samples = audio.stop - audio.start
    if cut := wanted.server_vad:
        quietest = partial(loudness.quietest, audio.path)
        spans = await asyncio.to_thread(gate.pieces, found.spans, samples, cut.cutting, quietest)
    else:
        spans = (gate.trimmed if wanted.vad_trim else gate.heard)(found.spans, samples)
    return _Gated(found.spans, spans, found.elapsed_ms)


async def _transcribing(
    media: Worker, speech: Worker, asked: _Asked
) -> AsyncGenerator[Progress | Segment | Transcript, None]:
    """What is known of the recording, as soon as it is final; at last the transcript."""
    wanted = asked.wanted
    audio = await reply.decoded(media, Decode(source=str(asked.source), target=str(asked.pcm)))
    if audio.samples == 0:
        raise EmptyAudio("the file holds no audio: it has no samples", param="file")
    span = Pcm(str(asked.pcm), 0, audio.samples)
    gated = await _gated(media, wanted, span) if wanted.listens else None
    if gated is not None and not gated.spans:
        yield _transcript(asked, audio, gated, (), reply.Ended(_unheard(wanted), 0.0))
        return
    timeline, segments = transcripts.Timeline(span.seconds), list[Segment]()
    job = Transcribe(
        span,
        asked.task,
        wanted.decoding,
        spans=gated.spans if gated else None,
        independent=wanted.server_vad is not None,
        speech=gated.speech if gated else None,
    )
    async with aclosing(reply.transcribing(speech, media, job)) as events:
        async for event in events:
            match event:
                case Progress():
                    yield event
                case Segment():
                    segments.append(timeline.settle(event))
                    yield segments[-1]
                case reply.Ended():
                    yield _transcript(asked, audio, gated, segments, event)
                case _:
                    assert_never(event)


def _unheard(wanted: TranscriptRequest) -> Transcribed:
    """What the speech worker would say of a recording in which nobody speaks."""
    return Transcribed(wanted.language, None, Timings())


def _transcript(
    asked: _Asked, audio: Decoded, gated: _Gated | None, segments: Iterable[Segment], ended: reply.Ended
) -> Transcript:
    heard, decoding = ended.transcribed, asked.wanted.decoding
    duration = audio.samples / SAMPLE_RATE
    total_s = time.perf_counter() - asked.began
    vad_ms = ended.vad_ms + (gated.elapsed_ms if gated else 0.0)
    fitted = heard.vocabulary
    return Transcript(
        task=asked.task,
        segments=tuple(segments),
        words=decoding.words,
        logprobs=decoding.logprobs,
        meta=transcripts.Meta(
            model=asked.model,
            language=heard.language,
            language_probability=heard.language_probability,
            duration=duration,
            timings=transcripts.spent(total_s, audio.elapsed_ms, vad_ms, heard.timings, duration),
            # Not all that a client gave is handed on to the worker.
            vocabulary=fitted and msgspec.structs.replace(fitted, given=len(asked.wanted.vocabulary)),
            vad=transcripts.Vad.of(gated.spans) if gated else None,
        ),
    )


async def _collected(events: AsyncGenerator[Progress | Segment | Transcript, None]) -> Transcript:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Transcript):
                return event
    raise AssertionError("a transcription ends with a transcript or a failure")


async def _told(
    events: AsyncGenerator[Progress | Segment | Transcript, None], response_format: str
) -> AsyncGenerator[Mapping[str, Any], None]:
    """The stream's events."""
    deltas = transcripts.Deltas()
    async with aclosing(events):
        async for event in events:
            match event:
                case Progress():
                    yield transcripts.progress(event)
                case Segment():
                    if delta := deltas.add(event):
                        yield delta
                case Transcript():
                    yield transcripts.done(event, response_format)
                case _:
                    assert_never(event)


async def _first(told: AsyncGenerator[Mapping[str, Any], None]) -> Mapping[str, Any]:
    return await anext(told)
