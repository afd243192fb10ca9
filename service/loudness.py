"""How loud a spool file is: finds the moment at which cutting does least harm. Knows 16 kHz mono s16le alone.

Plain Python, because the service has no numpy: a second of audio takes about a millisecond.
"""

from __future__ import annotations

import sys
from array import array
from itertools import pairwise
from pathlib import Path

from protocol.settings import SAMPLE_RATE

FRAME = SAMPLE_RATE // 50
"""Samples in 20 ms, for which one level is computed."""
QUIET_FRAMES = 8
"""160 ms: longer than the closure before a plosive, which is quiet too but within a word."""

SAMPLE_BYTES = 2


def quietest(path: str, start: int, stop: int) -> int:
    """The middle of the quietest 160 ms between two samples of the file; the first of several.

    Raises OSError when the file cannot be read.
    """
    levels = _levels(_samples(path, start, stop))
    if len(levels) < QUIET_FRAMES:
        return (start + stop) // 2
    total = sum(levels[:QUIET_FRAMES])
    totals = [total]
    for old, new in zip(levels, levels[QUIET_FRAMES:], strict=False):
        total += new - old
        totals.append(total)
    first = totals.index(min(totals))
    return start + (2 * first + QUIET_FRAMES) * FRAME // 2


def _samples(path: str, start: int, stop: int) -> array[int]:
    with Path(path).open("rb") as file:
        file.seek(start * SAMPLE_BYTES)
        data = file.read((stop - start) * SAMPLE_BYTES)
    samples = array("h", data[: len(data) // SAMPLE_BYTES * SAMPLE_BYTES])
    if sys.byteorder == "big":
        samples.byteswap()
    return samples


def _levels(samples: array[int]) -> list[int]:
    """The sum of the absolute values of each whole frame."""
    edges = range(0, len(samples) + 1, FRAME)
    return [sum(map(abs, samples[one:other])) for one, other in pairwise(edges)]
