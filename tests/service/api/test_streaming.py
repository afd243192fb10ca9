"""`stream=true` on both speech routes: the events, what a refusal keeps, and clients that leave or do not read."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import Failure, InvalidValue, ModelNotConfigured, QueueFull, UndecodableAudio, WorkerCrashed
from protocol.events import Progress, Segment, Timings, TokenLogprob, Transcribed, Word
from protocol.jobs import Decode, Transcribe
from tests.asgi import FORM, Reply, Told, multipart, opened, told
from tests.scripted import HEARD, SEGMENTS, WAV, Scripted, scripted

URL = "/v1/audio/transcriptions"
BODY = multipart([("file", WAV, "a.wav"), ("stream", "true")])
TEXT = "And so my fellow Americans ask not."


def said(text: str, start: float = 0.0, **more: Any) -> Segment:
    return Segment(start, start + 1, text, (), 0, 0.0, -0.1, 1.0, 0.0, **more)


def stream(service: Scripted, *parts: Any, **more: Any) -> Reply:
    return service.post(("stream", "true"), *parts, **more)


def events(reply: Reply) -> list[Told]:
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    return told(reply.body)[0]


def without_timings(body: dict[str, Any]) -> dict[str, Any]:
    body["starling"].pop("timings")
    return body


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Fails the test when something was logged as an error."""
    caplog.set_level(logging.INFO)
    yield caplog
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# -------------------------------------------------------------------------------------------------- the events


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_progress_a_delta_for_each_segment_and_done(service: Scripted, path: str) -> None:
    reply = stream(service, path=path)
    progress, first, second, done = events(reply)
    assert progress.data == {"type": "transcript.progress", "done": 0.0, "total": 4.5}
    assert first.data == {
        "type": "transcript.text.delta",
        "delta": "And so my fellow Americans",
        "segment": {"id": 0, "start": 0.0, "end": 2.5},
    }
    assert second.data == {
        "type": "transcript.text.delta",
        "delta": " ask not.",
        "segment": {"id": 1, "start": 2.5, "end": 4.0},
    }
    timings = done.data["starling"].pop("timings")
    assert done.data == {
        "type": "transcript.text.done",
        "text": TEXT,
        "usage": {"type": "duration", "seconds": 5},
        "starling": {"model": "whisper-base", "language": "en", "language_probability": 0.98, "duration": 4.5},
    }
    assert set(timings) == {"queue", "decode_audio", "vad", "mel", "encode", "decode", "align", "total", "rtf"}


def test_the_event_s_name_and_the_type_in_its_data_are_the_same(service: Scripted) -> None:
    assert [event.name for event in events(stream(service))] == [
        "transcript.progress",
        "transcript.text.delta",
        "transcript.text.delta",
        "transcript.text.done",
    ]
    assert all(event.name == event.data["type"] for event in events(stream(service)))


def test_headers_say_what_is_known_at_the_start(service: Scripted) -> None:
    headers = stream(service, ("user", "me")).headers
    assert {name for name in headers if name.startswith("x-")} == {
        "x-starling-model",
        "x-starling-ignored",
        "x-request-id",
        "x-accel-buffering",
    }
    assert (headers["x-starling-model"], headers["x-starling-ignored"]) == ("whisper-base", "user")
    assert "connection" not in headers


@pytest.mark.parametrize("name", ["json", "verbose_json", "text", "srt", "vtt"])
def test_done_is_the_collected_answer(service: Scripted, name: str) -> None:
    """STR-03"""
    collected = service.post(("response_format", name))
    done = events(stream(service, ("response_format", name)))[-1].data
    assert done.pop("type") == "transcript.text.done"
    if name in ("json", "verbose_json"):
        assert without_timings(done) == without_timings(collected.json)
    else:
        assert (done["body"], done["text"]) == (collected.text, TEXT)


def test_deltas_joined_are_the_text_however_blank_a_segment_is(tmp_path: Path) -> None:
    """STR-03"""
    texts = ["  ", " And", "", " so \n", "   ", " on.", " "]
    with scripted(tmp_path, script=[*map(said, texts), HEARD]) as service:
        *deltas, done = events(stream(service))
        assert [event.data["delta"] for event in deltas] == ["And", " so", " \n    on."]
        assert "".join(event.data["delta"] for event in deltas) == done.data["text"]
        assert done.data["text"] == service.post().json["text"]


def test_nothing_spoken_is_done_at_once(tmp_path: Path) -> None:
    with scripted(tmp_path, script=[Transcribed(None, None, Timings())]) as service:
        (done,) = events(stream(service))
        assert (done.name, done.data["text"]) == ("transcript.text.done", "")


def test_words_and_log_probabilities_come_with_their_segment(tmp_path: Path) -> None:
    words = (Word(" Hé", 0.1, 0.8, 0.9),)
    tokens = (TokenLogprob(" H", b" H", -0.5), TokenLogprob("é", "é".encode(), -0.25))
    with scripted(tmp_path, script=[said(" Hé", words=words, logprobs=tokens), HEARD]) as service:
        asked = (("timestamp_granularities[]", "word"), ("include[]", "logprobs"))
        delta, done = events(stream(service, *asked))
        assert (service.decoding.words, service.decoding.logprobs) == (True, True)
    assert delta.data["segment"]["words"] == [{"word": " Hé", "start": 0.1, "end": 0.8, "probability": 0.9}]
    told_tokens = [
        {"token": " H", "logprob": -0.5, "bytes": [32, 72]},
        {"token": "é", "logprob": -0.25, "bytes": [195, 169]},
    ]
    assert delta.data["logprobs"] == done.data["logprobs"] == told_tokens


def test_a_segment_is_told_as_soon_as_it_is_there(service: Scripted) -> None:
    async def main() -> None:
        more = asyncio.Event()
        service.whisper._script = {Transcribe: [SEGMENTS[0], more, SEGMENTS[1], HEARD]}
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.send(BODY, more=False)
            await exchange.until(b"Americans")
            assert b" ask not" not in exchange.body
            more.set()
        assert [event.name for event in events(exchange.reply())] == [
            "transcript.text.delta",
            "transcript.text.delta",
            "transcript.text.done",
        ]

    asyncio.run(main())


@pytest.mark.parametrize("text", ["a\n\nb", "a\r\nb", "a\rb", "a\u2028b\u2029c\x85d", "\x0b\x0c\x1c", "ü" * 100_000])
def test_no_text_can_break_a_line(tmp_path: Path, text: str) -> None:
    """STR-07"""
    with scripted(tmp_path, script=[said(f" x{text}x"), HEARD]) as service:
        reply = stream(service)
    delta, done = events(reply)
    assert delta.data["delta"] == done.data["text"] == f"x{text}x"
    # Neither by the standard's line ends nor by all those that Unicode knows.
    assert b"\r" not in reply.body
    assert reply.text.splitlines() == reply.text.split("\n")[:-1]
    assert sum(line.startswith("data:") for line in reply.text.split("\n")) == 2


def test_a_silent_stream_has_comments(tmp_path: Path) -> None:
    async def main(service: Scripted) -> None:
        more = asyncio.Event()
        service.whisper._script = {Transcribe: [Progress(0, 1), more, HEARD]}
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.send(BODY, more=False)
            await exchange.until(b": still here\n\n: still here\n\n")
            more.set()
        found, comments = told(exchange.reply().body)
        assert [event.name for event in found] == ["transcript.progress", "transcript.text.done"]
        assert set(comments) == {"still here"}

    with scripted(tmp_path, keepalive_s=0.02) as service:
        asyncio.run(main(service))


# --------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("parts", "file"),
    [
        ([("temperature", "hot")], WAV),
        ([("model", "qwen")], WAV),
        ([("language", "klingon")], WAV),
        ([("known_speaker_names[]", "Ada")], WAV),
        ([("faithful", "true"), ("audio_ctx", "auto")], WAV),
        ([], b""),
        ([], None),
    ],
)
def test_a_wrong_request_is_refused_the_same_in_both_modes(
    tmp_path: Path, parts: list[tuple[str, str]], file: bytes | None
) -> None:
    """REQ-11"""
    with scripted(tmp_path, llm_model=("qwen",)) as service:
        collected, streamed = service.post(*parts, file=file), stream(service, *parts, file=file)
    assert (streamed.status, streamed.json) == (collected.status, collected.json)
    assert streamed.status == 400
    assert streamed.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (UndecodableAudio("this is no audio", param="file"), 400),
        (QueueFull("too many"), 429),
        (WorkerCrashed("it crashed"), 503),
    ],
)
@pytest.mark.parametrize("job", [Decode, Transcribe])
def test_what_fails_before_the_first_event_keeps_its_status(
    service: Scripted, job: type[Any], failure: Failure, status: int
) -> None:
    worker = service.media if job is Decode else service.whisper
    worker._script = {job: [failure]}
    collected, streamed = service.post(), stream(service)
    assert (streamed.status, streamed.json) == (collected.status, collected.json)
    assert streamed.status == status
    assert streamed.headers.get("retry-after") == collected.headers.get("retry-after")


def test_a_model_that_cannot_be_had_is_a_503_and_no_stream(service: Scripted) -> None:
    service.whisper.failure = ModelNotConfigured("run `starling get x`", retry=False)
    reply = stream(service)
    assert reply.error == (503, "model_not_configured", None)
    assert reply.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("model", "")],
        [("model", "whatever")],
        [("temperature", "0.4")],
        [("language", "de"), ("prompt", "A")],
        [("beam_size", "5"), ("patience", "2"), ("audio_ctx", "auto")],
        [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")],
        [("include[]", "logprobs"), ("languages[]", "de"), ("languages[]", "en")],
    ],
)
def test_every_field_means_the_same_in_both_modes(service: Scripted, parts: list[tuple[str, str]]) -> None:
    """REQ-11"""
    assert service.post(*parts).status == 200
    assert events(stream(service, *parts))[-1].name == "transcript.text.done"
    collected, streamed = service.whisper.jobs
    assert isinstance(collected, Transcribe) and isinstance(streamed, Transcribe)
    assert (streamed.task, streamed.decoding) == (collected.task, collected.decoding)


@pytest.mark.parametrize("value", ["false", "0", "no", ""])
def test_a_stream_that_is_not_wanted_is_none(service: Scripted, value: str) -> None:
    """REQ-11"""
    assert service.post(("stream", value)).headers["content-type"] == "application/json"


def test_a_late_failure_is_the_last_event(tmp_path: Path, quiet: pytest.LogCaptureFixture) -> None:
    with scripted(tmp_path, script=[*SEGMENTS, WorkerCrashed("it crashed")]) as service:
        *_, last = events(stream(service))
    assert last == Told(
        "error",
        {
            "type": "error",
            "error": {
                "message": "it crashed",
                "type": "service_unavailable_error",
                "param": None,
                "code": "worker_crashed",
            },
        },
    )


def test_a_late_bug_is_an_error_event_without_its_traceback(
    service: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    service.whisper._script = {Transcribe: [SEGMENTS[0], SEGMENTS[1]]}
    *_, last = events(stream(service))
    assert (last.name, last.data["error"]["code"], last.data["error"]["type"]) == (
        "error",
        "internal_error",
        "server_error",
    )
    assert "terminal" not in json.dumps(last.data)
    assert "a stream failed" in caplog.text


def test_a_refusal_that_comes_late_is_told_with_its_field(tmp_path: Path) -> None:
    with scripted(tmp_path, script=[Progress(0, 1), InvalidValue("no", param="language")]) as service:
        _, last = events(stream(service))
        assert (last.data["error"]["param"], last.data["error"]["code"]) == ("language", "invalid_value")


# ------------------------------------------------------------------------------- clients that leave or do not read


def test_a_client_that_leaves_in_mid_stream_cancels_the_job(service: Scripted, quiet: pytest.LogCaptureFixture) -> None:
    """STR-01"""

    async def main() -> None:
        service.whisper._script = {Transcribe: [SEGMENTS[0], asyncio.Event()]}
        for _ in range(20):
            async with opened(service.app, "POST", URL, FORM) as exchange:
                exchange.send(BODY, more=False)
                await exchange.until(b"Americans")
                assert (service.left, service.whisper.running) == (2, 1)
                exchange.leave()
            assert (service.left, service.whisper.running) == (0, 0)

    asyncio.run(main())
    assert service.whisper.cancelled == service.whisper.jobs
    assert "Traceback" not in quiet.text


def test_a_client_that_leaves_before_the_first_event_is_a_499(
    service: Scripted, quiet: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        begun = asyncio.Event()
        service.whisper._script = {Transcribe: lambda job: begun.set() or [asyncio.Event(), HEARD]}
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.send(BODY, more=False)
            await begun.wait()
            exchange.leave()
        assert exchange.sent == []

    asyncio.run(main())
    assert service.whisper.cancelled == service.whisper.jobs
    assert " 499 " in quiet.text


def test_a_client_that_does_not_read_is_given_up_and_others_are_served(
    tmp_path: Path, quiet: pytest.LogCaptureFixture
) -> None:
    async def main(service: Scripted) -> None:
        more, deaf = asyncio.Event(), asyncio.Barrier(21)
        many = [said(f" {number}", number) for number in range(1000)]
        service.whisper._script = {Transcribe: [many[0], more, *many[1:], HEARD]}
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(unread(service, deaf))
            async with opened(service.app, "POST", URL, FORM) as reader:
                reader.send(BODY, more=False)
                await reader.until(b'"delta":"0"')
                await deaf.wait()
                more.set()
            assert events(reader.reply())[-1].name == "transcript.text.done"
        assert (service.left, service.whisper.running, len(service.whisper.cancelled)) == (0, 0, 20)

    async def unread(service: Scripted, deaf: asyncio.Barrier) -> None:
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.send(BODY, more=False)
            await exchange.until(b'"delta":"0"')
            exchange.reads.clear()
            await deaf.wait()
            await exchange.done()
            exchange.leave()
        assert not exchange.complete

    with scripted(tmp_path, unread_s=0.1) as service:
        asyncio.run(main(service))
    assert quiet.text.count("a client read nothing of its stream for 0.1 s") == 20


def test_a_client_that_stops_reading_before_the_very_last_message_is_given_up_too(tmp_path: Path) -> None:
    async def main(service: Scripted) -> None:
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.stops_at = b"transcript.text.done"
            exchange.send(BODY, more=False)
            await exchange.done()
            exchange.leave()
        assert not exchange.complete
        assert service.left == 0

    with scripted(tmp_path, unread_s=0.1) as service:
        service.whisper._script = {Transcribe: [SEGMENTS[0], HEARD]}
        asyncio.run(main(service))


def test_an_answer_that_is_no_stream_is_given_up_too(tmp_path: Path, quiet: pytest.LogCaptureFixture) -> None:
    """Or those who never read would take all the room that --max-requests leaves."""

    async def main(service: Scripted) -> None:
        async with opened(service.app, "GET", "/openapi.json") as exchange:
            exchange.stops_at = b'"openapi"'
            exchange.send(b"", more=False)
            await exchange.done()
            exchange.leave()
        assert exchange.body and not exchange.complete
        async with opened(service.app, "GET", "/openapi.json") as exchange:
            exchange.send(b"", more=False)
            await exchange.done()
        assert exchange.complete
        json.loads(exchange.reply().body)

    with scripted(tmp_path, unread_s=0.1, max_requests=1) as service:
        asyncio.run(main(service))
    assert quiet.text.count("its client read nothing of the answer for 0.1 s") == 1


def test_a_client_that_leaves_while_its_stream_begins_leaves_nothing(service: Scripted) -> None:
    """The status cannot even be sent: what the stream holds is released all the same."""

    async def main() -> None:
        begun = asyncio.Event()
        service.whisper._script = {Transcribe: lambda job: begun.set() or [SEGMENTS[0], asyncio.Event()]}
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.reads.clear()
            exchange.send(BODY, more=False)
            await begun.wait()
            await asyncio.sleep(0.01)
            exchange.leave()
        assert exchange.sent == []

    asyncio.run(main())
    assert (service.left, service.whisper.running) == (0, 0)
    assert service.whisper.cancelled == service.whisper.jobs
