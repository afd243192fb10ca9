"""Speech in any channel of a file is heard at its level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import audio_inputs as make
from tests.speech import speak
from tests.workers.media.outcome import SECONDS, Outcome, level_db, similarity
from workers.media.mix import BLOCK, Mixer


def hum(samples: int, level: float) -> make.Audio:
    at = np.arange(samples) / 16_000
    return (level * (np.sin(2 * np.pi * 50 * at) + 0.4 * np.sin(2 * np.pi * 150 * at))).astype(np.float32)


@pytest.mark.parametrize(
    ("channels", "speaking"), [(2, 0), (2, 1), (6, 2), (6, 4), (8, 7)], ids=lambda number: str(number)
)
def test_speech_in_one_channel_alone_keeps_its_level(
    channels: int, speaking: int, sentence: make.Audio, tmp_path: Path
) -> None:
    audio = np.zeros((len(sentence), channels), np.float32)
    audio[:, speaking] = sentence
    heard = Outcome(make.sound(audio), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.01)
    assert similarity(heard.samples, sentence) > 0.999
    assert level_db(heard.samples, sentence) == pytest.approx(0, abs=0.5)


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (1, -1, 1, -1, 1, -1)], ids=str)
def test_the_same_speech_in_all_channels_neither_cancels_nor_clips(
    signs: tuple[int, ...], sentence: make.Audio, tmp_path: Path
) -> None:
    audio = sentence[:, None] * np.array(signs, np.float32)
    heard = Outcome(make.sound(audio), tmp_path)
    assert similarity(heard.samples, sentence) > 0.999
    assert level_db(heard.samples, sentence) == pytest.approx(0, abs=0.5)


def test_quiet_speech_is_heard_beside_a_loud_hum(sentence: make.Audio, tmp_path: Path) -> None:
    quiet = 0.1 * sentence
    heard = Outcome(make.sound(np.stack([hum(len(quiet), 0.5), quiet], 1), subtype="FLOAT"), tmp_path)
    assert level_db(heard.samples, quiet) == pytest.approx(0, abs=1)
    assert similarity(heard.samples, quiet) > 0.9


def test_quiet_speech_is_heard_beside_noise(sentence: make.Audio, tmp_path: Path) -> None:
    quiet = 0.3 * sentence
    noise = np.random.default_rng(1).standard_normal(len(quiet)).astype(np.float32) * 10 ** (-30 / 20)
    heard = Outcome(make.sound(np.stack([noise, quiet], 1)), tmp_path)
    assert level_db(heard.samples, quiet) == pytest.approx(0, abs=1)
    assert similarity(heard.samples, quiet) > 0.99


def test_opposite_phase_speech_survives_a_hum_that_is_in_phase(sentence: make.Audio, tmp_path: Path) -> None:
    noise, quiet = hum(len(sentence), 0.3), 0.3 * sentence
    heard = Outcome(make.sound(np.stack([noise + quiet, noise - quiet], 1)), tmp_path)
    assert similarity(heard.samples, quiet) > 0.99


def test_two_voices_in_two_channels_are_both_heard(tmp_path: Path) -> None:
    texts = ("The quick brown fox jumps over the lazy dog.", "Nine small boats came home before the storm.")
    first, second = (speak(text)[0].astype(np.float32) / 65536 for text in texts)
    length = min(len(first), len(second))
    heard = Outcome(make.sound(np.stack([first[:length], second[:length]], 1)), tmp_path)
    for voice in (first[:length], second[:length]):
        assert level_db(heard.samples, voice) == pytest.approx(0, abs=1.5)


def test_the_mix_does_not_depend_on_how_the_file_is_packed(sentence: make.Audio, tmp_path: Path) -> None:
    audio = np.rint(32768 * np.stack([0.5 * sentence, np.roll(0.3 * sentence, 4000)], 1)).astype(np.int16)
    as_flac, as_wav = Outcome(make.sound(audio, "FLAC"), tmp_path), Outcome(make.sound(audio), tmp_path)
    assert as_flac.decoded.decoder != as_wav.decoded.decoder
    assert np.array_equal(as_flac.samples, as_wav.samples)


def test_of_equal_channels_nothing_is_held_back_after_two_blocks(sentence: make.Audio) -> None:
    mixer, pieces = Mixer(2), np.array_split(sentence, 37)
    told = [mixer.push(np.stack([piece, piece], 1)) for piece in pieces]
    given, came = np.cumsum([len(each) for each in told]), np.cumsum([len(piece) for piece in pieces])
    assert np.array_equal(given, np.where(came < 2 * BLOCK, 0, came))
    assert np.array_equal(np.concatenate(told), sentence)
    assert len(mixer.flush()) == 0


def mixed(audio: make.Audio, size: int) -> tuple[make.Audio, int]:
    """All of it given in pieces of so many samples, and how many came before the end."""
    mixer = Mixer(audio.shape[1])
    pieces = [mixer.push(audio[at : at + size]) for at in range(0, len(audio), size)]
    return np.concatenate([*pieces, mixer.flush()]), sum(map(len, pieces))


@pytest.mark.parametrize("apart", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 777])
def test_channels_that_part_are_mixed_from_there_on_however_they_are_cut(apart: int, sentence: make.Audio) -> None:
    audio = np.stack([sentence, sentence], 1)
    audio[apart:, 1] = 0.4 * np.roll(sentence, 3000)[apart:]
    whole, _ = mixed(audio, len(audio))
    assert len(whole) == len(audio)
    if apart >= 2 * BLOCK:
        assert np.array_equal(whole[:apart], sentence[:apart])
    assert level_db(whole[apart:], sentence[apart:]) == pytest.approx(0, abs=6)
    for size in (160, 5_000, BLOCK):
        again, early = mixed(audio, size)
        assert np.array_equal(again, whole)
        assert early >= max(apart if apart >= 2 * BLOCK else 0, (len(audio) // BLOCK - 1) * BLOCK)
