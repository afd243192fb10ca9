"""WAV and what its headers say: placeholder sizes, sample formats, rates, absurdities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import UndecodableAudio
from protocol.settings import MediaSettings
from tests import audio_inputs as make
from tests.workers.media.outcome import SECONDS, Outcome, refusal, similarity


@pytest.mark.parametrize(
    ("riff_size", "data_size"),
    [
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x7FFFFFFF, 0x7FFFFFFF - 36),
        (2_000_000_036, 2_000_000_000),
        (0, 0xFFFFFFFF),
        (0, 0),
        (36, 0),
    ],
)
def test_placeholder_sizes_of_a_streamed_wav_are_read_to_the_end_of_the_file(
    riff_size: int, data_size: int, sentence: make.Audio, tmp_path: Path
) -> None:
    data = make.riff(make.s16le(sentence), riff_size=riff_size, data_size=data_size)
    heard = Outcome(data, tmp_path, MediaSettings(max_audio_seconds=60))
    assert np.array_equal(heard.samples, np.frombuffer(make.s16le(sentence), "<i2").astype(np.float32) / 32768)


@pytest.mark.parametrize(
    ("subtype", "likeness"),
    [
        ("PCM_U8", 0.995),
        ("PCM_24", 0.9999),
        ("PCM_32", 0.9999),
        ("FLOAT", 0.9999),
        ("DOUBLE", 0.9999),
        ("ULAW", 0.995),
        ("ALAW", 0.995),
        ("IMA_ADPCM", 0.98),
        ("MS_ADPCM", 0.98),
        ("GSM610", 0.8),
    ],
)
def test_a_sample_format_is_read_as_what_it_is(
    subtype: str, likeness: float, sentence: make.Audio, tmp_path: Path
) -> None:
    heard = Outcome(make.sound(sentence, subtype=subtype), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > likeness


def test_wave_extensible_with_24_bits_is_read(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.extensible_24(sentence), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.01)
    assert similarity(heard.samples, sentence) > 0.9999


def test_mp3_within_a_wav_is_left_to_ffmpeg(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.encode(sentence, "wav", "libmp3lame"), tmp_path)
    assert heard.decoded.decoder == "pyav"
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > 0.98


def test_64_bit_integers_are_read_though_libsndfile_has_none(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.s64_wav(sentence), tmp_path)
    assert heard.decoded.decoder == "pyav"
    assert similarity(heard.samples, sentence) > 0.9999


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 32_000, 44_100, 48_000, 96_000, 192_000])
def test_a_rate_changes_neither_length_nor_sound(rate: int, sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.sound(make.at_rate(sentence, rate), rate=rate), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.01)
    assert similarity(heard.samples, sentence) > (0.97 if rate < 16_000 else 0.999)


def test_nan_and_infinite_samples_become_silence(sentence: make.Audio, tmp_path: Path) -> None:
    broken = sentence.copy()
    broken[1000:1100], broken[2000:2100], broken[3000:3100] = np.nan, np.inf, -np.inf
    heard = Outcome(make.sound(broken, subtype="FLOAT"), tmp_path)
    assert not np.any(heard.samples[[1050, 2050, 3050]])
    assert similarity(heard.samples[4000:], sentence[4000:]) > 0.9999


@pytest.mark.parametrize(
    "form",
    [
        make.wav_format(rate=0),
        make.wav_format(rate=1),
        make.wav_format(rate=10_000_000),
        make.wav_format(channels=0),
        make.wav_format(channels=1000),
        make.wav_format(channels=65_535),
        make.wav_format(tag=0x55),
        make.wav_format(tag=0x1234),
    ],
    ids=["0 Hz", "1 Hz", "10 MHz", "no channel", "1000 channels", "65535 channels", "mp3 within", "unknown codec"],
)
def test_an_absurd_wav_header_is_undecodable(form: bytes, sentence: make.Audio, tmp_path: Path) -> None:
    assert isinstance(refusal(make.riff(make.s16le(sentence), form), tmp_path), UndecodableAudio)
