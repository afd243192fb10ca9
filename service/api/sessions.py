"""/v1/audio/sessions: live dictation over HTTP.

Knows bodies, headers and streams; what a session is and does is said in service/dictation.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import EmptyAudio, Kind
from protocol.events import VocabularyReport
from protocol.jobs import Pcm, Transcribe
from service import client, forms, headers, reply, requests, transcripts, upload, written
from service.api.answers import as_json
from service.contract import BODY, FILE, KNOWN, MODEL, WORK, Contract, Outcome, Parameter, Sent, json, one_of
from service.contract import events as stream
from service.dictation import chunk as chunks
from service.dictation import request as session_requests
from service.dictation.chunk import Chunk
from service.dictation.request import SessionRequest
from service.dictation.session import Accepted, Session
from service.dictation.sessions import View
from service.dictation.written import EVENTS as TOLD
from service.dictation.written import ChunkTaken, SessionBegun, SessionList
from service.house import House
from service.sse import EventStream, Numbered
from service.ticket import again

_NUMBER = re.compile(r"[0-9]{1,15}")

SEQUENCE = "x-starling-seq"
LAST_EVENT = "last-event-id"
Ordinal = Annotated[int, Meta(ge=0, lt=10**15)]


GROUP = "Live dictation"
TRANSCRIPT = json(Annotated[Any, one_of(written.Json, written.VerboseJson)])
SESSION_FAILED = (Kind.UNKNOWN_SESSION, Kind.SESSION_FAILED, Kind.SHUTTING_DOWN)

CREATE = Contract(
    GROUP,
    (Outcome("it is open", (json(SessionBegun),), 201, headers=(*KNOWN, "location")),),
    failures=(
        *BODY,
        *MODEL,
        *WORK,
        Kind.UNSUPPORTED_VALUE,
        Kind.UNSUPPORTED_TASK,
        Kind.TOO_MANY_SESSIONS,
        Kind.DISK_FULL,
    ),
    body=(
        Sent(
            "application/json",
            SessionRequest,
            lenient=True,
            hidden=session_requests.HIDDEN,
            aliases=requests.ALIASES,
            about=requests.ABOUT,
            example={"partials": True},
        ),
    ),
    body_required=False,
)
LISTING = Contract(GROUP, (Outcome("all that are kept", (json(SessionList),)),))
STATE = Contract(GROUP, (Outcome("what it is at", (json(View),)),), failures=(Kind.UNKNOWN_SESSION,))
REMOVE = Contract(
    GROUP, (Outcome("nothing of it is left", status=204),), failures=(Kind.UNKNOWN_SESSION, Kind.SHUTTING_DOWN)
)
AUDIO = Contract(
    GROUP,
    (Outcome("it is on disk", (json(ChunkTaken),)),),
    failures=(
        *BODY,
        *WORK,
        *SESSION_FAILED,
        Kind.SESSION_FINISHING,
        Kind.SEQUENCE_GAP,
        Kind.UNDECODABLE_AUDIO,
        Kind.EMPTY_AUDIO,
        Kind.AUDIO_TOO_LONG,
        Kind.DISK_FULL,
    ),
    body=(
        # Without a container: float32, or what the type's parameters name.
        Sent("audio/pcm"),
        Sent("audio/l16"),
        # A complete file, of any type.
        Sent("application/octet-stream"),
        Sent("multipart/form-data", members={"file": FILE}, needs=("file",)),
    ),
    parameters=(Parameter(SEQUENCE, "header", Ordinal, "0, 1, 2 …: a number that was taken is not taken again."),),
)
EVENTS = Contract(
    GROUP,
    (
        Outcome("its events, from the first or from the one after Last-Event-ID", (stream(*TOLD),), headers=KNOWN),
        Outcome("they have all been told", status=204, headers=KNOWN),
    ),
    failures=(
        Kind.UNKNOWN_SESSION,
        Kind.INVALID_VALUE,
        Kind.PAYLOAD_TOO_LARGE,
        Kind.UNSUPPORTED_MEDIA_TYPE,
        Kind.REQUEST_TIMEOUT,
    ),
    parameters=(Parameter(LAST_EVENT, "header", Ordinal, "The id of the last event that was seen."),),
)
FINISH = Contract(
    GROUP,
    (
        Outcome(
            "the transcript",
            (TRANSCRIPT,),
            headers=("x-starling-model", "x-starling-language", "x-starling-duration", "x-starling-timings"),
        ),
    ),
    failures=(*WORK, *SESSION_FAILED, Kind.UNDECODABLE_AUDIO, Kind.DISK_FULL),
)


async def create(house: House, request: Request) -> Response:
    config = house.config
    given = await upload.read_fields(request, config.max_json_bytes, upload.Pace.of(config))
    wanted, ignored = session_requests.parse(given)
    model = await asyncio.to_thread(house.catalog.resolve, wanted.model)
    vocabulary = await reply.unless_gone(request, _fitted(house, wanted, model))
    begun = await house.sessions.create(wanted, model, vocabulary, client.name(request))
    where = {"location": f"{request.url.path}/{begun['id']}"}
    return as_json(begun, 201, headers.known(model, ignored) | where)


async def listing(house: House, request: Request) -> Response:
    return as_json({"object": "list", "data": house.sessions.views()})


async def state(house: House, request: Request) -> Response:
    return as_json(house.sessions.view(_id(request)))


async def audio(house: House, request: Request) -> Response:
    """Takes one chunk. Nothing of it is there before all of it has come."""
    id = _id(request)
    session = house.sessions.session(id)
    seq = _number(request, SEQUENCE)
    if seq is not None and (told := session.answered(seq)) is not None:
        # Whatever it holds this time: it was taken, and nothing about it can be wrong any more.
        await upload.skip(request, house.config.max_upload_bytes, upload.Pace.of(house.config))
        return as_json({"id": id, **msgspec.structs.asdict(told)})
    raw = chunks.raw_of(request.headers.get("content-type"))
    if raw is None:
        accepted = await _take_file(house, request, seq)
    else:
        body = await upload.read_bytes(request, chunks.MAX_RAW_BYTES, upload.Pace.of(house.config))
        accepted = await house.sessions.add(id, seq, Chunk(raw, bytes(body)))
    return as_json({"id": id, **msgspec.structs.asdict(accepted)})


async def events(house: House, request: Request) -> Response:
    # There is nothing in it; but from here on only the stream itself listens for the client's leaving.
    await upload.read_bytes(request, house.config.max_json_bytes, upload.Pace.of(house.config))
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


async def _fitted(house: House, wanted: SessionRequest, model: str) -> VocabularyReport | None:
    """What of the hint terms fits into the prompt, which only the model's tokenizer knows. None without terms.

    Raises what would be refused once there is speech: a worker that cannot serve, a language that the model does not
    know. A model that still loads is waited for only if the request depends on it.
    """
    live, whisper = house.workers.live, house.workers.writer(model)
    for worker in (live, whisper):
        if worker.failure:
            raise again(worker.failure)
    # Somebody is about to speak.
    whisper.touch(wake=True)
    ready = whisper.ready
    if ready and ready.model:
        requests.check_model(wanted, wanted.task, ready.model)
    depends = bool(wanted.vocabulary or wanted.language or wanted.languages or wanted.task == "translate")
    if not depends or (ready and not wanted.vocabulary):
        return None
    with house.spool.pcm() as nothing:
        job = Transcribe(Pcm(str(nothing), 0, 0), wanted.task, wanted.decoding, urgent=True)
        async with aclosing(reply.transcribing(whisper, live, job)) as told:
            async for event in told:
                if isinstance(event, reply.Ended) and (fitted := event.transcribed.vocabulary):
                    return msgspec.structs.replace(fitted, given=len(wanted.vocabulary))
    return None


async def _take_file(house: House, request: Request, seq: int | None) -> Accepted:
    """A complete encoded file, by way of the spool: it may be large."""
    limit, pace = house.config.max_upload_bytes, upload.Pace.of(house.config)
    with house.spool.upload(limit) as received:
        await upload.read_file(request, received, limit, pace)
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
