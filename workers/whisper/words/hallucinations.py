"""Silence around words that were probably not said: which drafts to drop and where to go on. Pure.

The scores and limits are openai/whisper's (transcribe.py, hallucination_silence_threshold).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.whisper.segments import FRAMES_PER_SECOND, Draft, Window, Word, spoken_end
from workers.whisper.words.timing import APPENDED, PREPENDED

EDGE = 2.0
"""Seconds at a window's ends that count as silence."""


@dataclass(frozen=True)
class Verdict:
    """`drafts` to keep and the next seek. `skipped`: the window begins with silence, hear it again from its end."""

    drafts: list[Draft]
    seek: int
    skipped: bool = False


def judge(
    drafts: list[Draft], window: Window, *, seek: int, closed: bool, threshold: float, last_speech: float, frames: int
) -> Verdict:
    """`threshold`: seconds of silence that make an odd segment a hallucination; `frames`: of the recording."""
    end = spoken_end(drafts)
    if not closed and end is not None and end > window.offset:
        silent_after = window.full_end - end > threshold
        seek = round(end * FRAMES_PER_SECOND) if silent_after else window.next
    first = _next_spoken(drafts)
    if first is not None and odd(first):
        gap = first.start - window.offset
        if gap > threshold:
            return Verdict([], window.seek + round(gap * FRAMES_PER_SECOND), skipped=True)
    for i, draft in enumerate(drafts):
        if not draft.words:
            continue
        if odd(draft) and _surrounded(draft, _next_spoken(drafts[i + 1 :]), window, threshold, last_speech):
            seek = round(max(window.offset + 1, draft.start) * FRAMES_PER_SECOND)
            if frames / FRAMES_PER_SECOND - draft.end < threshold:
                seek = frames
            return Verdict(drafts[:i], seek)
        last_speech = draft.end
    return Verdict(drafts, seek)


def odd(draft: Draft | None) -> bool:
    """Whether a segment's first eight words are too improbable, short or long to be speech."""
    if draft is None or not draft.words:
        return False
    words = [word for word in draft.words if word.word not in PREPENDED + APPENDED][:8]
    score = sum(map(_oddity, words))
    return score >= 3 or score + 0.01 >= len(words)


def _oddity(word: Word) -> float:
    duration = word.end - word.start
    score = 1.0 if word.probability < 0.15 else 0.0
    if duration < 0.133:
        score += (0.133 - duration) * 15
    if duration > 2.0:
        score += duration - 2.0
    return score


def _surrounded(draft: Draft, following: Draft | None, window: Window, threshold: float, last_speech: float) -> bool:
    """By silence, by the window's edges, or by more of the kind."""
    next_start = following.words[0].start if following is not None else window.offset + window.seconds
    before = draft.start - last_speech > threshold or draft.start < threshold or draft.start - window.offset < EDGE
    after = next_start - draft.end > threshold or odd(following) or window.full_end - draft.end < EDGE
    return before and after


def _next_spoken(drafts: Sequence[Draft]) -> Draft | None:
    return next((draft for draft in drafts if draft.words), None)
