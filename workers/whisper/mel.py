"""Whisper's log-mel spectrogram in numpy, a window at a time. Knows samples and filters, no model and no file.

The values are clamped at the whole recording's maximum less 8 (openai/whisper audio.py), so the maximum comes
first, in a pass that keeps nothing: memory stays flat on hours of audio.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from workers.whisper import reference

Floats = npt.NDArray[np.float32]

N_FFT = 400
HOP = 160
N_FRAMES = 3000
"""Mel frames of 10 ms in a window of 30 s."""
CHUNK = 500
"""Frames transformed at once: 2 MB of scratch, about the size of a core's cache."""
SILENCE = np.float32(-10.0)
"""log10 of the least power told apart, 1e-10: what the 30 s of padding become."""


@cache
def filters(n_mels: int) -> Floats:
    """The mel filterbank that mlx-whisper ships, transposed: (201, n_mels)."""
    with np.load(reference.folder() / "assets" / "mel_filters.npz") as banks:
        return np.ascontiguousarray(banks[f"mel_{n_mels}"].T, dtype=np.float32)


_WINDOW = np.hanning(N_FFT + 1)[:-1].astype(np.float32)


def log_power(samples: Floats, n_mels: int) -> Floats:
    """samples: (400 + 160 * (frames - 1),) -> log10 of the mel power, (frames, n_mels)."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, N_FFT)[::HOP]
    spectrum = np.fft.rfft(frames * _WINDOW, axis=-1)
    power = spectrum.real**2 + spectrum.imag**2
    mel = np.asarray(power @ filters(n_mels), np.float32)
    np.maximum(mel, np.float32(1e-10), out=mel)
    np.log10(mel, out=mel)
    return mel


class LogMel:
    """The spectrogram of one recording. `read(start, stop)` gives its samples, silence past the end."""

    def __init__(
        self,
        read: Callable[[int, int], Floats],
        samples: int,
        n_mels: int,
        *,
        scanned: int = 0,
        loudest: float | None = None,
    ) -> None:
        """`loudest`, if known: of the first `scanned` frames."""
        self._read = read
        self._n_mels = n_mels
        self.frames = samples // HOP
        """Frames with content; a last part of a hop is left out, as in the reference."""
        # Frames whose 25 ms still touch a sample; all later ones are silence.
        self._touched = (samples + N_FFT // 2) // HOP + 1 if samples else 0
        # Frames whose 25 ms lie wholly within the samples: a recording that grows keeps them.
        self._whole = max(0, (samples - N_FFT // 2) // HOP + 1)
        self._scanned = 0 if loudest is None else min(scanned, self._touched)
        self._max = SILENCE if loudest is None else np.float32(loudest)
        self._loudest = self._max

    @property
    def loudest(self) -> float:
        """log10 of the greatest power in what was scanned, but for frames that more samples would change."""
        return float(self._loudest)

    def scan(self, frames: int) -> bool:
        """Look for the maximum in the next `frames` frames. -> whether it is known now."""
        stop = min(self._touched, self._scanned + frames)
        for first in range(self._scanned, stop, CHUNK):
            power = self._power(first, min(stop, first + CHUNK))
            self._max = max(self._max, power.max())
            self._loudest = max(self._loudest, power[: max(0, self._whole - first)].max(initial=SILENCE))
        self._scanned = stop
        return self._scanned >= self._touched

    def window(self, seek: int, size: int) -> Floats:
        """Frames [seek, seek + size) of the finished scan -> (3000, n_mels), zero after `size`, as the reference
        pads."""
        window = np.zeros((N_FRAMES, self._n_mels), np.float32)
        for first in range(seek, seek + size, CHUNK):
            last = min(seek + size, first + CHUNK)
            window[first - seek : last - seek] = self._power(first, last)
        spoken = window[:size]
        np.maximum(spoken, self._max - np.float32(8.0), out=spoken)
        spoken += np.float32(4.0)
        spoken /= np.float32(4.0)
        return window

    def _power(self, first: int, last: int) -> Floats:
        """log_power of frames [first, last); the recording is mirrored at its start, as a centred STFT does."""
        start, stop = first * HOP - N_FFT // 2, (last - 1) * HOP + N_FFT // 2
        if start >= 0:
            return log_power(self._read(start, stop), self._n_mels)
        mirrored = self._read(1, 1 - start)[::-1]
        return log_power(np.concatenate([mirrored, self._read(0, stop)]), self._n_mels)
