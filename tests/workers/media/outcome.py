"""Decodes bytes as if a client had sent them, and compares what is heard with what was said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import Failure
from protocol.events import Decoded, Progress
from protocol.settings import MediaSettings
from tests import audio_inputs as make
from workers.media.decode import decode_steps

SECONDS = 3.122
"""Of the sentence that all inputs are made of."""


class Outcome:
    """A decoded file: the last event, the progress before it and the samples."""

    def __init__(self, data: bytes, folder: Path, settings: MediaSettings | None = None, name: str = "upload") -> None:
        source, self.target = folder / name, folder / "decoded"
        source.write_bytes(data)
        steps = decode_steps(str(source), str(self.target), settings or MediaSettings())
        self.progress: list[Progress] = []
        while True:
            try:
                self.progress.append(next(steps))
            except StopIteration as end:
                self.decoded: Decoded = end.value
                break
        self.samples = np.fromfile(self.target, "<i2").astype(np.float32) / 32768
        assert len(self.samples) == self.decoded.samples

    @property
    def seconds(self) -> float:
        return self.decoded.samples / 16_000


def similarity(heard: make.Audio, said: make.Audio) -> float:
    """Normalised correlation, 1 for the same wave, at the best shift: codecs delay."""
    size = 1 << (len(heard) + len(said)).bit_length()
    spectrum = np.fft.rfft(heard, size) * np.conj(np.fft.rfft(said, size))
    return float(np.max(np.abs(np.fft.irfft(spectrum, size))) / (np.linalg.norm(heard) * np.linalg.norm(said) + 1e-9))


def level_db(heard: make.Audio, said: make.Audio) -> float:
    """How loud `said` is within `heard`; 0 for full level. Both begin together."""
    return float(20 * np.log10(abs(np.dot(heard, said)) / np.dot(said, said) + 1e-9))


def refusal(data: bytes, folder: Path, settings: MediaSettings | None = None, name: str = "upload") -> Failure:
    with pytest.raises(Failure) as caught:
        Outcome(data, folder, settings, name)
    assert not (folder / "decoded").exists()
    return caught.value
