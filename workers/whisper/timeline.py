"""The times of one job's segments put in order: none beyond the audio, none before the last. Pure."""

from __future__ import annotations

import msgspec

from protocol.events import Segment, Word


class Timeline:
    """Whisper's timestamps may point past the end or behind what was said; a caller's subtitles must not."""

    def __init__(self, duration: float, reached: float = 0.0) -> None:
        """Both in seconds of the job's audio; `reached`: no segment begins before it."""
        self._duration = duration
        self._reached = reached

    @property
    def reached(self) -> float:
        """Where the segment settled last ends."""
        return self._reached

    def settle(self, segment: Segment) -> Segment:
        """`segment` with 0 <= start <= end <= duration, not before the segment settled last, words inside it."""
        start, end = self._within(segment.start, segment.end, self._reached, self._duration)
        words = segment.words
        if words is not None:
            words = tuple(self._words(words, start, end))
        self._reached = end
        return msgspec.structs.replace(segment, start=start, end=end, words=words)

    def _words(self, words: tuple[Word, ...], reached: float, last: float) -> list[Word]:
        settled = []
        for word in words:
            start, reached = self._within(word.start, word.end, reached, last)
            settled.append(msgspec.structs.replace(word, start=start, end=reached))
        return settled

    @staticmethod
    def _within(start: float, end: float, low: float, high: float) -> tuple[float, float]:
        low = min(low, high)
        start = min(max(start, low), high)
        return start, min(max(end, start), high)
