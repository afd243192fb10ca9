"""Good files of all kinds: each gives all of its sound, whatever its name and its writer's habits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import audio_inputs as make
from tests.workers.media.outcome import SECONDS, Outcome, similarity

READ_BY: dict[str, tuple[str, float]] = {
    # a container: (who reads it, least similarity)
    "wav": ("soundfile", 0.9999),
    "rf64": ("soundfile", 0.9999),
    "w64": ("soundfile", 0.9999),
    "aiff": ("soundfile", 0.9999),
    "au": ("soundfile", 0.9999),
    "caf": ("pyav", 0.9999),
    "flac": ("pyav", 0.9999),
    "flac from a pipe": ("pyav", 0.9999),
    "mp3": ("pyav", 0.98),
    "ogg vorbis": ("pyav", 0.98),
    "ogg opus": ("pyav", 0.98),
    "webm opus": ("pyav", 0.98),
    "m4a aac": ("pyav", 0.98),
    "m4a alac": ("pyav", 0.9999),
    "mp4 with a picture": ("pyav", 0.98),
    "mov with a picture": ("pyav", 0.98),
    "fragmented mp4": ("pyav", 0.98),
    "aac adts": ("pyav", 0.98),
    "mpeg transport stream": ("pyav", 0.98),
    "wma": ("pyav", 0.95),
    "amr": ("pyav", 0.7),
    "avi": ("pyav", 0.98),
    "matroska": ("pyav", 0.9999),
    "wavpack": ("pyav", 0.98),
}


@pytest.mark.parametrize("kind", make.CONTAINERS)
def test_a_container_gives_all_of_its_sound(kind: str, sentence: make.Audio, tmp_path: Path) -> None:
    decoder, likeness = READ_BY[kind]
    heard = Outcome(make.CONTAINERS[kind](sentence), tmp_path)
    assert heard.decoded.decoder == decoder
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > likeness
    assert np.linalg.norm(heard.samples) == pytest.approx(np.linalg.norm(sentence), rel=0.15)


def test_16_khz_mono_pcm_passes_unchanged(sentence: make.Audio, tmp_path: Path) -> None:
    Outcome(make.riff(make.s16le(sentence)), tmp_path)
    assert (tmp_path / "decoded").read_bytes() == make.s16le(sentence)


@pytest.mark.parametrize("name", ["audio.wav", "talk.mp3", "CLIP.WEBM", "samples.raw", "noext", "list.m3u8"])
@pytest.mark.parametrize("kind", ["wav", "mp3", "webm opus", "m4a aac"])
def test_the_name_of_a_file_has_no_say(kind: str, name: str, sentence: make.Audio, tmp_path: Path) -> None:
    data = make.CONTAINERS[kind](sentence)
    assert np.array_equal(Outcome(data, tmp_path, name=name).samples, Outcome(data, tmp_path).samples)


def test_a_browsers_live_webm_without_duration_is_whole(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.live_webm(sentence), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > 0.98
    assert {step.total for step in heard.progress} == {0.0}


def test_a_live_webm_cut_at_70_percent_gives_what_is_there(sentence: make.Audio, tmp_path: Path) -> None:
    data = make.live_webm(sentence)
    heard = Outcome(data[: int(len(data) * 0.7)], tmp_path)
    assert heard.seconds == pytest.approx(0.7 * SECONDS, abs=0.2)
    assert similarity(heard.samples, sentence[: len(heard.samples)]) > 0.98


def test_an_ogg_from_a_pipe_is_whole(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.encode(sentence, "ogg", "libopus", 48_000, live=True), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)


def test_an_m4a_with_its_index_at_the_end_is_whole(sentence: make.Audio, tmp_path: Path) -> None:
    long = np.tile(sentence, 6)
    data = make.encode(np.stack([long, long], 1), "mp4", "aac", 48_000, bit_rate=256_000)
    assert data.index(b"moov") > data.index(b"mdat")
    heard = Outcome(data, tmp_path)
    assert heard.seconds == pytest.approx(6 * SECONDS, abs=0.1)
    assert similarity(heard.samples, long) > 0.98


def test_a_chained_ogg_goes_on_after_its_first_stream(sentence: make.Audio, tmp_path: Path) -> None:
    first = make.encode(sentence, "ogg", "libopus", 48_000, options={"serial_offset": "1"})
    second = make.encode(sentence, "ogg", "libopus", 48_000, options={"serial_offset": "2"})
    assert Outcome(first + second, tmp_path).seconds == pytest.approx(2 * SECONDS, abs=0.1)


def bare_mp3(sentence: make.Audio) -> bytes:
    """Variable bit rate, no Xing header, no tags."""
    return make.encode(
        sentence,
        "mp3",
        "libmp3lame",
        options={"write_xing": "0", "id3v2_version": "0"},
        codec_options={"flags": "+qscale", "global_quality": "590"},
    )


def padded_tag(size: int) -> bytes:
    return b"ID3\x03\0\0" + bytes((size >> shift) & 127 for shift in (21, 14, 7, 0)) + bytes(size)


MP3S: dict[str, make.Make] = {
    "with a cover": lambda x: make.encode(x, "mp3", "libmp3lame", cover=True, options={"id3v2_version": "3"}),
    "without Xing": bare_mp3,
    "with 300 KB of tag padding": lambda x: padded_tag(300_000) + bare_mp3(x),
    "with two tags": lambda x: padded_tag(1_000) + padded_tag(2_000) + bare_mp3(x),
    "with junk first": lambda x: np.random.default_rng(2).bytes(5_000).replace(b"\xff", b"\0") + bare_mp3(x),
    "with a tag at the end": lambda x: bare_mp3(x) + b"TAG" + bytes(125),
}


@pytest.mark.parametrize("kind", MP3S)
def test_an_mp3_of_any_upbringing_is_whole(kind: str, sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(MP3S[kind](sentence), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > 0.95


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "ogg opus", "aac adts", "fragmented mp4"])
def test_a_truncated_file_gives_what_is_there(kind: str, sentence: make.Audio, tmp_path: Path) -> None:
    data = make.CONTAINERS[kind](np.tile(sentence, 4))
    heard = Outcome(data[: len(data) * 6 // 10], tmp_path)
    assert 0.4 * 4 * SECONDS < heard.seconds < 0.75 * 4 * SECONDS
    assert similarity(heard.samples, np.tile(sentence, 4)[: len(heard.samples)]) > 0.95


@pytest.mark.parametrize("kind", ["flac", "mp3", "aac adts"])
def test_a_hole_in_a_file_costs_only_what_it_hit(kind: str, sentence: make.Audio, tmp_path: Path) -> None:
    data = bytearray(make.CONTAINERS[kind](np.tile(sentence, 4)))
    middle = len(data) // 2
    data[middle : middle + 300] = np.random.default_rng(5).bytes(300)
    assert Outcome(bytes(data), tmp_path).seconds > 0.8 * 4 * SECONDS
