"""One recording in, its text out: the two speech routes over scripted workers."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import Failure, InternalError, ModelNotConfigured, QueueFull, UndecodableAudio, WorkerCrashed
from protocol.events import (
    Decoded,
    Doubt,
    Model,
    Progress,
    Segment,
    Speech,
    Timings,
    TokenLogprob,
    Transcribed,
    Word,
)
from protocol.jobs import Decode, Decoding, DetectSpeech, Heard, Pcm, Span, Transcribe
from tests.asgi import FORM, JSON, Reply, ask, multipart, opened, told
from tests.scripted import HEARD, SEGMENTS, WAV, Scripted, scripted

URL = "/v1/audio/transcriptions"
TEXT = "And so my fellow Americans ask not."
ENCODED = base64.b64encode(WAV).decode()


def post_json(service: Scripted, value: Any) -> Any:
    return ask(service.app, "POST", URL, JSON, value if isinstance(value, bytes) else json.dumps(value).encode())


# ------------------------------------------------------------------------------------------------- answers


def test_json_is_the_default(service: Scripted) -> None:
    reply = service.post()
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json["text"] == TEXT
    assert reply.json["usage"] == {"type": "duration", "seconds": 5}
    meta = reply.json["starling"]
    timings = meta.pop("timings")
    assert meta == {"model": "whisper-base", "language": "en", "language_probability": 0.98, "duration": 4.5}
    assert (timings["decode_audio"], timings["mel"], timings["encode"], timings["decode"]) == (7.0, 1.0, 2.0, 3.0)
    assert set(timings) == {"queue", "decode_audio", "vad", "mel", "encode", "decode", "align", "total", "rtf"}


@pytest.mark.parametrize(
    ("name", "content_type", "start"),
    [
        ("json", "application/json", '{"text":"And so'),
        ("text", "text/plain; charset=utf-8", "And so my fellow Americans ask not.\n"),
        ("srt", "application/x-subrip; charset=utf-8", "1\n00:00:00,000 --> 00:00:02,500\nAnd so"),
        ("vtt", "text/vtt; charset=utf-8", "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nAnd so"),
        ("verbose_json", "application/json", '{"task":"transcribe","language":"english","duration":4.5,'),
    ],
)
def test_each_format_has_its_body_and_type(service: Scripted, name: str, content_type: str, start: str) -> None:
    """REQ-10"""
    reply = service.post(("response_format", name))
    assert (reply.status, reply.headers["content-type"]) == (200, content_type)
    assert reply.text.startswith(start)


def test_an_unknown_format_is_refused_with_those_there_are(service: Scripted) -> None:
    """REQ-10"""
    reply = service.post(("response_format", "xml"))
    assert reply.error == (400, "invalid_value", "response_format")
    for name in ("json", "text", "srt", "verbose_json", "vtt"):
        assert name in reply.json["error"]["message"]


def test_headers_say_what_the_body_of_a_text_cannot(service: Scripted) -> None:
    headers = service.post(("response_format", "text"), ("user", "me"), ("x y", "")).headers
    assert headers["x-starling-model"] == "whisper-base"
    assert headers["x-starling-language"] == "en"
    assert headers["x-starling-duration"] == "4.5"
    assert json.loads(headers["x-starling-timings"])["decode"] == 3.0
    assert headers["x-starling-ignored"] == "user, x%20y"


@pytest.mark.parametrize("granularities", [[], [""], ["segment"]])
def test_verbose_json_has_segments_without_being_asked(service: Scripted, granularities: list[str]) -> None:
    """REQ-08"""
    fields = [("timestamp_granularities[]", each) for each in granularities]
    body = service.post(("response_format", "verbose_json"), *fields).json
    assert [segment["text"] for segment in body["segments"]] == [" And so my fellow Americans", " ask not."]
    assert "words" not in body


def test_nothing_spoken_is_no_error(tmp_path: Path) -> None:
    with scripted(tmp_path, script=[Transcribed(None, None, Timings())]) as service:
        assert service.post(("response_format", "text")).text == "\n"
        assert service.post(("response_format", "srt")).text == ""
        assert service.post(("response_format", "vtt")).text == "WEBVTT\n"
        reply = service.post(("response_format", "verbose_json"))
        assert (reply.json["text"], reply.json["segments"], reply.json["language"]) == ("", [], "unknown")
        assert "x-starling-language" not in reply.headers


def test_the_workers_get_the_upload_and_then_its_samples(service: Scripted) -> None:
    seen: list[bytes] = []

    def decode(job: Decode) -> list[Any]:
        seen.append(Path(job.source).read_bytes())
        return [Decoded(samples=72_000, decoder="soundfile", container="WAV", elapsed_ms=1.0)]

    service.media._script = {Decode: decode}
    assert service.post(("language", "german"), ("prompt", "Ask")).status == 200
    assert seen == [WAV]
    (decoded,), (heard,) = service.media.jobs, service.whisper.jobs
    assert isinstance(decoded, Decode) and isinstance(heard, Transcribe)
    assert heard.audio == Pcm(decoded.target, 0, 72_000)
    assert (heard.task, heard.decoding.language, heard.decoding.prompt) == ("transcribe", "de", "Ask")


# ------------------------------------------------------------------------------------------------ translations


def test_a_translation_is_english_and_says_what_was_spoken(tmp_path: Path) -> None:
    spoken = [Segment(0, 1, " Hello", (), 0, 0.0, -0.1, 1.0, 0.0), Transcribed("de", 0.9, Timings())]
    with scripted(tmp_path, script=spoken) as service:
        reply = service.post(("response_format", "verbose_json"), path="/v1/audio/translations")
        assert (reply.json["task"], reply.json["language"]) == ("translate", "english")
        assert (reply.json["starling"]["language"], reply.headers["x-starling-language"]) == ("de", "de")
        (job,) = service.whisper.jobs
        assert isinstance(job, Transcribe) and job.task == "translate"


def test_a_model_that_cannot_translate_says_so_before_any_work(tmp_path: Path) -> None:
    with scripted(tmp_path, Model("tiny.en", "whisper", ("en",), False, 1, "float32")) as service:
        assert service.post(path="/v1/audio/translations").error == (400, "unsupported_task", None)
        assert service.post(("language", "de")).error == (400, "invalid_value", "language")
        assert service.post(("language", "en_US")).status == 200
        assert len(service.media.jobs) == 1


# ---------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("name", ["whisper-base", "whisper-1", "gpt-4o-transcribe", "gpt-transcribe", "whatever", ""])
def test_any_name_is_served_and_the_header_says_by_what(service: Scripted, name: str) -> None:
    reply = service.post(("model", name))
    assert (reply.status, reply.headers["x-starling-model"]) == (200, "whisper-base")


def test_strict_models_are_asked_for_by_name_or_alias(tmp_path: Path) -> None:
    with scripted(tmp_path, strict_models=True) as service:
        assert service.post(("model", "whisper-1")).status == 200
        assert service.post().status == 200
        assert service.post(("model", "whatever")).error == (404, "model_not_found", "model")


def test_a_chat_models_name_is_the_wrong_kind(tmp_path: Path) -> None:
    with scripted(tmp_path, llm_model=("qwen",)) as service:
        assert service.post(("model", "qwen")).error == (400, "wrong_model_kind", "model")


# ------------------------------------------------------------------------------------------------ the upload


@pytest.mark.parametrize(
    "parts",
    [
        [("file", "output.wav"), ("model", "whisper-1")],
        [("model", "whisper-1"), ("timestamp_granularities[]", "")],
        [("file", WAV, "a.wav"), ("file", WAV, "b.wav")],
        [("file", WAV, "a.wav"), ("file", "output.wav")],
        [("audio", WAV, "a.wav")],
    ],
)
def test_there_must_be_one_file(service: Scripted, parts: list[Any]) -> None:
    """REQ-01"""
    reply = service.post(*parts, file=None)
    assert (reply.status, reply.json["error"]["param"]) == (400, "file")
    assert "one file part named `file`" in reply.json["error"]["message"]
    assert service.media.jobs == []


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "multipart/form-data"}, multipart([("file", WAV, "a")])),
        ({"content-type": "multipart/form-data; boundary="}, multipart([("file", WAV, "a")])),
        ({"content-type": "multipart/form-data; boundary=nope"}, multipart([("file", WAV, "a")])),
        ({"content-type": f"multipart/form-data; boundary={'x' * 2000}"}, multipart([("file", WAV, "a")])),
        (FORM, multipart([("file", WAV, "a"), ("model", "x")])[:60]),
        (FORM, multipart([("file", WAV, "a"), ("model", "x")])[:-40]),
        (FORM, multipart([("file", WAV, "a"), ("model", "x")], end=False)),
        (FORM, b""),
        (FORM, b"\r\n"),
        (FORM, b"junk"),
        (FORM, b"--XbX\r\n\r\nno header\r\n--XbX--\r\n"),
        (FORM, b'--XbX\r\nContent-Disposition: form-data; filename="a"\r\n\r\nno name\r\n--XbX--\r\n'),
        (FORM, b"--XbX\r\nX: " + b"y" * 10_000 + b"\r\n\r\n\r\n--XbX--\r\n"),
        (FORM, b"--XbX\r\n" + b"X: y\r\n" * 99 + b"\r\n\r\n--XbX--\r\n"),
        (FORM, multipart([("model", "x")] * 16_385)),
    ],
)
def test_a_body_that_is_no_form_is_refused(service: Scripted, headers: dict[str, str], body: bytes) -> None:
    """REQ-04"""
    reply = ask(service.app, "POST", URL, headers, body)
    assert reply.error == (400, "invalid_request", None)
    assert service.media.jobs == []


@pytest.mark.parametrize("boundary", ['"XbX"', "XbX; charset=utf-8", "XbX ; x=y"])
def test_the_boundary_may_be_quoted_or_have_company(service: Scripted, boundary: str) -> None:
    """REQ-04"""
    headers = {"content-type": f"Multipart/Form-Data; boundary={boundary}"}
    assert ask(service.app, "POST", URL, headers, multipart([("file", WAV, "a.wav")])).status == 200


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_form_may_come_in_any_pieces(service: Scripted, size: int) -> None:
    # Lines that begin like the boundary are data.
    content = b"\r\n--XbY\r\n--Xb\r\r\n--XbX" + b"q\r\n" + WAV
    seen: list[bytes] = []

    def decode(job: Decode) -> list[Any]:
        seen.append(Path(job.source).read_bytes())
        return [Decoded(samples=16_000, decoder="soundfile", container="WAV", elapsed_ms=1.0)]

    service.media._script = {Decode: decode}
    body = multipart([("language", "de"), ("file", content, "a.wav"), ("prompt", "Grüße")])
    reply = ask(service.app, "POST", URL, FORM, [body[at : at + size] for at in range(0, len(body), size)])
    assert reply.status == 200
    assert seen == [content]
    assert (service.decoding.language, service.decoding.prompt) == ("de", "Grüße")


@pytest.mark.parametrize(
    "disposition",
    [
        b'filename="a.wav"',
        b"filename=a.wav",
        b'filename=""',
        b'filename="\xff\xfe\x00.wav"',
        "filename=\"föö.wav\"; filename*=UTF-8''f%C3%B6%C3%B6.wav".encode(),
        b"filename*=UTF-8''a.wav",
        b'filename="a\\"b;c.wav"',
        b'filename="../../etc/passwd"',
        b'filename="C:\\\\a.wav"',
    ],
)
def test_what_the_file_is_called_never_matters(service: Scripted, disposition: bytes) -> None:
    head = b'--XbX\r\ncontent-disposition: form-data; name="file"; ' + disposition + b"\r\n\r\n"
    assert ask(service.app, "POST", URL, FORM, head + WAV + b"\r\n--XbX--\r\n").status == 200


def test_other_files_are_ignored_and_told(service: Scripted) -> None:
    reply = service.post(("cover", b"PNG", "cover.png"))
    assert (reply.status, reply.headers["x-starling-ignored"]) == (200, "cover")


@pytest.mark.parametrize("name", ["file[]", "file[0]"])
def test_a_file_may_be_called_as_in_a_list(service: Scripted, name: str) -> None:
    assert service.post((name, WAV, "a.wav"), file=None).status == 200
    two = service.post((name, WAV, "a.wav"), ("file", WAV, "b.wav"), file=None)
    assert two.error == (400, "invalid_value", "file")
    assert service.post((name, "text"), file=None).error == (400, "invalid_value", "file")


def test_an_empty_file_is_empty_audio(service: Scripted) -> None:
    assert service.post(file=b"").error == (400, "empty_audio", "file")


@pytest.mark.parametrize(
    "content_type",
    ["application/x-www-form-urlencoded", "text/plain", "audio/wav", "application/octet-stream", "", "nonsense"],
)
def test_other_content_types_are_refused(service: Scripted, content_type: str) -> None:
    """REQ-01"""
    reply = ask(service.app, "POST", URL, {"content-type": content_type}, b'{"file": "AAAA"}')
    assert reply.error == (415, "unsupported_media_type", None)


def test_no_content_type_and_a_compressed_body_are_refused(service: Scripted) -> None:
    assert ask(service.app, "POST", URL, {}, b"x").error == (415, "unsupported_media_type", None)
    headers = {**FORM, "content-encoding": "gzip"}
    assert ask(service.app, "POST", URL, headers, b"x").error == (415, "unsupported_media_type", None)


def test_8192_terms_are_admitted_and_one_more_is_not(service: Scripted) -> None:
    terms = [("keywords[]", f"t{number}") for number in range(8192)]
    assert service.post(*terms).status == 200
    assert service.decoding.vocabulary[:2] == ("t0", "t1")
    assert len(service.decoding.vocabulary) == 8192
    assert service.post(*terms, ("keywords[]", "x")).error == (400, "invalid_value", "keywords")


# ------------------------------------------------------------------------------------------------------ sizes


def test_a_length_over_the_limit_is_refused_before_the_body_comes(tmp_path: Path) -> None:
    async def main(service: Scripted) -> None:
        async with opened(service.app, "POST", URL, {**FORM, "content-length": "1001"}) as exchange:
            await exchange.answered.wait()
            assert exchange.sent[0]["status"] == 413
            exchange.leave()
        assert exchange.reply().error == (413, "payload_too_large", None)

    with scripted(tmp_path, max_upload_bytes=1000) as service:
        asyncio.run(main(service))


def test_bytes_over_the_limit_are_refused_as_soon_as_they_are_counted(tmp_path: Path) -> None:
    async def main(service: Scripted) -> None:
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.send(multipart([("file", b"x" * 900, "a")], end=False))
            exchange.send(b"x" * 900)
            await exchange.answered.wait()
            assert exchange.sent[0]["status"] == 413
            # The client is heard out, so that it gets to read the answer.
            exchange.send(b"x" * 900)
            exchange.send(b"", more=False)
        assert exchange.complete

    with scripted(tmp_path, max_upload_bytes=1000) as service:
        asyncio.run(main(service))


def test_json_has_a_limit_of_its_own(tmp_path: Path) -> None:
    with scripted(tmp_path, max_json_bytes=1000) as service:
        assert post_json(service, {"file": "A" * 1000}).error == (413, "payload_too_large", None)
        assert service.post(file=b"x" * 5000).status == 200


def test_text_fields_have_a_limit_together(service: Scripted) -> None:
    assert service.post(("prompt", b"x" * (33 << 20))).error == (413, "payload_too_large", None)


# ------------------------------------------------------------------------------------------------------- json


@pytest.mark.parametrize(
    "members",
    [
        {"file": ENCODED},
        {"file": f"data:audio/wav;base64,{ENCODED}"},
        {"file": ENCODED[:8] + "\n" + ENCODED[8:]},
        {"input_audio": {"data": ENCODED, "format": "wav"}},
        {"audio": ENCODED},
        {"file": None, "input_audio": None, "audio": ENCODED},
        {"file": ENCODED, "input_audio": {"data": "?"}, "audio": "?"},
    ],
)
def test_json_carries_the_file_in_base64(service: Scripted, members: dict[str, Any]) -> None:
    reply = post_json(service, {"model": "whisper-1", "language": "de-AT", "temperature": [0, 0.5], **members})
    assert (reply.status, reply.json["text"]) == (200, TEXT)
    assert (service.decoding.language, service.decoding.temperature) == ("de", (0.0, 0.5))
    assert "x-starling-ignored" not in reply.headers


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"file": 7}', "file must be the recording in base64, not a whole number"),
        (b'{"file": 0.5}', "file must be the recording in base64, not a number"),
        (b'{"file": true}', "file must be the recording in base64, not true or false"),
        (b'{"audio": {}}', "audio must be the recording in base64, not an object"),
        (b'{"file": []}', "file must be the recording in base64, not a list"),
        (b'{"a": ' + b"[" * 127 + b"]" * 127 + b"}", "there is no recording: send it in base64 as `file`"),
        (b'{"a": ' + b"[" * 128 + b"]" * 128 + b"}", "the body nests lists and objects more than 128 deep"),
        (b'{"a": ' + b"[" * 100_000, "the body nests lists and objects more than 128 deep"),
        (b'{"a": [1e999]}', "the body is no valid JSON: Number out of range"),
        (b'{"file": "AAAA", "prompt": "\\ud800"}', "prompt is no valid Unicode: it has half a surrogate pair"),
        (b'{"keywords": ["a", "\\udc00b"]}', "keywords is no valid Unicode: it has half a surrogate pair"),
        (b'{"prompt": "\\\\ud800', "the body is no valid JSON: Input data was truncated"),
    ],
)
def test_json_is_refused_in_words_of_its_own(service: Scripted, body: bytes, message: str) -> None:
    assert post_json(service, body).json["error"]["message"] == message


def test_a_member_without_a_name_is_told_as_ignored(service: Scripted) -> None:
    reply = post_json(service, {"file": ENCODED, "": 1, "user": "me"})
    assert (reply.status, reply.headers["x-starling-ignored"]) == (200, '"", user')


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({"file": "output.wav"}, "invalid_value", "file"),
        ({"file": "QUI"}, "invalid_value", "file"),
        ({"file": "QUI=QUI="}, "invalid_value", "file"),
        ({"file": "A" * ((1 << 20) - 2) + "==" + "AAAA"}, "invalid_value", "file"),
        ({"file": "data:audio/wav,AAAA"}, "invalid_value", "file"),
        ({"file": 7}, "invalid_value", "file"),
        ({"file": [ENCODED]}, "invalid_value", "file"),
        ({"input_audio": ENCODED + "?"}, "invalid_value", "input_audio"),
        ({"audio": "ü"}, "invalid_value", "audio"),
        ({"file": ""}, "missing_field", "file"),
        ({"model": "whisper-1"}, "missing_field", "file"),
        ({"file": ENCODED, "temperature": "0.5x"}, "invalid_value", "temperature"),
        ({"file": ENCODED, "stream": "true"}, "invalid_value", "stream"),
        ({"file": ENCODED, "beam_size": 2.5}, "invalid_value", "beam_size"),
    ],
)
def test_json_that_is_wrong_is_refused(service: Scripted, members: Any, code: str, param: str) -> None:
    assert post_json(service, members).error == (400, code, param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b'{"a": NaN}',
        b"\xff\xfe",
        b'{"file": 1e999}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_object_is_refused(service: Scripted, body: bytes) -> None:
    assert post_json(service, body).error == (400, "invalid_request", None)


# ------------------------------------------------------------------------------------------------------ doubts


def in_doubt(service: Scripted, found: list[Any]) -> None:
    """The speech worker asks about 1.5 s to 3.25 s and about all to the end; the media worker's answers are `found`."""
    answers = iter(found)
    service.media._script = {
        Decode: [Decoded(samples=72_000, decoder="soundfile", container="WAV", elapsed_ms=7.0)],
        DetectSpeech: lambda job: [Progress(0, 1), next(answers)],
    }
    service.whisper._script = {Transcribe: [Doubt(1.5, 3.25), *SEGMENTS, Doubt(3.25, 4.51), HEARD]}


def test_a_doubt_is_settled_by_looking_for_speech_in_that_part_of_the_audio(service: Scripted) -> None:
    in_doubt(service, [Speech((Span(0, 900),), 12.5), Speech((), 7.25)])
    meta = service.post().json["starling"]
    decoded, *looked = service.media.jobs
    assert isinstance(decoded, Decode)
    assert looked == [
        DetectSpeech(Pcm(decoded.target, 24_000, 52_000)),
        DetectSpeech(Pcm(decoded.target, 52_000, 72_000)),
    ]
    assert service.whisper.heard == [Heard(speech=True), Heard(speech=False)]
    assert meta["timings"]["vad"] == 19.8


@pytest.mark.parametrize("failure", [QueueFull("too many"), WorkerCrashed("it crashed"), InternalError("no")])
def test_where_nobody_can_look_there_is_speech_so_that_no_text_is_lost(service: Scripted, failure: Failure) -> None:
    in_doubt(service, [failure, Speech((), 1.0)])
    reply = service.post()
    assert (reply.status, reply.json["text"]) == (200, TEXT)
    assert service.whisper.heard == [Heard(speech=True), Heard(speech=False)]


def test_a_stream_s_doubts_are_settled_too(service: Scripted) -> None:
    in_doubt(service, [Speech((), 1.0), Speech((), 2.0)])
    events, _ = told(service.post(("stream", "true")).body)
    assert service.whisper.heard == [Heard(speech=False)] * 2
    assert events[-1].data["starling"]["timings"]["vad"] == 3.0


def test_a_client_that_leaves_during_a_doubt_cancels_both_jobs(service: Scripted) -> None:
    async def main() -> None:
        begun = asyncio.Event()
        in_doubt(service, [])
        looking = {DetectSpeech: lambda job: begun.set() or [Progress(0, 1), asyncio.Event()]}
        service.media._script = {**service.media._script, **looking}
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.send(multipart([("file", WAV, "a.wav")]), more=False)
            await begun.wait()
            exchange.leave()

    asyncio.run(main())
    assert (len(service.media.cancelled), len(service.whisper.cancelled)) == (1, 1)
    assert isinstance(service.media.cancelled[0], DetectSpeech)


# ---------------------------------------------------------------------------------------------------- faithful


def test_faithful_is_the_oracle_s_work_without_our_silence_rule(service: Scripted) -> None:
    reply = service.post(("faithful", "true"), ("best_of", "3"))
    assert (reply.status, reply.json["text"]) == (200, TEXT)
    assert service.whisper.jobs == []
    (job,) = service.oracle.jobs
    assert isinstance(job, Transcribe) and job.decoding == Decoding(best_of=3)
    service.post()
    assert service.decoding == Decoding(silence_rule=True)


def test_an_oracle_that_cannot_be_had_concerns_faithful_requests_alone(service: Scripted) -> None:
    service.oracle.failure = ModelNotConfigured("run `starling get x`", retry=False)
    assert service.post(("faithful", "true")).error == (503, "model_not_configured", None)
    assert service.post().status == 200
    service.oracle.failure, service.whisper.failure = None, service.oracle.failure
    assert service.post(("faithful", "true")).status == 200
    assert service.post().error == (503, "model_not_configured", None)


def test_a_faithful_stream_is_a_stream(service: Scripted) -> None:
    events, _ = told(service.post(("faithful", "true"), ("stream", "true")).body)
    assert [event.name for event in events][1:] == ["transcript.text.delta"] * 2 + ["transcript.text.done"]


# -------------------------------------------------------------------------------------------- words and tokens


def test_words_and_log_probabilities_are_asked_of_the_worker_and_told(tmp_path: Path) -> None:
    words = (Word(" Hé", 0.1, 0.8, 0.9),)
    spoken = Segment(0, 1, " Hé", (), 0, 0.0, -0.1, 1.0, 0.0, words, (TokenLogprob(" Hé", b" H\xc3\xa9", -0.5),))
    with scripted(tmp_path, script=[spoken, HEARD]) as service:
        fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word"), ("include[]", "logprobs")]
        body = service.post(*fields).json
        assert (service.decoding.words, service.decoding.logprobs) == (True, True)
    assert (
        body["words"] == body["segments"][0]["words"] == [{"word": " Hé", "start": 0.1, "end": 0.8, "probability": 0.9}]
    )
    assert body["logprobs"] == [{"token": " Hé", "logprob": -0.5, "bytes": [32, 72, 195, 169]}]


# ---------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("failure", "status", "code", "retry"),
    [
        (UndecodableAudio("this is no audio", param="file"), 400, "undecodable_audio", None),
        (QueueFull("too many"), 429, "queue_full", None),
        (WorkerCrashed("it crashed"), 503, "worker_crashed", None),
        (WorkerCrashed("it crashed", retry=False), 503, "worker_crashed", "false"),
    ],
)
def test_a_workers_refusal_keeps_its_kind(
    service: Scripted, failure: Failure, status: int, code: str, retry: str | None
) -> None:
    service.media._script = {Decode: [Progress(0, 1), failure]}
    reply = service.post()
    assert reply.error[:2] == (status, code)
    assert reply.headers.get("x-should-retry") == retry
    assert ("retry-after" in reply.headers) is (status in (429, 503))
    assert service.whisper.jobs == []


def test_a_model_that_cannot_be_had_refuses_before_any_decoding(service: Scripted) -> None:
    service.whisper.failure = ModelNotConfigured("run `starling get x`")
    reply = service.post()
    assert reply.error == (503, "model_not_configured", None)
    assert (reply.json["error"]["message"], reply.headers["x-should-retry"]) == ("run `starling get x`", "false")
    assert service.media.jobs == []


def test_a_bug_is_a_500_without_its_traceback(service: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    def broken(job: Decode) -> list[Any]:
        raise ZeroDivisionError("secret")

    service.media._script = {Decode: broken}
    reply = ask(service.app, "POST", URL, {**FORM, "x-request-id": "r-17"}, multipart([("file", WAV, "a")]))
    assert reply.error == (500, "internal_error", None)
    assert "secret" not in reply.text
    assert "r-17" in reply.json["error"]["message"]
    assert reply.headers["x-request-id"] == "r-17"
    assert "ZeroDivisionError: secret" in caplog.text
    assert "r-17 failed" in caplog.text


def test_a_worker_that_answers_another_question_is_a_bug(service: Scripted) -> None:
    service.media._script = {Decode: [HEARD]}
    assert service.post().error == (500, "internal_error", None)


def test_no_samples_are_empty_audio(service: Scripted) -> None:
    service.media._script = {Decode: [Decoded(samples=0, decoder="soundfile", container="WAV", elapsed_ms=1.0)]}
    assert service.post().error == (400, "empty_audio", "file")


def test_nothing_of_a_request_stays_for_the_next(service: Scripted) -> None:
    """ISO-01"""
    service.post(("language", "de"), ("prompt", "A"), ("temperature", "0.7"), ("beam_size", "99"))
    service.post(("language", "de"), ("prompt", "A"), ("temperature", "0.7"))
    service.whisper.jobs.clear()
    service.post()
    assert (service.decoding.language, service.decoding.prompt, service.decoding.temperature[0]) == (None, None, 0.0)


# ------------------------------------------------------------------------------------------- clients that leave


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Fails the test when something was logged as an error."""
    caplog.set_level(logging.INFO)
    yield caplog
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_client_that_leaves_while_it_uploads_leaves_nothing(
    service: Scripted, quiet: pytest.LogCaptureFixture
) -> None:
    """REQ-05"""

    async def main() -> None:
        for _ in range(50):
            async with opened(service.app, "POST", URL, {**FORM, "content-length": "20000000"}) as exchange:
                exchange.send(multipart([("file", b"x" * 100_000, "a")], end=False)[:-20])
                exchange.leave()
            assert exchange.sent == []

    asyncio.run(main())
    assert service.media.jobs == []
    assert service.left == 0
    assert quiet.text.count(" 499 ") == 50


def test_a_client_that_leaves_while_a_worker_works_cancels_it(
    service: Scripted, quiet: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        begun, never = asyncio.Event(), asyncio.Event()
        service.whisper._script = {Transcribe: lambda job: begun.set() or [Progress(0, 1), never]}
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.send(multipart([("file", WAV, "a.wav")]), more=False)
            await begun.wait()
            assert service.left == 2
            exchange.leave()
        assert exchange.sent == []

    asyncio.run(main())
    assert service.whisper.cancelled == service.whisper.jobs
    assert len(service.whisper.jobs) == 1
    assert " 499 " in quiet.text


def test_a_client_that_sends_nothing_is_given_up(tmp_path: Path) -> None:
    async def main(service: Scripted) -> None:
        async with opened(service.app, "POST", URL, FORM) as exchange:
            exchange.send(multipart([("file", WAV, "a.wav")])[:30])
            await exchange.answered.wait()
            exchange.leave()
        assert exchange.reply().error == (504, "request_timeout", None)

    with scripted(tmp_path, upload_idle_s=0.05) as service:
        asyncio.run(main(service))


def test_a_client_that_sends_a_byte_now_and_then_is_given_up(tmp_path: Path) -> None:
    """Slow-loris: it is never idle for long, and never done."""

    async def main(service: Scripted) -> Reply:
        async with opened(service.app, "POST", URL, FORM) as exchange:
            for byte in multipart([("file", WAV, "a.wav")])[:90]:
                exchange.send(bytes([byte]))
                await asyncio.sleep(0.01)
                if exchange.sent:
                    break
            exchange.leave()
        return exchange.reply()

    with scripted(tmp_path, upload_idle_s=0.2, upload_rate_bytes=1000) as service:
        reply = asyncio.run(main(service))
    assert reply.error == (504, "request_timeout", None)
    assert reply.json["error"]["message"].endswith("bytes came in 0 seconds; 1000 a second are expected")


def test_a_slow_upload_that_keeps_its_pace_passes(tmp_path: Path) -> None:
    async def main(service: Scripted) -> Reply:
        body = multipart([("file", WAV * 100, "a.wav")])
        async with opened(service.app, "POST", URL, FORM) as exchange:
            for start in range(0, len(body), 200):
                exchange.send(body[start : start + 200])
                await asyncio.sleep(0.04)
            exchange.send(b"", more=False)
        return exchange.reply()

    with scripted(tmp_path, upload_idle_s=0.2, upload_rate_bytes=1000) as service:
        assert asyncio.run(main(service)).status == 200


def test_two_at_once_do_not_meet(service: Scripted) -> None:
    async def main() -> None:
        async def one(language: str) -> str:
            async with opened(service.app, "POST", URL, FORM) as exchange:
                exchange.send(multipart([("file", WAV, "a.wav"), ("language", language)]), more=False)
            return str(exchange.reply().json["text"])

        def heard(job: Transcribe) -> list[Any]:
            said = Segment(0, 1, f" {job.decoding.language}", (), 0, 0.0, -0.1, 1.0, 0.0)
            return [said, Transcribed(job.decoding.language, None, Timings())]

        service.whisper._script = {Transcribe: heard}
        codes = ["de", "fr", "en", "es", "it", "pl", "cs", "ja"]
        assert await asyncio.gather(*map(one, codes)) == codes

    asyncio.run(main())
