"""Live dictation over HTTP, from the first byte to a session's removal, over workers that are scripts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ModelNotConfigured, UndecodableAudio
from protocol.jobs import Decode, Transcribe
from tests.asgi import FORM, JSON, asked, multipart, opened
from tests.dictated import pen, spoken, text
from tests.dictating import S16LE, URL, Dictating, dictating
from tests.scripted import WAV

pytestmark = pytest.mark.anyio

TALK = spoken(0.3, 1, 2, 1.0, 3, 0.3)
"""Two utterances in 2.8 s."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Dictating]:
    async with dictating(tmp_path) as made:
        yield made


# ------------------------------------------------------------------------------------------------------- creating


@pytest.mark.parametrize(
    ("headers", "body"), [({}, b""), (JSON, b""), (JSON, b"{}"), ({"content-type": "text/x"}, b"")]
)
async def test_a_session_needs_no_wishes(service: Dictating, headers: dict[str, str], body: bytes) -> None:
    now = time.time()
    reply = await service.ask("POST", "", headers, body)
    begun = reply.json
    assert reply.status == 201
    assert set(begun) == {"id", "model", "state", "expires_at", "vocabulary"}
    assert (begun["model"], begun["state"], begun["vocabulary"]) == ("whisper-base", "open", None)
    assert now + 599 <= begun["expires_at"] <= now + 602
    assert reply.headers["location"] == f"{URL}/{begun['id']}"
    assert reply.headers["x-starling-model"] == "whisper-base"


async def test_what_was_asked_for_reaches_the_session(service: Dictating) -> None:
    id = await service.create(language="German", segmentation="window", partials=True, response_format="verbose_json")
    spec = service.house.sessions.session(id).spec
    assert (spec.id, spec.segmentation, spec.partials, spec.response_format) == (id, "window", True, "verbose_json")
    assert (spec.decoding.language, spec.decoding.audio_ctx) == ("de", "auto")


async def test_unknown_fields_are_told_and_ignored(service: Dictating) -> None:
    reply = await service.ask("POST", "", JSON, b'{"stream": true, "colour": "red"}')
    assert (reply.status, reply.headers["x-starling-ignored"]) == (201, "stream, colour")


@pytest.mark.parametrize(
    ("headers", "body", "error"),
    [
        (JSON, b'{"vad_silence_ms": 50}', (400, "invalid_value", "vad_silence_ms")),
        (JSON, b'{"faithful": true}', (400, "unsupported_value", "faithful")),
        (JSON, b'{"response_format": "srt"}', (400, "invalid_value", "response_format")),
        (JSON, b"[]", (400, "invalid_request", None)),
        (JSON, b"null", (400, "invalid_request", None)),
        (JSON, b"{", (400, "invalid_request", None)),
        ({"content-type": "text/plain"}, b"{}", (415, "unsupported_media_type", None)),
        (FORM, multipart([("language", "de")]), (415, "unsupported_media_type", None)),
        (JSON | {"content-encoding": "gzip"}, b"{}", (415, "unsupported_media_type", None)),
    ],
)
async def test_a_wrong_wish_makes_no_session(
    service: Dictating, headers: dict[str, str], body: bytes, error: tuple[int, str, str | None]
) -> None:
    assert (await service.ask("POST", "", headers, body)).error == error
    assert (await service.ask("GET")).json["data"] == []
    assert service.left == []


async def test_hint_terms_are_reported_as_the_model_fits_them(service: Dictating) -> None:
    reply = await service.ask("POST", "", JSON, b'{"keywords": ["Starling", "Starling", "MLX"]}')
    assert reply.json["vocabulary"] == {"given": 3, "fitted": 1, "tokens": 2, "budget": 80}
    (job,) = service.whisper.jobs
    assert isinstance(job, Transcribe)
    assert (job.audio.stop, job.urgent, job.decoding.vocabulary) == (0, True, ("Starling", "Starling", "MLX"))
    assert service.house.spool.usage().files == 0


async def test_a_model_that_still_loads_is_not_waited_for(service: Dictating) -> None:
    service.whisper.ready = None
    await service.create(prompt="before", beam_size=5)
    assert service.whisper.jobs == []


async def test_what_only_the_model_knows_is_asked_of_one_that_loads(service: Dictating) -> None:
    service.whisper.ready = None
    await service.create(language="de")
    assert len(service.whisper.jobs) == 1


async def test_a_worker_that_cannot_serve_refuses_sessions(service: Dictating) -> None:
    service.whisper.failure = ModelNotConfigured("run `starling get x`")
    reply = await service.ask("POST")
    assert reply.error == (503, "model_not_configured", None)
    assert reply.headers["x-should-retry"] == "false"


async def test_open_sessions_are_limited(tmp_path: Path) -> None:
    async with dictating(tmp_path, max_sessions=2) as service:
        first, _ = await service.create(), await service.create()
        reply = await service.ask("POST")
        assert reply.error == (429, "too_many_sessions", None)
        assert reply.headers["retry-after"] == "10"
        await service.finish(first)
        await service.create()


async def test_open_sessions_of_one_client_are_limited(tmp_path: Path) -> None:
    async with dictating(tmp_path, max_sessions=3, max_client_sessions=1) as service:
        editor, player = {"x-starling-client": "editor"}, {"x-starling-client": "player"}
        first = (await service.ask("POST", "", editor)).json["id"]
        reply = await service.ask("POST", "", editor)
        assert reply.error == (429, "too_many_sessions", None)
        assert reply.json["error"]["message"].startswith("1 sessions of this client are open already")
        assert (await service.ask("POST", "", player)).status == 201
        await service.ask("DELETE", f"/{first}")
        assert (await service.ask("POST", "", editor)).status == 201


async def test_sessions_that_are_made_at_once_are_limited_too(tmp_path: Path) -> None:
    async with dictating(tmp_path, max_sessions=2) as service:
        replies = await asyncio.gather(*(service.ask("POST") for _ in range(5)))
        assert sorted(reply.status for reply in replies) == [201, 201, 429, 429, 429]


# ---------------------------------------------------------------------------------------------------------- audio


async def test_a_chunk_is_answered_with_what_is_there(service: Dictating) -> None:
    id = await service.create()
    reply = await service.send(id, spoken(0.1))
    assert reply.json == {"id": id, "seq": 0, "samples": 1600, "duration": 0.1, "speech": None, "segments": []}
    assert (await service.send(id, b"")).json["samples"] == 1600
    assert (await service.send(id, spoken(0.1))).json["seq"] == 2


async def test_answers_tell_of_speech_and_of_new_segments(service: Dictating) -> None:
    id = await service.create()
    async with service.reading(id) as reader:
        replies = await service.say(id, TALK)
        await reader.until(b"word2")
        replies += [await service.send(id, spoken(0.1)) for _ in range(2)]
        reader.leave()
    told = [segment for reply in replies for segment in reply.json["segments"]]
    assert [(segment["id"], segment["text"]) for segment in told] == [(0, " word1"), (1, " word2")]
    assert set(told[0]) >= {"id", "seek", "start", "end", "text", "tokens", "avg_logprob"}
    assert {reply.json["speech"] for reply in replies} == {None, True, False}


@pytest.mark.parametrize(
    ("kind", "size", "samples"),
    [
        ("audio/pcm", 640, 160),
        ("audio/l32", 640, 160),
        ("audio/x-float32", 640, 160),
        ("audio/pcm;encoding=s16be", 320, 160),
        ("audio/L16;rate=16000", 320, 160),
        ("audio/pcm;encoding=s16le;rate=48000;channels=2", 4 * 4800, 1600),
    ],
)
async def test_raw_audio_is_what_its_type_says(service: Dictating, kind: str, size: int, samples: int) -> None:
    id = await service.create()
    reply = await service.ask("POST", f"/{id}/audio", {"content-type": kind}, bytes(size))
    assert (reply.status, reply.json["samples"]) == (200, samples)


async def test_a_number_makes_a_retry_safe(service: Dictating) -> None:
    id = await service.create()
    first = await service.send(id, spoken(0.1), seq=0)
    second = await service.send(id, spoken(0.2), seq=1)
    assert (await service.send(id, spoken(0.1), seq=0)).json == first.json
    assert (await service.send(id, spoken(0.2), seq=1)).json == second.json
    assert (await service.ask("GET", f"/{id}")).json["samples"] == 4800


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (S16LE, b"odd"),
        (S16LE, b""),
        ({"content-type": "audio/pcm"}, b"\xff" * 8),
        ({"content-type": "audio/pcm;rate=1"}, b""),
        ({"content-type": "audio/wav"}, b""),
        ({"content-type": "audio/wav"}, b"no audio"),
        (FORM, b"no form"),
    ],
)
async def test_a_number_that_was_taken_gets_its_first_answer_whatever_comes_with_it(
    service: Dictating, kind: dict[str, str], body: bytes
) -> None:
    id = await service.create()
    first = await service.send(id, spoken(0.1), seq=0)
    again = await service.ask("POST", f"/{id}/audio", kind | {"x-starling-seq": "0"}, body)
    assert (again.status, again.json) == (200, first.json)
    await service.finish(id)
    assert (await service.send(id, b"odd", seq=0)).json == first.json
    assert (await service.send(id, b"odd", seq=1)).error == (409, "session_finishing", None)


async def test_a_gap_is_a_conflict_that_no_retry_heals(service: Dictating) -> None:
    id = await service.create()
    reply = await service.send(id, spoken(0.1), seq=1)
    assert reply.error == (409, "sequence_gap", None)
    assert reply.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("number", ["-1", "1.5", "one", "0x1", "٣", "9" * 16])
async def test_what_is_no_number_is_refused(service: Dictating, number: str) -> None:
    id = await service.create()
    headers = S16LE | {"x-starling-seq": number.encode().decode("latin-1")}
    assert (await service.ask("POST", f"/{id}/audio", headers, b"")).error == (400, "invalid_value", "x-starling-seq")


@pytest.mark.parametrize(
    ("headers", "body", "error"),
    [
        (S16LE, b"odd", (400, "invalid_value", None)),
        ({"content-type": "audio/pcm"}, b"\xff" * 8, (400, "invalid_value", None)),
        ({"content-type": "audio/pcm;rate=7999"}, b"", (400, "invalid_value", "rate")),
        (S16LE, bytes((4 << 20) + 2), (413, "payload_too_large", None)),
        ({"content-type": "audio/wav"}, b"", (400, "empty_audio", None)),
        ({}, b"", (400, "empty_audio", None)),
        (S16LE | {"x-starling-seq": "0,1"}, b"", (400, "invalid_value", "x-starling-seq")),
        ({"content-type": "audio/wav"}, b"x" * 5000, (413, "payload_too_large", None)),
        ({"content-type": "multipart/form-data"}, b"x", (400, "invalid_request", None)),
        (FORM, multipart([("language", "de")]), (400, "missing_field", "file")),
        (S16LE | {"content-encoding": "gzip"}, b"", (415, "unsupported_media_type", None)),
    ],
)
async def test_a_wrong_chunk_leaves_the_session_unharmed(
    tmp_path: Path, headers: dict[str, str], body: bytes, error: tuple[int, str, str | None]
) -> None:
    async with dictating(tmp_path, max_upload_bytes=4096) as service:
        id = await service.create()
        await service.send(id, spoken(0.1), seq=0)
        assert (await service.ask("POST", f"/{id}/audio", headers, body)).error == error
        assert (await service.send(id, spoken(0.1), seq=1)).json["samples"] == 3200
        assert service.house.spool.usage().files == 0


@pytest.mark.parametrize("kind", ["audio/wav", "application/octet-stream", "application/x-www-form-urlencoded", ""])
async def test_any_other_type_is_a_whole_encoded_file(service: Dictating, kind: str) -> None:
    id = await service.create()
    reply = await service.ask("POST", f"/{id}/audio", {"content-type": kind} if kind else {}, spoken(1, 0.6))
    assert (reply.status, reply.json["samples"]) == (200, 16_000)
    assert [type(job) for job in service.live.jobs][:1] == [Decode]
    assert (await service.finish(id)).json["text"] == text(1)
    assert service.house.spool.usage().files == 0


async def test_a_file_may_come_as_a_form(service: Dictating) -> None:
    id = await service.create()
    body = multipart([("file", spoken(1), "a.wav")])
    assert (await service.ask("POST", f"/{id}/audio", FORM, body)).json["samples"] == 6400


async def test_a_file_that_nobody_can_decode_leaves_the_session_unharmed(tmp_path: Path) -> None:
    async with dictating(tmp_path, live={Decode: [UndecodableAudio("no audio in it")]}) as service:
        id = await service.create()
        reply = await service.ask("POST", f"/{id}/audio", {"content-type": "audio/wav"}, WAV)
        assert reply.error == (400, "undecodable_audio", None)
        assert (await service.send(id, spoken(0.1), seq=0)).json["samples"] == 1600


async def test_a_client_that_dies_in_mid_body_leaves_no_chunk(service: Dictating) -> None:
    id = await service.create()
    for kind in (S16LE, {"content-type": "audio/wav"}):
        async with opened(service.app, "POST", f"{URL}/{id}/audio", kind) as exchange:
            exchange.send(spoken(0.1))
            exchange.leave()
    assert (await service.ask("GET", f"/{id}")).json["samples"] == 0
    assert service.house.spool.usage().files == 0


async def test_a_body_that_stalls_leaves_no_chunk(tmp_path: Path) -> None:
    async with dictating(tmp_path, upload_idle_s=0.05) as service:
        id = await service.create()
        async with opened(service.app, "POST", f"{URL}/{id}/audio", S16LE) as exchange:
            exchange.send(spoken(0.1))
            await exchange.answered.wait()
            exchange.leave()
        assert exchange.reply().error == (504, "request_timeout", None)
        assert (await service.ask("GET", f"/{id}")).json["samples"] == 0


async def test_a_session_has_a_longest_length(tmp_path: Path) -> None:
    async with dictating(tmp_path, max_session_seconds=1.0) as service:
        id = await service.create()
        await service.send(id, spoken(1, 0.5))
        assert (await service.send(id, spoken(0.2))).error == (413, "audio_too_long", None)
        assert (await service.send(id, spoken(0.1))).json["duration"] == 1.0


async def test_audio_after_the_end_is_a_conflict(service: Dictating) -> None:
    id = await service.create()
    await service.finish(id)
    reply = await service.send(id, spoken(0.1))
    assert reply.error == (409, "session_finishing", None)
    assert reply.headers["x-should-retry"] == "false"


# --------------------------------------------------------------------------------------------------------- events


async def test_the_stream_tells_it_all_with_ids(service: Dictating) -> None:
    created = await service.ask("POST")
    id = created.json["id"]
    await service.say(id, TALK)
    await service.finish(id)
    reply = await service.ask("GET", f"/{id}/events")
    events = reply.told
    assert [event.name for event in events if event.name.startswith("speech")] == [
        "speech.started",
        "speech.stopped",
        "speech.started",
        "speech.stopped",
    ]
    assert [event.name for event in events if not event.name.startswith("speech")] == [
        "session.created",
        "transcript.text.delta",
        "transcript.text.delta",
        "transcript.text.delta",
        "transcript.text.done",
        "session.closed",
    ]
    assert [event.id for event in events] == [str(number) for number in range(1, len(events) + 1)]
    assert all(event.data["type"] == event.name for event in events)
    assert events[0].data["session"] == created.json
    assert events[-1].data == {"type": "session.closed", "reason": "finished"}
    deltas = [event.data["delta"] for event in events if event.name == "transcript.text.delta"]
    assert "".join(deltas) == events[-2].data["text"] == text(1, 2, 3)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["x-starling-model"] == "whisper-base"


async def test_a_stream_resumes_after_any_of_its_events(service: Dictating) -> None:
    id = await service.create()
    await service.say(id, TALK)
    await service.finish(id)
    whole = (await service.ask("GET", f"/{id}/events")).told
    for after in range(len(whole)):
        rest = await service.ask("GET", f"/{id}/events", {"last-event-id": str(after)})
        assert rest.told == whole[after:]


async def test_who_was_told_everything_of_a_session_that_is_over_is_not_to_come_back(service: Dictating) -> None:
    """HTML standard, 9.2.3: a browser's EventSource reconnects for ever unless it is answered so."""
    id = await service.create()
    await service.finish(id)
    last = (await service.ask("GET", f"/{id}/events")).told[-1].id
    reply = await service.ask("GET", f"/{id}/events", {"last-event-id": str(last)})
    assert (reply.status, reply.body) == (204, b"")


async def test_a_stream_begins_when_its_request_has_been_read(service: Dictating) -> None:
    """Else two would listen for the client: the stream, and what reads the rest of the request at its end."""
    id = await service.create()
    await service.finish(id)
    async with opened(service.app, "GET", f"{URL}/{id}/events") as exchange:
        for _ in range(50):
            await asyncio.sleep(0)
        assert exchange.sent == []
        exchange.send(b"", more=False)
    assert exchange.reply().told[-1].name == "session.closed"


async def test_all_readers_are_told_the_same(service: Dictating) -> None:
    id = await service.create()
    async with service.reading(id) as early, service.reading(id) as other:
        await service.say(id, TALK)
        await service.finish(id)
    late = await service.ask("GET", f"/{id}/events")
    assert early.reply().told == other.reply().told == late.told


async def test_partial_texts_have_no_id_and_are_not_told_again(service: Dictating) -> None:
    id = await service.create(partials=True)
    async with service.reading(id) as reader:
        await service.say(id, spoken(0.3, 1, 2, 3, 4))
        await reader.until(b"transcript.text.partial")
        await service.finish(id)
    told = reader.reply().told
    assert {event.id for event in told if event.name == "transcript.text.partial"} == {None}
    kept = [event for event in told if event.name != "transcript.text.partial"]
    assert (await service.ask("GET", f"/{id}/events")).told == kept


@pytest.mark.parametrize(
    ("method", "path", "name"), [("POST", "audio", "X-Starling-Seq"), ("GET", "events", "Last-Event-ID")]
)
async def test_a_header_that_says_two_things_is_refused(service: Dictating, method: str, path: str, name: str) -> None:
    id = await service.create()
    reply = await service.ask(method, f"/{id}/{path}", S16LE | {name: "0", name.lower(): "1"})
    assert reply.error == (400, "invalid_value", name.lower())
    assert (await service.ask("GET", f"/{id}")).json["samples"] == 0


@pytest.mark.parametrize("ended", [False, True])
async def test_an_id_beyond_the_last_event_goes_on_with_the_next(service: Dictating, *, ended: bool) -> None:
    """Whatever a client remembers, of a data directory that was put back for instance: it is not turned away."""
    id = await service.create()
    if ended:
        await service.finish(id)
        assert (await service.ask("GET", f"/{id}/events", {"last-event-id": "99"})).status == 204
        return
    async with service.reading(id, after=99) as reader:
        await service.say(id, TALK)
        await service.finish(id)
    assert reader.reply().told == (await service.ask("GET", f"/{id}/events")).told[1:]


@pytest.mark.parametrize("given", ["x", "-1", "1.0"])
async def test_a_last_event_that_is_none_of_these_is_refused(service: Dictating, given: str) -> None:
    id = await service.create()
    reply = await service.ask("GET", f"/{id}/events", {"last-event-id": given})
    assert reply.error == (400, "invalid_value", "last-event-id")


async def test_a_silent_stream_begins_at_once(service: Dictating) -> None:
    id = await service.create()
    async with service.reading(id, after=1) as reader:
        assert (reader.sent[0]["status"], reader.body) == (200, b"")
        reader.leave()


async def test_asking_for_the_head_of_a_stream_does_not_wait_for_its_end(service: Dictating) -> None:
    id = await service.create()
    reply = await service.ask("HEAD", f"/{id}/events")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


async def test_a_reader_that_leaves_disturbs_nobody(service: Dictating) -> None:
    id = await service.create()
    async with service.reading(id) as reader:
        reader.leave()
    await service.say(id, TALK)
    assert (await service.finish(id)).json["text"] == text(1, 2, 3)


async def test_readers_are_told_that_the_server_goes_down_and_find_the_session_again(tmp_path: Path) -> None:
    async with dictating(tmp_path) as service:
        id = await service.create()
        async with service.reading(id) as reader:
            await service.say(id, TALK)
            await reader.until(b"word2")
            await service.house.stop(5)
        *before, last = reader.reply().told
        assert (last.id, last.data["error"]["code"]) == (None, "shutting_down")
        assert (await service.ask("POST")).error == (503, "shutting_down", None)
    async with dictating(tmp_path) as service:
        assert (await service.finish(id)).json["text"] == text(1, 2, 3)
        assert (await service.ask("GET", f"/{id}/events")).told[: len(before)] == before


# --------------------------------------------------------------------------------------------------- finish, state


async def test_finish_answers_as_a_file_s_transcript_would(service: Dictating) -> None:
    id = await service.create()
    await service.say(id, TALK)
    reply = await service.finish(id)
    assert (reply.status, set(reply.json)) == (200, {"text", "usage", "starling"})
    assert reply.json["text"] == text(1, 2, 3)
    assert reply.json["usage"] == {"type": "duration", "seconds": 3}
    assert (reply.headers["x-starling-model"], reply.headers["x-starling-language"]) == ("whisper-base", "en")
    assert reply.headers["x-starling-duration"] == "2.8"
    assert "total" in json.loads(reply.headers["x-starling-timings"])


async def test_finish_answers_in_the_session_s_format(service: Dictating) -> None:
    id = await service.create(response_format="verbose_json")
    await service.say(id, TALK)
    body = (await service.finish(id)).json
    assert (body["task"], body["language"], body["duration"]) == ("transcribe", "english", 2.8)
    assert [segment["text"] for segment in body["segments"]] == [" word1", " word2", " word3"]


async def test_two_at_once_and_again_get_the_same_answer(service: Dictating) -> None:
    id = await service.create()
    await service.say(id, TALK)
    first, second = await asyncio.gather(service.finish(id), service.finish(id))
    assert first.body == second.body == (await service.finish(id)).body


async def test_without_audio_the_text_is_empty(service: Dictating) -> None:
    id = await service.create()
    assert (await service.finish(id)).json["text"] == ""
    assert service.whisper.jobs == []


async def test_a_client_that_leaves_while_it_finishes_finds_the_text_later(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script = dictating(tmp_path, whisper={Transcribe: lambda job: [gate, *_said(job)]})
    async with script as service:
        id = await service.create()
        await service.say(id, TALK)
        async with opened(service.app, "POST", f"{URL}/{id}/finish") as exchange:
            exchange.send(b"", more=False)
            await service.until_state(id, "finishing")
            exchange.leave()
        assert exchange.sent == []
        gate.set()
        assert (await service.finish(id)).json["text"] == text(1, 2, 3)


def _said(job: Any) -> Any:
    script = pen()[Transcribe]
    assert callable(script)
    return script(job)


async def test_a_restarted_client_finds_its_recording(service: Dictating) -> None:
    first, second = await service.create(), await service.create()
    await service.say(first, TALK)
    await service.finish(first)
    listed = (await service.ask("GET")).json
    assert (listed["object"], [each["id"] for each in listed["data"]]) == ("list", [second, first])
    state = (await service.ask("GET", f"/{first}")).json
    assert state == listed["data"][1]
    created, expires_at = state.pop("created"), state.pop("expires_at")
    assert created <= time.time() < created + 60
    assert time.time() + 3590 < expires_at <= time.time() + 3602
    assert state == {
        "id": first,
        "model": "whisper-base",
        "state": "finished",
        "samples": 44_800,
        "duration": 2.8,
        "text": text(1, 2, 3),
    }


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nobody"),
        ("DELETE", "/nobody"),
        ("POST", "/nobody/audio"),
        ("GET", "/nobody/events"),
        ("POST", "/nobody/finish"),
        ("GET", "/..%2f..%2fetc"),
    ],
)
async def test_an_unknown_session_is_not_found(service: Dictating, method: str, path: str) -> None:
    reply = await service.ask(method, path, S16LE)
    assert reply.status == 404
    assert reply.json["error"]["code"] in ("unknown_session", "not_found")


async def test_a_session_can_be_deleted_while_it_is_read_written_and_finished(tmp_path: Path) -> None:
    async with dictating(tmp_path, whisper={Transcribe: [asyncio.Event()]}) as service:
        id = await service.create()
        async with service.reading(id) as reader:
            await service.say(id, TALK)
            finishing = asyncio.create_task(service.finish(id))
            await service.until_state(id, "finishing")
            reply = await service.ask("DELETE", f"/{id}")
            assert (reply.status, reply.body) == (204, b"")
        assert reader.reply().told[-1].data == {"type": "session.closed", "reason": "deleted"}
        assert (await finishing).error == (404, "unknown_session", None)
        for method, path in [("GET", ""), ("DELETE", ""), ("POST", "/finish"), ("POST", "/audio"), ("GET", "/events")]:
            assert (await service.ask(method, f"/{id}{path}", S16LE)).error == (404, "unknown_session", None)
        assert service.left == []


async def test_nothing_is_left_of_sessions_that_were_deleted(service: Dictating) -> None:
    ids = [await service.create() for _ in range(3)]
    for id in ids:
        await service.say(id, TALK)
        await service.ask("POST", f"/{id}/audio", {"content-type": "audio/wav"}, spoken(1))
    await service.finish(ids[0])
    for id in ids:
        assert (await service.ask("DELETE", f"/{id}")).status == 204
    assert (await service.ask("GET")).json == {"object": "list", "data": []}
    assert service.left == []
    assert service.house.sessions.usage() == 0


async def test_stats_tell_of_sessions(service: Dictating) -> None:
    await service.create()
    await service.finish(await service.create())
    told = (await asked(service.app, "GET", "/stats")).json["sessions"]
    assert told.pop("bytes") > 0
    assert told == {"open": 1, "finishing": 0, "finished": 1, "failed": 0, "limit": 64}
