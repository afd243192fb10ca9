"""Where utterances begin and end, from the probability of speech and the level of each 512-sample window.

Pure arithmetic: the same windows give the same utterances, however they were cut into chunks. Knows neither audio
nor workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from protocol.jobs import Span
from protocol.settings import SAMPLE_RATE

WINDOW = 512
"""Samples of one probability and one level."""

MAX_UTTERANCE = 30 * SAMPLE_RATE
"""Samples: what Whisper hears at once."""

HYSTERESIS = 0.15
"""Speech goes on until the probability is this much under the threshold, as Silero's own rule has it."""
LOWEST_EXIT = 0.01

BRIDGED = 4
"""Windows. A shorter pause (100 ms with Silero) does not end a burst of speech."""
NEAR = 32
"""Windows. A burst too short to be speech belongs to speech that begins within 1 s of it: the I of "I … think"."""

PAD_BEFORE = 8
"""Windows, 256 ms: the network hears a soft onset late."""
PAD_AFTER = 6
"""Windows, 192 ms. Less than SETTLED, so that an utterance's end is known before it is certain that it ended."""
SETTLED = 7
"""Windows of silence, 224 ms, after which the utterance would end where it would end with more of them."""

SEARCHED = 312
"""Windows, 10 s: where the quietest point of an utterance that is too long is looked for."""
SMOOTHED = 2
"""Windows on both sides that a window's level is averaged with: 160 ms in all."""


class SpeechStarted(msgspec.Struct, frozen=True):
    """Speech was heard from this sample on."""

    at: int


class SpeechStopped(msgspec.Struct, frozen=True):
    at: int


class Utterance(msgspec.Struct, frozen=True):
    """Samples [start, stop) to transcribe: speech and what surrounds it. Utterances are in order and do not overlap."""

    start: int
    stop: int


Boundary = SpeechStarted | SpeechStopped | Utterance


class State(msgspec.Struct):
    """All that is remembered of the windows heard so far. Positions are numbers of windows unless said otherwise."""

    heard: int = 0
    speech: bool | None = None
    bursts: list[int] = []
    """Where the bursts of speech began that the utterance may yet consist of; none in silence."""
    in_burst: bool = False
    confirmed: bool = False
    """One of the bursts was long enough to be speech."""
    pause: int | None = None
    """Where the silence began in which we are."""
    start: int = 0
    """Samples. Where the utterance starts once it is confirmed."""
    floor: int = 0
    """Samples. Where the last utterance stopped."""
    levels: list[float] = []
    """Of the last windows of an utterance."""


class Segmenter:
    """Feed it windows as they are heard; it answers what has become certain."""

    def __init__(self, threshold: float, min_speech_ms: int, silence_ms: int, state: State | None = None) -> None:
        """`state`: go on from there, with the same settings."""
        self._enter = threshold
        self._leave = max(threshold - HYSTERESIS, LOWEST_EXIT)
        self._min_speech = min_speech_ms * SAMPLE_RATE // 1000
        self._silence = math.ceil(silence_ms * SAMPLE_RATE / 1000 / WINDOW)
        self._pad_after = min(PAD_AFTER, self._silence) * WINDOW
        self._now = _copy(state or State())

    def state(self) -> State:
        return _copy(self._now)

    @property
    def heard(self) -> int:
        """Windows."""
        return self._now.heard

    @property
    def speech(self) -> bool | None:
        """What was heard last; None before anything was."""
        return self._now.speech

    @property
    def open(self) -> int | None:
        """Samples: the start of the utterance that is being spoken."""
        return self._now.start if self._now.confirmed else None

    @property
    def tentative(self) -> Span | None:
        """The open utterance as it will be unless speech goes on before the silence is long enough."""
        now = self._now
        if not now.confirmed or now.pause is None or now.heard - now.pause < SETTLED:
            return None
        return Span(now.start, self._stop(now.pause))

    def feed(self, probabilities: Sequence[float], levels: Sequence[float]) -> list[Boundary]:
        """The next windows' probabilities of speech and levels (RMS)."""
        found: list[Boundary] = []
        for probability, level in zip(probabilities, levels, strict=True):
            self._hear(probability, level, found)
        return found

    def end(self, samples: int) -> list[Boundary]:
        """The recording ends after `samples`: what is open is closed."""
        now, found = self._now, list[Boundary]()
        if now.bursts and now.pause is None:
            self._voiced(samples, found)
        if now.confirmed:
            if now.pause is None:
                self._close(samples, samples, found)
            else:
                self._close(now.pause * WINDOW, min(self._stop(now.pause), samples), found)
        self._forget()
        return found

    def _hear(self, probability: float, level: float, found: list[Boundary]) -> None:
        now = self._now
        window = now.heard
        now.heard += 1
        voiced = probability >= self._enter or (probability >= self._leave and bool(now.bursts) and now.pause is None)
        if probability >= self._enter:
            now.speech = True
        elif probability < self._leave or now.speech is None:
            now.speech = False
        if voiced and not now.in_burst:
            self._begin(window)
        if now.bursts:
            now.levels.append(level)
            del now.levels[: -SEARCHED - SMOOTHED]
        if voiced:
            now.pause = None
            self._voiced(now.heard * WINDOW, found)
        elif now.bursts:
            now.pause = window if now.pause is None else now.pause
            self._silent(now.heard - now.pause, found)

    def _begin(self, window: int) -> None:
        """A burst begins. Before one was confirmed, those too far back no longer belong to it."""
        now = self._now
        if not now.confirmed:
            now.bursts = [burst for burst in now.bursts if window - burst <= NEAR]
            now.bursts.append(window)
        now.in_burst = True

    def _voiced(self, until: int, found: list[Boundary]) -> None:
        """Speech reaches to the sample `until`."""
        now = self._now
        if not now.confirmed and until - now.bursts[-1] * WINDOW > self._min_speech:
            first = now.bursts[0]
            now.confirmed = True
            now.start = max((first - PAD_BEFORE) * WINDOW, now.floor)
            found.append(SpeechStarted(first * WINDOW))
        if now.confirmed and until - now.start > MAX_UTTERANCE:
            self._cut(found)

    def _silent(self, windows: int, found: list[Boundary]) -> None:
        now = self._now
        if windows >= BRIDGED:
            now.in_burst = False
        if windows >= self._silence and now.pause is not None:
            if now.confirmed:
                self._close(now.pause * WINDOW, self._stop(now.pause), found)
            self._forget()

    def _stop(self, pause: int) -> int:
        """Where an utterance ends whose last speech ended at the window `pause`."""
        return min(pause * WINDOW + self._pad_after, self._now.start + MAX_UTTERANCE)

    def _cut(self, found: list[Boundary]) -> None:
        """End the utterance at its quietest point; the next starts there."""
        now = self._now
        first = now.heard - len(now.levels)
        # A pause may have gone on since the utterance was as long as it may be.
        last = (now.start + MAX_UTTERANCE - WINDOW // 2) // WINDOW - first
        middles = range(SMOOTHED, min(len(now.levels) - SMOOTHED, last + 1))
        # Of equally quiet points the last one, so that the pieces are long.
        quietest = min(
            reversed(middles), key=lambda middle: math.fsum(now.levels[middle - SMOOTHED : middle + SMOOTHED + 1])
        )
        at = (first + quietest) * WINDOW + WINDOW // 2
        found.append(Utterance(now.start, at))
        now.start = now.floor = at

    def _close(self, spoken: int, stop: int, found: list[Boundary]) -> None:
        found.append(SpeechStopped(spoken))
        found.append(Utterance(self._now.start, stop))
        self._now.floor = stop

    def _forget(self) -> None:
        now = self._now
        now.bursts, now.levels = [], []
        now.in_burst = now.confirmed = False
        now.pause = None


def _copy(state: State) -> State:
    return msgspec.structs.replace(state, bursts=list(state.bursts), levels=list(state.levels))
