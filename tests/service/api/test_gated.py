"""Looking for speech first, and hint terms: what scripted workers are told and what the client gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import WorkerCrashed
from protocol.events import Decoded, Progress, Segment, Speech, Timings, Transcribed, VocabularyReport
from protocol.jobs import Decode, DetectSpeech, Pcm, Span, Transcribe
from tests.asgi import FORM, JSON, ask, multipart, told
from tests.scripted import HEARD, SEGMENTS, WAV, Scripted, scripted

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
SPOKEN = (Span(16_000, 24_000), Span(26_000, 40_000))
"""1 to 1.5 s and 1.625 to 2.5 s of the 4.5 s that the scripted recording takes."""
SILENT = ()


def hears(service: Scripted, spans: tuple[Span, ...], samples: int = 72_000, pcm: bytes = b"") -> None:
    """From now on every recording has `samples`, and speech in these spans."""

    def decode(job: Decode) -> list[Any]:
        Path(job.target).write_bytes(pcm)
        return [Decoded(samples=samples, decoder="soundfile", container="WAV", elapsed_ms=7.0)]

    service.media._script = {Decode: decode, DetectSpeech: [Progress(1.0, 4.5), Speech(spans, 3.5)]}


def detection(service: Scripted) -> DetectSpeech:
    """What the media worker was asked last."""
    job = service.media.jobs[-1]
    assert isinstance(job, DetectSpeech)
    return job


def transcription(service: Scripted) -> Transcribe:
    (job,) = service.whisper.jobs
    assert isinstance(job, Transcribe)
    return job


# ------------------------------------------------------------------------------------------------- without speech


@pytest.mark.parametrize("field", [("vad", "true"), ("vad_trim", "true"), ("chunking_strategy", "auto")])
@pytest.mark.parametrize("response_format", FORMATS)
def test_without_speech_the_text_is_empty_and_no_speech_worker_hears_of_it(
    service: Scripted, field: tuple[str, str], response_format: str
) -> None:
    hears(service, SILENT)
    reply = service.post(field, ("response_format", response_format))
    assert reply.status == 200
    assert service.whisper.jobs == []
    match response_format:
        case "json" | "verbose_json":
            assert reply.json["text"] == ""
            assert reply.json["usage"] == {"type": "duration", "seconds": 5}
            assert reply.json["starling"]["vad"] == {"speech_seconds": 0.0, "spans": []}
            assert reply.json["starling"]["language"] is None
            assert reply.json["starling"]["timings"]["vad"] == 3.5
        case "vtt":
            assert reply.text == "WEBVTT\n"
        case "srt":
            assert reply.text == ""
        case "text":
            assert reply.text == "\n"
    if response_format == "verbose_json":
        assert (reply.json["segments"], reply.json["language"], reply.json["duration"]) == ([], "unknown", 4.5)


@pytest.mark.parametrize("response_format", FORMATS)
def test_without_speech_a_stream_is_done_at_once(service: Scripted, response_format: str) -> None:
    hears(service, SILENT)
    reply = service.post(("vad", "1"), ("stream", "true"), ("response_format", response_format))
    (done,), _ = told(reply.body)
    assert (done.name, done.data["text"]) == ("transcript.text.done", "")
    assert service.whisper.jobs == []


def test_without_speech_the_language_is_the_one_asked_for(service: Scripted) -> None:
    hears(service, SILENT)
    reply = service.post(("vad", "true"), ("language", "de"), ("response_format", "verbose_json"))
    assert (reply.json["language"], reply.headers["x-starling-language"]) == ("german", "de")
    translated = service.post(("vad", "true"), ("response_format", "verbose_json"), path="/v1/audio/translations")
    assert (translated.json["task"], translated.json["text"]) == ("translate", "")


def test_without_speech_the_oracle_is_not_started_either(service: Scripted) -> None:
    hears(service, SILENT)
    assert service.post(("vad", "true"), ("faithful", "true")).json["text"] == ""
    assert (service.oracle.jobs, service.whisper.jobs) == ([], [])


# ---------------------------------------------------------------------------------------------------- with speech


def test_only_speech_and_its_margins_are_heard(service: Scripted) -> None:
    hears(service, SPOKEN)
    meta = service.post(("vad", "true")).json["starling"]
    job = transcription(service)
    assert job.spans == (Span(9_600, 46_400),)
    assert (job.speech, job.independent) == (SPOKEN, False)
    assert meta["vad"] == {"speech_seconds": 2.3, "spans": [[0.6, 2.9]]}
    assert meta["timings"]["vad"] == 3.5


def test_speech_is_looked_for_as_the_request_says(service: Scripted) -> None:
    hears(service, SPOKEN)
    service.post(("vad", "true"), ("vad_threshold", "0.7"), ("vad_min_speech_ms", "100"))
    job = detection(service)
    assert (job.threshold, job.min_speech_ms) == (0.7, 100)
    assert job.audio == Pcm(job.audio.path, 0, 72_000)


def test_trimming_keeps_the_silence_between(service: Scripted) -> None:
    hears(service, (Span(16_000, 20_000), Span(800_000, 810_000)), samples=960_000)
    meta = service.post(("vad", "true"), ("vad_trim", "true")).json["starling"]
    assert transcription(service).spans == (Span(9_600, 816_400),)
    assert meta["vad"] == {"speech_seconds": 50.425, "spans": [[0.6, 51.025]]}


def test_trimming_may_be_asked_for_alone(service: Scripted) -> None:
    hears(service, SPOKEN)
    service.post(("vad_trim", "true"))
    assert transcription(service).spans == (Span(9_600, 46_400),)


@pytest.mark.parametrize("fields", [[], [("vad_threshold", "0.9"), ("vad_min_speech_ms", "0")], [("vad", "false")]])
def test_unless_it_is_asked_for_nobody_looks_for_speech(service: Scripted, fields: list[tuple[str, str]]) -> None:
    reply = service.post(*fields)
    job = transcription(service)
    assert (job.spans, job.speech, job.independent) == (None, None, False)
    assert [type(each) for each in service.media.jobs] == [Decode]
    assert "vad" not in reply.json["starling"]


def test_the_oracle_gets_the_same_spans(service: Scripted) -> None:
    hears(service, SPOKEN)
    assert service.post(("vad", "true"), ("faithful", "true")).status == 200
    (job,) = service.oracle.jobs
    assert isinstance(job, Transcribe) and job.spans == (Span(9_600, 46_400),)


def test_a_look_for_speech_that_fails_fails_the_request(service: Scripted) -> None:
    service.media._script = {**service.media._script, DetectSpeech: [WorkerCrashed("the worker ended")]}
    for fields in ([("vad", "true")], [("vad", "true"), ("stream", "true")], [("chunking_strategy", "auto")]):
        assert service.post(*fields).error == (503, "worker_crashed", None)
    assert service.whisper.jobs == []


def test_times_stay_between_0_and_the_end_and_deltas_make_the_text(tmp_path: Path) -> None:
    late = Segment(4.4, 9.9, " country.", (), 0, 0.0, -0.2, 1.3, 0.01)
    early = Segment(2.0, 1.0, " what your", (), 0, 0.0, -0.2, 1.3, 0.01)
    with scripted(tmp_path, script=[Progress(1.0, 2.0), *SEGMENTS, early, late, HEARD]) as service:
        hears(service, SPOKEN)
        reply = service.post(("chunking_strategy", "auto"), ("stream", "1"), ("response_format", "verbose_json"))
    events, _ = told(reply.body)
    done = events[-1].data
    deltas = [event.data for event in events if event.name == "transcript.text.delta"]
    assert "".join(delta["delta"] for delta in deltas) == done["text"]
    times = [time for segment in done["segments"] for time in (segment["start"], segment["end"])]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0.0, 4.5)


# ----------------------------------------------------------------------------------------------------- in pieces


@pytest.mark.parametrize(
    "fields",
    [
        [("chunking_strategy", "auto")],
        [("chunking_strategy", '{"type": "server_vad"}')],
        [("chunking_strategy[type]", "server_vad")],
        [("chunking_strategy[type]", "server_vad"), ("chunking_strategy[threshold]", "")],
    ],
)
def test_pieces_are_decoded_each_for_itself(service: Scripted, fields: list[tuple[str, str]]) -> None:
    hears(service, (Span(16_000, 320_000), Span(330_000, 640_000)), samples=720_000)
    meta = service.post(*fields).json["starling"]
    job = transcription(service)
    assert job.independent
    assert job.spans == (Span(11_200, 323_200), Span(325_200, 643_200))
    assert job.speech == (Span(16_000, 320_000), Span(330_000, 640_000))
    assert (detection(service).threshold, detection(service).min_speech_ms) == (0.5, 250)
    assert meta["vad"] == {"speech_seconds": 39.375, "spans": [[0.7, 20.2], [20.325, 40.2]]}


def test_the_strategy_s_own_numbers_count(service: Scripted) -> None:
    hears(service, (Span(16_000, 320_000), Span(330_000, 640_000)), samples=720_000)
    strategy = {"type": "server_vad", "threshold": 0.3, "prefix_padding_ms": 100, "silence_duration_ms": 50}
    named = [(f"chunking_strategy[{name}]", str(value)) for name, value in strategy.items()]
    assert service.post(*named, ("vad_threshold", "0.8")).status == 200
    assert detection(service).threshold == 0.3
    assert transcription(service).spans == (Span(14_400, 320_800), Span(328_400, 640_800))
    body = {"file": "UklGRg==", "chunking_strategy": strategy}
    assert ask(service.app, "POST", "/v1/audio/transcriptions", JSON, json.dumps(body).encode()).status == 200
    assert service.whisper.jobs[0].spans == service.whisper.jobs[1].spans  # type: ignore[union-attr]


@pytest.mark.parametrize(("asked", "used"), [("0", 0.01), ("1", 0.99)])
def test_the_official_threshold_may_be_0_or_1_and_silero_s_may_not(service: Scripted, asked: str, used: float) -> None:
    hears(service, SPOKEN)
    service.post(("chunking_strategy[type]", "server_vad"), ("chunking_strategy[threshold]", asked))
    assert detection(service).threshold == used


def test_speech_without_a_pause_is_cut_where_the_recording_is_quietest(service: Scripted) -> None:
    loud, quiet = b"\x00\x20", b"\x10\x00"
    pcm = loud * 400_000 + quiet * 3_200 + loud * 236_800
    hears(service, (Span(0, 640_000),), samples=640_000, pcm=pcm)
    service.post(("chunking_strategy", "auto"))
    first, second = transcription(service).spans or ()
    assert (first.start, second.stop) == (0, 640_000)
    assert first.stop == second.start
    assert abs(first.stop - 401_600) <= 320


@pytest.mark.parametrize(
    "fields",
    [
        [("chunking_strategy", "server_vad")],
        [("chunking_strategy[threshold]", "0.5")],
        [("chunking_strategy[type]", "server_vad"), ("chunking_strategy[threshold]", "1.1")],
        [("chunking_strategy[type]", "server_vad"), ("chunking_strategy[prefix_padding_ms]", "-1")],
        [("chunking_strategy[type]", "server_vad"), ("chunking_strategy[silence_duration_ms]", "x")],
        [("chunking_strategy", "auto"), ("faithful", "true")],
    ],
)
def test_a_wrong_strategy_is_refused(service: Scripted, fields: list[tuple[str, str]]) -> None:
    assert service.post(*fields).error == (400, "invalid_value", "chunking_strategy")
    assert service.media.jobs == []


# ---------------------------------------------------------------------------------------------------- vocabulary


def test_terms_of_all_names_reach_the_worker_in_order_and_are_reported(tmp_path: Path) -> None:
    report = VocabularyReport(given=5, fitted=4, tokens=12, budget=223)
    with scripted(tmp_path, script=[*SEGMENTS, Transcribed("en", 0.9, Timings(), report)]) as service:
        reply = service.post(
            ("vocabulary", "Ada, Bob"), ("keywords[]", "New, York"), ("keywords[]", "Ada"), ("hotwords", "Cy")
        )
        assert service.decoding.vocabulary == ("Ada", "Bob", "New, York", "Ada", "Cy")
    assert reply.json["starling"]["vocabulary"] == {"given": 5, "fitted": 4, "tokens": 12, "budget": 223}


def test_a_stream_reports_the_vocabulary_too(tmp_path: Path) -> None:
    report = VocabularyReport(given=1, fitted=1, tokens=2, budget=223)
    with scripted(tmp_path, script=[*SEGMENTS, Transcribed("en", 0.9, Timings(), report)]) as service:
        events, _ = told(service.post(("hotwords", "Ada"), ("stream", "true")).body)
    assert events[-1].data["starling"]["vocabulary"] == {"given": 1, "fitted": 1, "tokens": 2, "budget": 223}


def test_without_a_vocabulary_nothing_is_said_of_one(service: Scripted) -> None:
    assert "vocabulary" not in service.post().json["starling"]


def test_the_oracle_is_told_the_terms_too(service: Scripted) -> None:
    assert service.post(("vocabulary", "Ada"), ("faithful", "true")).status == 200
    (job,) = service.oracle.jobs
    assert isinstance(job, Transcribe) and job.decoding.vocabulary == ("Ada",)


def test_no_vocabulary_is_larger_than_a_frame_to_the_worker(tmp_path: Path) -> None:
    """8192 terms of 16 KiB are allowed and are 128 MiB; 223 tokens of them count."""
    report = VocabularyReport(given=64, fitted=0, tokens=0, budget=223)
    terms = [("keywords[]", f"{number} " + "x" * 16_000) for number in range(300)]
    with scripted(tmp_path, script=[Transcribed(None, None, Timings(), report)]) as service:
        body = multipart([("file", WAV, "a.wav"), *terms])
        reply = ask(service.app, "POST", "/v1/audio/transcriptions", FORM, body)
        assert (1 << 20) - 16_384 < sum(map(len, service.decoding.vocabulary)) <= 1 << 20
    assert reply.json["starling"]["vocabulary"]["given"] == 300
