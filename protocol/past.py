"""What a job on audio that grows goes on from, and what of it is written already.

Knows nothing about HTTP, processes or models.
"""

from __future__ import annotations

import msgspec


class Reached(msgspec.Struct, frozen=True):
    """Where a transcription stands between two windows, so that another job or process can go on from there."""

    seek: int
    """Mel frames of 10 ms from the start of the job's audio; with `independent`, of one of its spans."""
    said: tuple[int, ...] = ()
    """The tokens that the next window is conditioned on, without the vocabulary's."""
    language: str | None = None
    language_probability: float | None = None
    last_speech: float = 0.0
    """Seconds; where the last word ended."""
    end: float = 0.0
    """Seconds; where the last segment ended. None begins before it; 0: nothing was said yet."""
    loudest: float | None = None
    """log10 of the mel spectrogram's greatest power so far; None: not known. Windows are scaled by it."""
    track: int = 0
    """With `independent`: which span `seek` is in; all before it are done."""


class Past(msgspec.Struct, frozen=True):
    """A segment that other jobs said of the beginning of a job's audio. Times in seconds of that audio."""

    start: float
    end: float
    tokens: tuple[int, ...]
    """Timestamps among them do not count: `start` and `end` do."""


class Context(msgspec.Struct, frozen=True):
    """The beginning of a job's audio, which is written already: heard with the rest, and not said again. A second of
    speech alone is hard to understand, for Whisper as for anybody."""

    stop: int
    """Samples from the start of the job's audio: where that begins which is to be said."""
    said: tuple[Past, ...]
    """In order."""
