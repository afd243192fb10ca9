"""Blocks of samples as readers give them to 16 kHz mono, the same however they were cut.

Knows what Whisper wants of samples; knows no file and no limit of time or length.
"""

from __future__ import annotations

import numpy as np
import soxr

from protocol.errors import UndecodableAudio
from protocol.settings import SAMPLE_RATE
from workers.media.mix import Mixer
from workers.media.readers import Block, Floats

RATES = range(1_000, 768_001)
"""Samples per second that a header may claim: beyond both ends are only damaged ones, and 1 Hz would make each
byte of an upload four hours of sound."""

MAX_CHANNELS = 64

_LOUDEST = 16.0
"""Full scale is 1; a float sample beyond this is damage, and squares of 1e30 would overflow further on."""

_NOTHING = np.zeros(0, np.float32)


class Converter:
    """One recording's blocks to 16 kHz mono. Where their rate or channel count changes, it begins anew."""

    def __init__(self) -> None:
        self._current: _Format | None = None

    def convert(self, block: Block) -> Floats:
        """What is ready, mono at 16 kHz. Samples that are no numbers become silence.

        Raises UndecodableAudio for a rate or a number of channels that no recording has.
        """
        if self._current is not None and self._current.fits(block):
            return self._current.convert(block)
        rest = self.flush()
        self._current = _Format(block)
        return np.concatenate([rest, self._current.convert(block)])

    def flush(self) -> Floats:
        """What resampler and mixer still hold."""
        held = self._current.flush() if self._current is not None else _NOTHING
        self._current = None
        return held


def to_s16le(samples: Floats) -> bytes:
    """`samples`, clipped to full scale."""
    return bytes(np.clip(np.rint(samples * 32768.0), -32768, 32767).astype("<i2").data)


class _Format:
    """Blocks of one rate and channel count; owns the resampler's and the mixer's state."""

    def __init__(self, block: Block) -> None:
        self._rate, self._channels = block.rate, block.samples.shape[1]
        if self._rate not in RATES:
            raise UndecodableAudio(f"the file claims {self._rate} samples per second", param="file")
        if self._channels > MAX_CHANNELS:
            raise UndecodableAudio(f"the file claims {self._channels} channels", param="file")
        self._mixer = Mixer(self._channels)
        same = self._rate == SAMPLE_RATE
        self._resampler = None if same else soxr.ResampleStream(self._rate, SAMPLE_RATE, self._channels, "float32")

    def fits(self, block: Block) -> bool:
        return (block.rate, block.samples.shape[1]) == (self._rate, self._channels)

    def convert(self, block: Block) -> Floats:
        # Contiguous, so that sums run in one order whichever reader the samples come from.
        finite = np.nan_to_num(np.ascontiguousarray(block.samples), nan=0.0, posinf=0.0, neginf=0.0)
        return self._mixer.push(self._resample(np.clip(finite, -_LOUDEST, _LOUDEST), last=False))

    def flush(self) -> Floats:
        tail = self._resample(np.zeros((0, self._channels), np.float32), last=True)
        return np.concatenate([self._mixer.push(tail), self._mixer.flush()])

    def _resample(self, samples: Floats, last: bool) -> Floats:
        if self._resampler is None:
            return samples
        resampled: Floats = self._resampler.resample_chunk(samples, last=last)
        return resampled
