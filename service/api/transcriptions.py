"""POST /v1/audio/transcriptions and /v1/audio/translations: one recording in, its text out.

Knows the order of the work; what a field means is said in requests, how a text is written in transcripts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import EmptyAudio
from protocol.jobs import Decode, Pcm, Task, Transcribe
from service import forms, reply, requests, transcripts, upload
from service.house import House, Workers
from service.requests import TranscriptRequest
from service.transcripts import Transcript


async def transcriptions(house: House, request: Request) -> Response:
    return await _answer(house, request, "transcribe")


async def translations(house: House, request: Request) -> Response:
    return await _answer(house, request, "translate")


async def _answer(house: House, request: Request, task: Task) -> Response:
    config = house.config
    limits = upload.Limits(
        multipart_bytes=config.max_upload_bytes, json_bytes=config.max_json_bytes, idle_s=config.upload_idle_s
    )
    with ExitStack() as files:
        received = files.enter_context(house.spool.upload(limits.multipart_bytes))
        given = await upload.read(request, received, limits)
        began = time.perf_counter()
        wanted, ignored = requests.parse(given)
        model = await asyncio.to_thread(house.catalog.resolve, wanted.model)
        _check_servable(house.workers, wanted, task)
        if received.size == 0:
            raise EmptyAudio("the file is empty: it has no bytes", param="file")
        pcm = files.enter_context(house.spool.pcm())
        work = _transcribe(house.workers, received.path, pcm, wanted, task, model, began)
        transcript = await reply.unless_gone(request, work)
    form = transcripts.FORMATS[wanted.response_format]
    return Response(form.write(transcript), headers=_headers(transcript, ignored), media_type=form.media_type)


def _check_servable(workers: Workers, wanted: TranscriptRequest, task: Task) -> None:
    """Refuse at once what would be refused after minutes of decoding.

    Raises the workers' own failure, and what `check_model` does once the model is known; a model that still
    loads refuses in its worker.
    """
    for worker in workers:
        if failure := worker.failure:
            raise type(failure)(failure.message, param=failure.param, retry=failure.retry)
    if workers.whisper.ready and workers.whisper.ready.model:
        requests.check_model(wanted, task, workers.whisper.ready.model)


async def _transcribe(
    workers: Workers, source: Path, pcm: Path, wanted: TranscriptRequest, task: Task, model: str, began: float
) -> Transcript:
    """`began`: perf_counter at the end of the upload."""
    audio = await reply.decoded(workers.media, Decode(source=str(source), target=str(pcm)))
    if audio.samples == 0:
        raise EmptyAudio("the file holds no audio: it has no samples", param="file")
    span = Pcm(str(pcm), 0, audio.samples)
    segments, heard = await reply.transcribed(workers.whisper, Transcribe(span, task, wanted.decoding))
    return Transcript(
        task=task,
        segments=transcripts.ordered(segments, span.seconds),
        meta=transcripts.Meta(
            model=model,
            language=heard.language,
            language_probability=heard.language_probability,
            duration=span.seconds,
            timings=transcripts.spent(time.perf_counter() - began, audio.elapsed_ms, heard.timings, span.seconds),
        ),
    )


def _headers(transcript: Transcript, ignored: list[str]) -> Mapping[str, str]:
    meta = transcript.meta
    headers = {
        "x-starling-model": quote(meta.model, safe="/: "),
        "x-starling-language": meta.language,
        "x-starling-duration": str(meta.duration),
        "x-starling-timings": msgspec.json.encode(meta.timings).decode(),
        "x-starling-ignored": forms.ignored_header(ignored),
    }
    return {name: value for name, value in headers.items() if value is not None}
