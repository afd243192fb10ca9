"""A recording dictated at the speed it was spoken, and what its client can tell of it afterwards.

Knows clocks and events; knows no table and no corpus.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.dictate import Dictation
from protocol.settings import SAMPLE_RATE

CHUNK = SAMPLE_RATE // 10
"""Samples: 100 ms, what recorders usually hand over."""
NEAR_S = 0.25
"""A segment's time is Whisper's, an utterance's the detector's: they may differ by this much."""

Samples = npt.NDArray[np.int16]
Event = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """One dictation. Times are time.perf_counter's."""

    text: str
    began: float
    """When the first sample was spoken."""
    fed: float
    """When the last chunk was sent."""
    answered: float
    """When `finish` had answered."""
    chunks: tuple[float, ...]
    """Seconds that the POST of each chunk took."""
    events: tuple[tuple[float, Event], ...]
    """Each with the time of its arrival."""

    @property
    def finish_s(self) -> float:
        """From the last chunk, its own POST included, to the whole text."""
        return self.answered - self.fed

    @property
    def lags_s(self) -> list[float]:
        """From the moment when an utterance's last sound was spoken to the arrival of the last of its text.

        The silence that ends it is part of that. Those that `finish` ended are left out, as are those without text.
        """
        ends = [event["end"] for at, event in self.events if event["type"] == "speech.stopped" and at < self.fed]
        deltas = [(at, event["segment"]["start"]) for at, event in self.events if _is_delta(event)]
        lags = []
        for before, end in pairwise([0.0, *ends]):
            arrivals = [at for at, start in deltas if before - NEAR_S <= start < end]
            if arrivals:
                lags.append(max(arrivals) - (self.began + end))
        return lags

    @property
    def promises(self) -> list[tuple[str, str, int]]:
        """Of each utterance that had partial texts: its last `stable`, what was committed, how many partials."""
        partials: dict[float, list[str]] = {}
        for _, event in self.events:
            if event["type"] == "transcript.text.partial":
                partials.setdefault(event["start"], []).append(event["stable"])
        deltas = [(event["segment"]["start"], event["delta"]) for _, event in self.events if _is_delta(event)]
        promises = []
        for start, until in pairwise([*partials, float("inf")]):
            commit = "".join(delta for at, delta in deltas if start - NEAR_S <= at < until - NEAR_S)
            promises.append((partials[start][-1].strip(), commit.strip(), len(partials[start])))
        return promises


def _is_delta(event: Event) -> bool:
    return bool(event["type"] == "transcript.text.delta")


def say(url: str, samples: Samples, *, speed: float = 1.0, wait_s: float = 0.0, **asked: object) -> Said:
    """Dictate `samples` (16 kHz) `speed` times as fast as they were spoken, after `wait_s`; speed 0: at once."""
    time.sleep(wait_s)
    with Dictation(url, "audio/pcm;encoding=s16le", **asked) as session, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, session)
        began = fed = time.perf_counter()
        chunks = []
        for start in range(0, len(samples), CHUNK):
            chunk = samples[start : start + CHUNK]
            if speed:
                due = began + (start + len(chunk)) / SAMPLE_RATE / speed
                time.sleep(max(0.0, due - time.perf_counter()))
            fed = time.perf_counter()
            session.add(chunk.astype("<i2").tobytes())
            chunks.append(time.perf_counter() - fed)
        text = str(session.finish()["text"])
        answered = time.perf_counter()
        said = Said(text, began, fed, answered, tuple(chunks), reading.result())
        session.remove()
        return said


def _read(session: Dictation) -> tuple[tuple[float, Event], ...]:
    return tuple((time.perf_counter(), event) for _, event in session.events())
