"""Real recordings beside the checkout: one utterance in twelve containers, and broken files from other projects."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import EmptyAudio, Failure, UndecodableAudio
from protocol.events import Decoded
from protocol.settings import MediaSettings
from workers.media.decode import decode_steps

SPEECH = Path(__file__).parents[3] / ".." / "shared" / "speech"

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SPEECH.is_dir(), reason="there are no recordings beside the checkout"),
]

SECONDS = {
    "fmt-aiff.aiff": 10.435,
    "fmt-flac-44k-stereo.flac": 5.0,
    "fmt-m4a-aac.m4a": 10.435,
    "fmt-mp3-44k-stereo.mp3": 10.435,
    "fmt-ogg-opus.opus": 10.435,
    "fmt-ogg-vorbis.ogg": 10.435,
    "fmt-video.mp4": 10.435,  # the picture lasts twice as long as the sound
    "fmt-wav-f32.wav": 3.0,
    "fmt-wav16k.wav": 10.435,
    "fmt-wav48k-stereo-s24.wav": 2.0,
    "fmt-wav8k-mulaw.wav": 10.435,
    "fmt-webm-opus.webm": 10.435,
}


def decode(source: Path, folder: Path) -> Decoded:
    steps = decode_steps(str(source), str(folder / "decoded"), MediaSettings())
    while True:
        try:
            next(steps)
        except StopIteration as end:
            decoded: Decoded = end.value
            return decoded


@pytest.mark.parametrize("name", SECONDS)
def test_a_container_of_the_utterance_has_its_length_and_its_sound(name: str, tmp_path: Path) -> None:
    decoded = decode(SPEECH / "audio" / name, tmp_path)
    assert decoded.samples / 16_000 == pytest.approx(SECONDS[name], abs=0.1)
    heard = np.fromfile(tmp_path / "decoded", "<i2").astype(np.float32)
    decode(SPEECH / "audio" / "fmt-wav16k.wav", tmp_path)
    said = np.fromfile(tmp_path / "decoded", "<i2").astype(np.float32)[: len(heard)]
    size = 1 << 19
    match = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(said, size)), size)
    assert np.max(np.abs(match)) / (np.linalg.norm(heard) * np.linalg.norm(said)) > 0.95


def test_every_recording_has_the_length_that_its_list_says(tmp_path: Path) -> None:
    wrong = {}
    for line in (SPEECH / "manifest.jsonl").read_text().splitlines():
        clip = json.loads(line)
        if clip["id"] != "fmt-video" and clip["duration_s"] < 60:
            seconds = decode(SPEECH / clip["file"], tmp_path).samples / 16_000
            if abs(seconds - clip["duration_s"]) > 0.12:  # the list counts MP3 encoders' padding too
                wrong[clip["id"]] = (seconds, clip["duration_s"])
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("awful.wav", UndecodableAudio),  # 1,092,676 samples a second
        ("bad.wav", UndecodableAudio),
        ("empty.mp3", EmptyAudio),
        ("evil.wav", UndecodableAudio),
        ("null.wav", EmptyAudio),
        ("text.wav", UndecodableAudio),
    ],
)
def test_a_broken_file_is_refused_as_what_it_is(name: str, failure: type[Failure], tmp_path: Path) -> None:
    with pytest.raises(failure) as caught:
        decode(SPEECH / "invalid" / name, tmp_path)
    assert caught.value.param == "file"


def test_a_truncated_flac_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    assert decode(SPEECH / "invalid" / "truncated.flac", tmp_path).samples / 16_000 == pytest.approx(3.1, abs=0.1)
