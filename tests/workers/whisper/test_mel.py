"""The spectrogram a window at a time against mlx-whisper's whole one."""

from __future__ import annotations

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
