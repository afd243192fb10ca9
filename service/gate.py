"""Which parts of a recording Whisper is to hear, from where speech is in it: the gate, and pieces to decode at once.

Pure: spans in, spans out, all in samples at 16 kHz from the start of the recording. Knows no request, worker or file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from protocol.jobs import Span
from protocol.settings import SAMPLE_RATE

MARGIN = SAMPLE_RATE * 400 // 1000
"""Kept before and after speech, whose first and last sounds are quiet (faster-whisper's speech_pad_ms)."""
PAUSE = 2 * SAMPLE_RATE
"""A shorter silence belongs to what is said and is heard (faster-whisper's min_silence_duration_ms)."""

LONGEST = 30 * SAMPLE_RATE
"""What Whisper hears in one window, and so the longest piece."""
LOOK_BACK = 10 * SAMPLE_RATE
"""How much shorter a piece may be for the sake of a better place to end."""
EMPTY = 5 * SAMPLE_RATE
"""No piece goes on over a longer silence."""

Quietest = Callable[[int, int], int]
"""The quietest moment between two."""


@dataclass(frozen=True)
class Cutting:
    """Where pieces may end. All in samples."""

    before: int
    """Kept before the speech that begins a piece."""
    after: int
    """Kept after the speech that ends one."""
    silence: int
    """A cut is made in a silence of this length, if there is one."""


def heard(speech: Sequence[Span], samples: int) -> tuple[Span, ...]:
    """Speech with its margins; silences shorter than PAUSE are kept."""
    joined: list[Span] = []
    for span in speech:
        if joined and span.start - joined[-1].stop < PAUSE:
            joined[-1] = Span(joined[-1].start, span.stop)
        else:
            joined.append(span)
    return tuple(_with_margins(span, samples) for span in joined)


def trimmed(speech: Sequence[Span], samples: int) -> tuple[Span, ...]:
    """One span from the first speech to the last, with margins; none when there is no speech."""
    return (_with_margins(Span(speech[0].start, speech[-1].stop), samples),) if speech else ()


def _with_margins(span: Span, samples: int) -> Span:
    return Span(max(0, span.start - MARGIN), min(samples, span.stop + MARGIN))


def pieces(speech: Sequence[Span], samples: int, cutting: Cutting, quietest: Quietest) -> tuple[Span, ...]:
    """Pieces of at most LONGEST, in order and apart, that leave out nothing but silence.

    A piece ends in the widest silence near its greatest length; where there is no silence, in the widest pause;
    where there is no pause either, at the quietest moment, and the next begins with the next sample.
    """
    if not speech:
        return ()
    gaps = [Span(one.stop, other.start) for one, other in pairwise(speech) if other.start > one.stop]
    begins = [gap.start for gap in gaps]
    start = max(0, speech[0].start - cutting.before)
    last = min(samples, speech[-1].stop + cutting.after)
    found: list[Span] = []
    while True:
        limit = start + LONGEST
        within = gaps[bisect_right(begins, start) : bisect_right(begins, limit)]
        gap = next((gap for gap in within if _length(gap) > max(EMPTY, cutting.silence)), None)
        if gap is None and last <= limit:
            return (*found, Span(start, last))
        if gap is None:
            # A shorter piece costs nothing where what is left fits into one.
            earliest = min(limit - LOOK_BACK, last - LONGEST)
            gap = _place(within, earliest, cutting.silence)
        if gap is None:
            moment = quietest(limit - LOOK_BACK, limit)
            gap = Span(moment, moment)
        stop = min(gap.start + min(cutting.after, _length(gap) // 2), limit)
        found.append(Span(start, stop))
        start = max(stop, gap.stop - cutting.before)


def _place(within: Sequence[Span], earliest: int, silence: int) -> Span | None:
    """The best gap to end a piece in: a silence after `earliest`, or the latest one before it, or a mere pause."""
    silences = [gap for gap in within if _length(gap) >= silence]
    near = [gap for gap in silences if gap.start > earliest]
    if near or not silences:
        return max(near or [gap for gap in within if gap.start > earliest], key=_length, default=None)
    return silences[-1]


def _length(span: Span) -> int:
    return span.stop - span.start
