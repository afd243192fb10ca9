"""The spectrogram a window at a time against mlx-whisper's whole one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from workers import blas
from workers.whisper.mel import LogMel


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("samples", [160, 200, 399, 8000, 16000 * 7 + 77, 16000 * 31 + 159, 16000 * 65])
def test_windows_equal_the_reference(fast_blas: blas.Blas, samples: int, n_mels: int) -> None:
    import mlx.core as mx
    from mlx_whisper.audio import N_SAMPLES, log_mel_spectrogram

    generator = np.random.default_rng(samples)
    audio = (generator.normal(size=samples) * np.linspace(0.001, 0.3, samples)).astype(np.float32)
    whole = np.array(log_mel_spectrogram(mx.array(audio), n_mels=n_mels, padding=N_SAMPLES))
    padded = np.concatenate([audio, np.zeros(N_SAMPLES * 2, np.float32)])
    mel = LogMel(lambda a, b: padded[a:b].copy(), samples, n_mels)
    while not mel.scan(1000):
        pass
    assert mel.frames == len(whole) - 3000
    for seek in range(0, mel.frames, 1234):
        size = min(3000, mel.frames - seek)
        window = mel.window(seek, size)
        assert np.abs(window[:size] - whole[seek : seek + size]).max() < 1e-4
        assert not window[size:].any()


def test_silence_is_the_references_silence() -> None:
    mel = LogMel(lambda a, b: np.zeros(b - a, np.float32), 16000, 80)
    assert mel.scan(10_000)
    np.testing.assert_allclose(mel.window(0, 100)[:100], -1.5, atol=1e-6)


def test_a_recording_that_grew_has_the_windows_of_the_whole_one() -> None:
    """Its loudest sound comes first: what comes later could not have been known."""
    samples = 16000 * 65
    generator = np.random.default_rng(1)
    audio = (generator.normal(size=samples) * np.linspace(0.3, 0.001, samples)).astype(np.float32)

    def read_up_to(end: int) -> Callable[[int, int], np.ndarray]:
        padded = np.concatenate([audio[:end], np.zeros(16000 * 60, np.float32)])
        return lambda a, b: padded[a:b].copy()

    whole = LogMel(read_up_to(samples), samples, 80)
    assert whole.scan(10_000)
    scanned, loudest = 0, None
    for end in (480_039, 700_001, samples):
        grown = LogMel(read_up_to(end), end, 80, scanned=scanned, loudest=loudest)
        assert grown.scan(10_000)
        size = min(3000, grown.frames - scanned - 1)
        np.testing.assert_array_equal(grown.window(scanned, size), whole.window(scanned, size))
        scanned, loudest = scanned + 1000, grown.loudest


def test_the_last_sample_of_a_recording_makes_no_sound_of_its_own() -> None:
    """Where audio breaks off in mid-wave the last frames are louder than what was recorded; more audio undoes that."""
    tone = (0.5 * np.sin(np.arange(16000) * 0.3)).astype(np.float32)
    broken = LogMel(lambda a, b: np.pad(tone, (0, 1000))[a:b].copy(), len(tone), 80)
    whole = LogMel(lambda a, b: np.pad(np.tile(tone[:-1], 2), (0, 1000))[a:b].copy(), len(tone), 80)
    assert broken.scan(1000)
    assert whole.scan(1000)
    assert broken.loudest <= whole.window(0, 100).max() * 4 - 4 + 1e-5
