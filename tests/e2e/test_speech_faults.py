"""What speech servers were seen to get wrong on awkward recordings: silence and cut ends."""

from __future__ import annotations

import io
import re
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.e2e.server import Server
from tests.speech import SAMPLE_RATE, Samples, timeline

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]

GARDEN = "The children are playing in the garden."
DOOR = "Please open the window and close the door."
WORDS = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}


def wav(samples: Samples) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE, format="WAV")
    return file.getvalue()


def heard(server: Server, audio: Samples | bytes, **fields: Any) -> dict[str, Any]:
    """The answer, in verbose_json with words, once its times are what times must be."""
    file = audio if isinstance(audio, bytes) else wav(audio)
    answer = httpx.post(f"{server.url}/v1/audio/transcriptions", files={"file": file}, data=WORDS | fields, timeout=250)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    if not isinstance(audio, bytes):
        assert body["duration"] == pytest.approx(len(audio) / SAMPLE_RATE, abs=0.001)
    times = [at for each in body["segments"] for at in (each["start"], each["end"])]
    assert times == sorted(times) and all(0 <= at <= body["duration"] for at in times)
    for segment in body["segments"]:
        inner = [at for word in segment["words"] for at in (word["start"], word["end"])]
        assert inner == sorted(inner) and all(segment["start"] <= at <= segment["end"] for at in inner)
        assert "".join(word["word"] for word in segment["words"]).strip() == segment["text"].strip()
    return body


def said(body: dict[str, Any]) -> list[str]:
    return re.findall(r"[a-z]+", body["text"].lower())


def noise(seconds: float, db: float) -> Samples:
    """Hiss of that level."""
    level = 32768 * 10 ** (db / 20)
    return np.random.default_rng(1).normal(0, level, round(seconds * SAMPLE_RATE)).astype(np.int16)


def hum(seconds: float) -> Samples:
    at = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (330 * np.sin(2 * np.pi * 50 * at) + 130 * np.sin(2 * np.pi * 150 * at)).astype(np.int16)


SILENCES = {
    "6.64 s of zeros": timeline(6.64),
    "2.048 s of zeros": timeline(2.048),
    "35 s of zeros": timeline(35.0),
    "noise at -60 dB": noise(5, -60),
    "a fan at -50 dB": noise(10, -50),
    "a constant": np.full(3 * SAMPLE_RATE, 6500, np.int16),
    "mains hum": hum(30),
}


@pytest.mark.parametrize("kind", SILENCES)
def test_silence_says_nothing_in_no_language(base: Server, kind: str) -> None:
    body = heard(base, SILENCES[kind])
    assert (body["text"], body["segments"], body["words"], body["language"]) == ("", [], [], "unknown")


@pytest.mark.parametrize("seconds", [3.0, 20.0])
def test_silence_after_speech_adds_nothing(base: Server, seconds: float) -> None:
    assert said(heard(base, timeline(GARDEN, seconds))) == said(heard(base, timeline(GARDEN)))


@pytest.mark.parametrize("seconds", [7.31, 31.3])
def test_a_recording_that_ends_in_mid_sentence_has_its_times_within_it(tiny: Server, seconds: float) -> None:
    more = ("My brother bought a new car.", 0.4, "It was raining in the morning.", 0.4, "She reads many books.", 0.4)
    talk = np.tile(timeline(GARDEN, 0.4, DOOR, 0.4, *more), 3)[: round(seconds * SAMPLE_RATE)]
    assert len(talk) == round(seconds * SAMPLE_RATE)
    body = heard(tiny, talk, **{"temperature[]": "0"})
    assert {"children", "playing"} <= set(said(body))
    assert body["segments"][-1]["end"] > seconds - 4
