"""Turns any media file into 16 kHz mono s16le, a block at a time, within limits of length, time and space.

Knows what Whisper wants and what a client may send; knows nothing of frames on a pipe or of other jobs.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soxr

from protocol.errors import AudioTooLong, DiskFull, EmptyAudio, InternalError, RequestTimeout, UndecodableAudio
from protocol.events import Decoded, Progress
from protocol.settings import SAMPLE_RATE, MediaSettings
from workers.media.containers import is_for_soundfile
from workers.media.mix import Mixer
from workers.media.readers import Block, Floats, Opened, Unreadable, open_av, open_soundfile

RATES = range(1_000, 768_001)
"""Samples per second that a header may claim: beyond both ends are only damaged ones, and 1 Hz would make each
byte of an upload four hours of sound."""

MAX_CHANNELS = 64

_LOUDEST = 16.0
"""Full scale is 1; a float sample beyond this is damage, and squares of 1e30 would overflow further on."""

_MIN_BYTES_PER_SECOND = 50
"""A header's duration is believed only when the file could hold it: no codec says anything in 400 bit/s."""

Steps = Generator[Progress, None, Decoded]


def decode_steps(source: str, target: str, settings: MediaSettings) -> Steps:
    """Write `source` to `target` as 16 kHz mono s16le; between two steps it may be closed to cancel.

    Each step takes a fraction of a second. Memory does not grow with the recording. Unless it ends with Decoded,
    `target` is removed. Raises UndecodableAudio, EmptyAudio, AudioTooLong, RequestTimeout, DiskFull, InternalError.
    """
    try:
        return (yield from _decode(source, target, settings))
    except BaseException as error:
        Path(target).unlink(missing_ok=True)
        if isinstance(error, MemoryError):
            raise UndecodableAudio("decoding the file takes more memory than is allowed", param="file") from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("there is no room left to store the decoded recording") from error
        if isinstance(error, OSError):
            raise InternalError("the recording could not be read or stored") from error
        raise


def _decode(source: str, target: str, settings: MediaSettings) -> Steps:
    started = time.monotonic()
    limits = _Limits(settings.max_audio_seconds, settings.max_decode_seconds, started + settings.max_decode_seconds)
    size = Path(source).stat().st_size
    if not size:
        raise EmptyAudio("the file is empty", param="file")
    reason = ""
    for open_reader in _readers(source, limits.expired):
        try:
            with open_reader as opened, Path(target).open("wb") as file:
                samples = yield from _copy(opened, file, size, limits)
        except Unreadable as error:
            reason = str(error)
            limits.check_time()
            continue
        elapsed_ms = (time.monotonic() - started) * 1000
        return Decoded(samples, opened.decoder, opened.container, elapsed_ms)
    raise UndecodableAudio(f"the file cannot be decoded as audio: {reason}", param="file")


def _readers(source: str, expired: Callable[[], bool]) -> list[AbstractContextManager[Opened]]:
    """What to try, in this order."""
    ffmpeg = open_av(source, expired)
    return [open_soundfile(source), ffmpeg] if is_for_soundfile(source) else [ffmpeg]


def _copy(opened: Opened, file: BinaryIO, size: int, limits: _Limits) -> Generator[Progress, None, int]:
    """Convert all blocks into `file`; the samples written. `size`: bytes of the source."""
    claimed = opened.claimed_seconds
    if claimed * _MIN_BYTES_PER_SECOND > size:
        claimed = 0.0
    limits.check_length(claimed)
    yield Progress(0.0, claimed)
    converter: _Converter | None = None
    samples = 0
    for block in opened.blocks:
        limits.check_time()
        if block is not None:
            if converter is None or not converter.fits(block):
                samples += _write(file, converter.flush()) if converter else 0
                converter = _Converter(block)
            samples += _write(file, converter.convert(block))
            limits.check_length(samples / SAMPLE_RATE)
        done = samples / SAMPLE_RATE
        yield Progress(done, max(done, claimed) if claimed else 0.0)
    samples += _write(file, converter.flush()) if converter else 0
    limits.check_time()
    if not samples:
        raise EmptyAudio("the file holds no audio samples", param="file")
    return samples


def _write(file: BinaryIO, samples: Floats) -> int:
    """Append `samples`, clipped to full scale, as s16le; their number."""
    file.write(np.clip(np.rint(samples * 32768.0), -32768, 32767).astype("<i2").tobytes())
    return len(samples)


@dataclass(frozen=True)
class _Limits:
    max_audio_seconds: float
    max_decode_seconds: float
    deadline: float
    """On the monotonic clock."""

    def expired(self) -> bool:
        return time.monotonic() > self.deadline

    def check_time(self) -> None:
        if self.expired():
            raise RequestTimeout(f"decoding the file takes more than {self.max_decode_seconds:g} seconds")

    def check_length(self, seconds: float) -> None:
        if seconds > self.max_audio_seconds:
            raise AudioTooLong(f"the recording is longer than {self.max_audio_seconds:g} seconds", param="file")


class _Converter:
    """Blocks of one rate and channel count to 16 kHz mono; owns the resampler's and the mixer's state."""

    def __init__(self, block: Block) -> None:
        """Raises UndecodableAudio for a rate or a number of channels that no recording has."""
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
        """What is ready of it, mono at 16 kHz. Samples that are no numbers become silence."""
        # Contiguous, so that sums run in one order whichever reader the samples come from.
        finite = np.nan_to_num(np.ascontiguousarray(block.samples), nan=0.0, posinf=0.0, neginf=0.0)
        return self._mixer.push(self._resample(np.clip(finite, -_LOUDEST, _LOUDEST), last=False))

    def flush(self) -> Floats:
        """What resampler and mixer still hold."""
        tail = self._resample(np.zeros((0, self._channels), np.float32), last=True)
        return np.concatenate([self._mixer.push(tail), self._mixer.flush()])

    def _resample(self, samples: Floats, last: bool) -> Floats:
        if self._resampler is None:
            return samples
        resampled: Floats = self._resampler.resample_chunk(samples, last=last)
        return resampled
