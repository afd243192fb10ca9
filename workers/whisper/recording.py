"""A job's audio: spans of a spool file read as one recording, and its times mapped back. Knows no mel and no model.

Read piece by piece, neither loaded nor mapped: four hours cost what one window costs.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from protocol.errors import RequestCancelled
from protocol.settings import SAMPLE_RATE

Floats = npt.NDArray[np.float32]

FULL_SCALE = 32768.0
"""What mlx-whisper's loader divides its 16-bit samples by."""


SAMPLE_BYTES = 2


class Spool:
    """A spool file, open for as long as anybody reads it: its owner may remove it meanwhile."""

    def __init__(self, path: str) -> None:
        """Raises RequestCancelled where the file is gone: its owner has removed it before the job was here."""
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise RequestCancelled("the recording was removed before it was transcribed") from error
        weakref.finalize(self, os.close, self._fd)
        self.samples = os.fstat(self._fd).st_size // SAMPLE_BYTES

    def read(self, start: int, stop: int) -> npt.NDArray[np.int16]:
        data = os.pread(self._fd, (stop - start) * SAMPLE_BYTES, start * SAMPLE_BYTES)
        return np.frombuffer(data, "<i2")


class Recording:
    """Spans of 16 kHz s16le, joined. Positions are samples of the joined recording, from 0."""

    def __init__(self, spool: Spool, start: int, stop: int, spans: Sequence[tuple[int, int]] | None = None) -> None:
        """`start`, `stop`: samples of the file. `spans`: the parts to hear, in samples from `start`; None: all."""
        stop = min(stop, spool.samples)
        whole = max(0, stop - start)
        parts = [(0, whole)] if spans is None else [(max(0, a), min(b, whole)) for a, b in spans]
        parts = [(a, b) for a, b in parts if b > a]
        self._spool = spool
        self._start = start
        self._spans = parts
        self._ends = list(accumulate(b - a for a, b in parts))
        self._begins = [end - (b - a) for end, (a, b) in zip(self._ends, parts, strict=True)]
        self._whole = whole

    @property
    def samples(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def duration(self) -> float:
        """Seconds of the joined recording."""
        return self.samples / SAMPLE_RATE

    def read(self, start: int, stop: int) -> Floats:
        """Samples in [-1, 1) as (stop - start,) float32. `start` >= 0; past the end there is silence."""
        found = np.zeros(stop - start, np.float32)
        for begin, end, (first, _) in zip(self._begins, self._ends, self._spans, strict=True):
            a, b = max(start, begin), min(stop, end)
            if a < b:
                at = self._start + first - begin
                found[a - start : b - start] = self._spool.read(at + a, at + b)
        found /= FULL_SCALE
        return found

    def original(self, seconds: float, *, end: bool = False) -> float:
        """Where a moment of the joined recording lies in the job's audio, in seconds.

        At a seam the moment belongs to the span that begins there, or, as an `end`, to the one that stops there.
        """
        if not self._spans:
            return 0.0
        at = seconds * SAMPLE_RATE
        # A whisker of tolerance: 5.0 s may arrive as 4.999999.
        index = bisect_left(self._ends, at - 0.5) if end else bisect_right(self._ends, at + 0.5)
        index = min(index, len(self._spans) - 1)
        first, last = self._spans[index]
        moved = min(max(first + at - self._begins[index], first), last)
        return float(moved / SAMPLE_RATE)

    @property
    def original_duration(self) -> float:
        """Seconds of the job's audio, cuts included."""
        return self._whole / SAMPLE_RATE
