"""/v1/audio/sessions: live dictation over HTTP.

Knows bodies, headers and streams; what a session is and does is said in service/dictation.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import EmptyAudio
from protocol.events import VocabularyReport
from protocol.jobs import Pcm, Transcribe
from service import forms, headers, reply, requests, transcripts, upload
from service.dictation import chunk as chunks
from service.dictation import request as session_requests
from service.dictation.chunk import Chunk
from service.dictation.request import SessionRequest
from service.dictation.session import Accepted, Session
from service.house import House
from service.sse import EventStream, Numbered
from service.ticket import again

_NUMBER = re.compile(r"[0-9]{1,15}")

SEQUENCE = "x-starling-seq"
LAST_EVENT = "last-event-id"


async def create(house: House, request: Request) -> Response:
    config = house.config
    given = await upload.read_fields(request, config.max_json_bytes, config.upload_idle_s)
    wanted, ignored = session_requests.parse(given)
    model = await asyncio.to_thread(house.catalog.resolve, wanted.model)
    vocabulary = await reply.unless_gone(request, _fitted(house, wanted))
    begun = await house.sessions.create(wanted, model, vocabulary)
    where = {"location": f"{request.url.path}/{begun['id']}"}
    return _json(begun, 201, headers.known(model, ignored) | where)


async def listing(house: House, request: Request) -> Response:
    return _json({"object": "list", "data": house.sessions.views()})


async def state(house: House, request: Request) -> Response:
    return _json(house.sessions.view(_id(request)))


async def audio(house: House, request: Request) -> Response:
    """Takes one chunk. Nothing of it is there before all of it has come."""
    id = _id(request)
    session = house.sessions.session(id)
    seq = _number(request, SEQUENCE)
    if seq is not None and (told := session.answered(seq)) is not None:
        # Whatever it holds this time: it was taken, and nothing about it can be wrong any more.
        await upload.skip(request, house.config.max_upload_bytes, house.config.upload_idle_s)
        return _json({"id": id, **msgspec.structs.asdict(told)})
    raw = chunks.raw_of(request.headers.get("content-type"))
    if raw is None:
        accepted = await _take_file(house, request, seq)
    else:
        body = await upload.read_bytes(request, chunks.MAX_RAW_BYTES, house.config.upload_idle_s)
        accepted = await house.sessions.add(id, seq, Chunk(raw, bytes(body)))
    return _json({"id": id, **msgspec.structs.asdict(accepted)})


async def events(house: House, request: Request) -> Response:
    # There is nothing in it; but from here on only the stream itself listens for the client's leaving.
    await upload.read_bytes(request, house.config.max_json_bytes, house.config.upload_idle_s)
    session = house.sessions.session(_id(request))
    after = _number(request, LAST_EVENT)
    known = headers.known(session.model)
    if after is not None and after >= session.last_event and session.state in ("finished", "failed"):
        # There is nothing left to tell, and a browser that is answered so does not come back for more.
        return Response(status_code=204, headers=known)
    if request.method == "HEAD":
        return Response(headers=known, media_type="text/event-stream")
    return EventStream(
        None,
        _numbered(session, after),
        ExitStack(),
        known,
        keepalive_s=house.config.keepalive_s,
        unread_s=house.config.unread_s,
    )


async def finish(house: House, request: Request) -> Response:
    """Waits for the whole transcript. A client that leaves meanwhile finds it later."""
    id = _id(request)
    form = transcripts.FORMATS[house.sessions.session(id).spec.response_format]
    transcript = await reply.unless_gone(request, house.sessions.finish(id))
    told = headers.known(transcript.meta.model) | headers.measured(transcript)
    return Response(form.write(transcript), headers=told, media_type=form.media_type)


async def remove(house: House, request: Request) -> Response:
    await house.sessions.remove(_id(request))
    return Response(status_code=204)


async def _fitted(house: House, wanted: SessionRequest) -> VocabularyReport | None:
    """What of the hint terms fits into the prompt, which only the model's tokenizer knows. None without terms.

    Raises what would be refused once there is speech: a worker that cannot serve, a language that the model does not
    know. A model that still loads is waited for only if the request depends on it.
    """
    workers = house.workers
    for worker in (workers.live, workers.whisper):
        if worker.failure:
            raise again(worker.failure)
    ready = workers.whisper.ready
    if ready and ready.model:
        requests.check_model(wanted, wanted.task, ready.model)
    depends = bool(wanted.vocabulary or wanted.language or wanted.languages or wanted.task == "translate")
    if not depends or (ready and not wanted.vocabulary):
        return None
    with house.spool.pcm() as nothing:
        job = Transcribe(Pcm(str(nothing), 0, 0), wanted.task, wanted.decoding, urgent=True)
        async with aclosing(reply.transcribing(workers.whisper, workers.live, job)) as told:
            async for event in told:
                if isinstance(event, reply.Ended) and (fitted := event.transcribed.vocabulary):
                    return msgspec.structs.replace(fitted, given=len(wanted.vocabulary))
    return None


async def _take_file(house: House, request: Request, seq: int | None) -> Accepted:
    """A complete encoded file, by way of the spool: it may be large."""
    limit, idle_s = house.config.max_upload_bytes, house.config.upload_idle_s
    with house.spool.upload(limit) as received:
        await upload.read_file(request, received, limit, idle_s)
        if received.size == 0:
            raise EmptyAudio("the chunk is empty: a complete encoded file is expected, or name raw audio's type")
        adding = house.sessions.add(_id(request), seq, Chunk(None, path=received.path))
        return await reply.unless_gone(request, adding)


async def _numbered(session: Session, after: int | None) -> AsyncGenerator[Numbered, None]:
    async with aclosing(session.events(after)) as told:
        async for id, message in told:
            yield Numbered(id, message)


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    return id


def _number(request: Request, name: str) -> int | None:
    """A header that counts, None where it is not there or empty. Raises InvalidValue."""
    text = headers.only(request.headers, name).strip()
    if text and not _NUMBER.fullmatch(text):
        raise forms.wrong(name, text, "a whole number from 0")
    return int(text) if text else None


def _json(value: object, status: int = 200, told: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, told, media_type="application/json")
