"""Turns any media file into 16 kHz mono s16le, a block at a time, within limits of length, time and space.

Knows what Whisper wants and what a client may send; knows nothing of frames on a pipe or of other jobs.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from protocol.errors import (
    AudioTooLong,
    DiskFull,
    EmptyAudio,
    Failure,
    InternalError,
    RequestTimeout,
    UndecodableAudio,
)
from protocol.events import Decoded, Progress
from protocol.settings import SAMPLE_RATE, MediaSettings
from workers.media.convert import Converter, to_s16le
from workers.media.readers import Floats, Opened, Unreadable, open_readers

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
        if isinstance(error, OSError):
            raise storage_failure(error) from error
        raise


def storage_failure(error: OSError) -> Failure:
    """What an error of the file system means for the job that met it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("there is no room left to store the decoded recording")
    return InternalError("the recording could not be read or stored")


def _decode(source: str, target: str, settings: MediaSettings) -> Steps:
    started = time.monotonic()
    limits = _Limits(settings.max_audio_seconds, settings.max_decode_seconds, started + settings.max_decode_seconds)
    size = Path(source).stat().st_size
    if not size:
        raise EmptyAudio("the file is empty", param="file")
    reason = ""
    for open_reader in open_readers(source, limits.expired):
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


def _copy(opened: Opened, file: BinaryIO, size: int, limits: _Limits) -> Generator[Progress, None, int]:
    """Convert all blocks into `file`; the samples written. `size`: bytes of the source."""
    claimed = opened.claimed_seconds
    if claimed * _MIN_BYTES_PER_SECOND > size:
        claimed = 0.0
    limits.check_length(claimed)
    yield Progress(0.0, claimed)
    converter = Converter()
    samples = 0
    for block in opened.blocks:
        limits.check_time()
        if block is not None:
            samples += _write(file, converter.convert(block))
            limits.check_length(samples / SAMPLE_RATE)
        done = samples / SAMPLE_RATE
        yield Progress(done, max(done, claimed) if claimed else 0.0)
    samples += _write(file, converter.flush())
    limits.check_time()
    if not samples:
        raise EmptyAudio("the file holds no audio samples", param="file")
    return samples


def _write(file: BinaryIO, samples: Floats) -> int:
    """Append `samples`; their number."""
    file.write(to_s16le(samples))
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
