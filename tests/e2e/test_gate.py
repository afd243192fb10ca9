"""Speech looked for first, pieces decoded at once, hint terms: a real service and real weights."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.asgi import told
from tests.e2e.server import Server
from tests.speech import SAMPLE_RATE, Samples, speak, timeline

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]

FOX = "The quick brown fox jumps over the lazy dog."
DOOR = "Please open the window and close the door."


def wav(samples: Samples) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE, format="WAV")
    return file.getvalue()


def post(server: Server, audio: bytes | Path, **fields: Any) -> httpx.Response:
    data = audio if isinstance(audio, bytes) else audio.read_bytes()
    answer = httpx.post(f"{server.url}/v1/audio/transcriptions", files={"file": data}, data=fields, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer


def words_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    words: list[dict[str, Any]] = body["words"]
    return words


def times(body: dict[str, Any], of: str) -> list[float]:
    return [word["start"] for word in words_of(body) if of in word["word"]]


@pytest.fixture(scope="module")
def hiss() -> bytes:
    """20 s in which nobody speaks."""
    return wav(np.random.default_rng(1).normal(0, 60, 20 * SAMPLE_RATE).astype(np.int16))


@pytest.mark.parametrize("response_format", ["json", "text", "srt", "verbose_json", "vtt"])
@pytest.mark.parametrize("fields", [{"vad": "true"}, {"vad_trim": "true"}, {"chunking_strategy": "auto"}], ids=str)
def test_where_nobody_speaks_whisper_does_not_run(
    tiny: Server, hiss: bytes, fields: dict[str, str], response_format: str
) -> None:
    (worker,) = tiny.workers("whisper")
    before = worker.cpu_times()
    answer = post(tiny, hiss, response_format=response_format, **fields)
    after = worker.cpu_times()
    timings = json.loads(answer.headers["x-starling-timings"])
    assert (timings["mel"], timings["encode"], timings["decode"]) == (0, 0, 0)
    assert timings["vad"] > 0
    assert after.user - before.user < 0.1
    empty = {"text": "\n", "srt": "", "vtt": "WEBVTT\n"}
    if response_format in empty:
        assert answer.text == empty[response_format]
    else:
        assert answer.json()["text"] == ""


@pytest.mark.parametrize(
    "fields",
    [{"vad": "true"}, {"chunking_strategy": "auto"}, {"vad": "true", "faithful": "true", "temperature[]": "0"}],
    ids=str,
)
def test_times_are_those_of_the_recording_and_no_word_is_in_a_gap(tiny: Server, fields: dict[str, str]) -> None:
    fox_s, door_s = (len(speak(sentence)[0]) / SAMPLE_RATE for sentence in (FOX, DOOR))
    starts = [0.0, fox_s + 20, fox_s + 20 + door_s + 45]
    asked = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    body = post(tiny, wav(timeline(FOX, 20.0, DOOR, 45.0, FOX)), **asked, **fields).json()
    (fox,) = times(post(tiny, wav(speak(FOX)[0]), **asked).json(), "fox")
    (window,) = times(post(tiny, wav(speak(DOOR)[0]), **asked).json(), "window")
    assert times(body, "fox") == pytest.approx([fox, starts[2] + fox], abs=0.3)
    assert times(body, "window") == pytest.approx([starts[1] + window], abs=0.3)
    heard = [(word["start"], word["end"]) for word in words_of(body)]
    for gap in ((fox_s + 0.4, starts[1] - 0.4), (starts[1] + door_s + 0.4, starts[2] - 0.4)):
        assert not [word for word in heard if word[0] < gap[1] and word[1] > gap[0]]
    edges = [edge for word in heard for edge in word]
    assert edges == sorted(edges)
    assert 0 <= edges[0] <= edges[-1] <= body["duration"]
    spans = body["starling"]["vad"]["spans"]
    assert [start for start, _ in spans] == pytest.approx(starts, abs=0.5)
    assert body["starling"]["vad"]["speech_seconds"] == pytest.approx(sum(end - start for start, end in spans))


def test_trimming_leaves_the_silence_between(tiny: Server) -> None:
    samples = timeline(8.0, FOX, 4.0, DOOR, 12.0)
    body = post(tiny, wav(samples), vad="true", vad_trim="true", response_format="verbose_json").json()
    ((start, end),) = body["starling"]["vad"]["spans"]
    assert (start, end) == pytest.approx((7.6, len(samples) / SAMPLE_RATE - 11.6), abs=0.5)
    assert "fox" in body["text"] and "window" in body["text"]
    assert body["segments"][0]["start"] >= start
    assert body["segments"][-1]["end"] <= end


def test_pieces_hold_the_whole_text_and_its_stream_the_same(tiny: Server) -> None:
    sentences = [f"Number {name} is here. {FOX}" for name in ("one", "two", "three", "four", "five", "six")]
    samples = timeline(*(part for sentence in sentences for part in (sentence, 0.8, DOOR, 1.2)))
    collected = post(tiny, wav(samples), chunking_strategy="auto", response_format="verbose_json").json()
    spans = collected["starling"]["vad"]["spans"]
    assert len(spans) >= 2
    assert all(end - start <= 30 for start, end in spans)
    assert collected["text"].lower().count("fox") == 6
    assert collected["text"].lower().count("window") == 6
    edges = [edge for segment in collected["segments"] for edge in (segment["start"], segment["end"])]
    assert edges == sorted(edges)
    events, _ = told(post(tiny, wav(samples), chunking_strategy="auto", stream="true").content)
    deltas = [event.data["delta"] for event in events if event.name == "transcript.text.delta"]
    assert "".join(deltas) == events[-1].data["text"] == collected["text"]
    progress = [event.data for event in events if event.name == "transcript.progress"]
    assert [each["done"] for each in progress] == sorted(each["done"] for each in progress)
    assert progress[-1]["done"] == pytest.approx(progress[-1]["total"], abs=0.1)


@pytest.mark.shared
def test_hint_terms_are_heard_and_reported(base: Server, recordings: Path) -> None:
    clip = recordings / "ls-2033-164914-0002.flac"
    plain = post(base, clip).json()
    hinted = post(base, clip, vocabulary="distichs, eunuch, distichs").json()
    assert "eunuch" not in plain["text"]
    assert "eunuch" in hinted["text"]
    assert "distichs" not in hinted["text"]
    report = hinted["starling"]["vocabulary"]
    assert (report["given"], report["fitted"], report["budget"]) == (3, 2, 223)
    assert 2 <= report["tokens"] <= 12


@pytest.mark.parametrize("terms", ["Chromecast", "crayfish, lobster", "Liddy, Jamieson, Newberg, Delmonico, Nuzhat"])
def test_hint_terms_do_not_make_silence_speak(base: Server, hiss: bytes, terms: str) -> None:
    for audio in (hiss, wav(np.zeros(30 * SAMPLE_RATE, np.int16))):
        assert post(base, audio, vocabulary=terms).json()["text"] == ""


def test_the_oracle_takes_hint_terms_and_the_gate(tiny: Server) -> None:
    samples = timeline(FOX, 10.0, DOOR)
    fields = {"vocabulary": "fox", "vad": "true"}
    ours, theirs = (post(tiny, wav(samples), faithful=faithful, **fields).json() for faithful in ("false", "true"))
    assert theirs["text"] == ours["text"]
    assert theirs["starling"]["vocabulary"] == ours["starling"]["vocabulary"]
    assert theirs["starling"]["vad"] == ours["starling"]["vad"]
