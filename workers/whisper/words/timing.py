"""When each word is said: cross attention to times, as openai/whisper does it. Pure numpy; runs no model.

Its numbers (median width 7, the factors on durations, the punctuation sets) are mlx-whisper's (timing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from workers.whisper.segments import Draft, Window, Word
from workers.whisper.tokenizer import Tokenizer
from workers.whisper.words.dtw import path

Floats = npt.NDArray[np.float32]

PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
TOKENS_PER_SECOND = 50
LONGEST_MEDIAN = 0.7
"""Seconds; a median word is not believed to be longer."""
MEDIAN_OF_7 = (
    (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4),
)  # fmt: skip
"""Exchanges that bring the median to place 3 (A. Paeth, Graphics Gems I, p. 171)."""


@dataclass
class Timing:
    """A word in the making; times are seconds in the window. An emptied word was merged into a neighbour."""

    word: str
    tokens: list[int]
    start: float
    end: float
    probability: float

    @property
    def duration(self) -> float:
        return self.end - self.start


def text_tokens(draft: Draft, eot: int) -> list[int]:
    return [token for token in draft.tokens if token < eot]


def question(tokenizer: Tokenizer, opening: Sequence[int], text: Sequence[int]) -> tuple[int, ...]:
    """What `align` is asked: the text as if said without timestamps."""
    return (*opening, tokenizer.no_timestamps, *text, tokenizer.eot)


def timings(
    scores: Floats,
    logits: Floats,
    text: Sequence[int],
    *,
    tokenizer: Tokenizer,
    language: str,
    opening: int,
    frames: int,
) -> list[Timing]:
    """scores: (heads, tokens, frames) and logits: (tokens, vocab) of `question`; `opening`: tokens before
    no_timestamps; `frames`: encoder frames with content. -> the words of `text` in order."""
    words = tokenizer.split_words([*text, tokenizer.eot], language)
    frames = min(frames, scores.shape[2])
    if len(words) < 2 or frames < 1:
        return []
    spoken = _probabilities(logits[opening : opening + len(text), : tokenizer.eot], text)
    matrix = attention(scores[:, :, :frames])[opening:-1]
    tokens_on_path, frames_on_path = path(-matrix)
    jumps = np.concatenate([[True], np.diff(tokens_on_path) > 0])
    at = frames_on_path[jumps] / TOKENS_PER_SECOND
    bounds = np.concatenate([[0], np.cumsum([len(parts) for _, parts in words[:-1]])]).astype(int)
    return [
        Timing(word, list(parts), float(at[a]), float(at[b]), float(spoken[a:b].mean()))
        for (word, parts), a, b in zip(words, bounds[:-1], bounds[1:], strict=False)
    ]


def _probabilities(logits: Floats, tokens: Sequence[int]) -> Floats:
    """Softmax of each row at its token: (n, eot) -> (n,). Specials do not count."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chosen = weights[np.arange(len(tokens)), list(tokens)]
    return np.asarray(chosen / weights.sum(axis=-1), np.float32)


def attention(scores: Floats) -> Floats:
    """(heads, tokens, frames) -> (tokens, frames): how much more than usual a token attends to a frame."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    spread = weights.std(axis=-2, keepdims=True)
    weights -= weights.mean(axis=-2, keepdims=True)
    weights /= np.where(spread > 0, spread, 1)
    return np.asarray(median7(weights).mean(axis=0), np.float32)


def median7(x: Floats) -> Floats:
    """Running median of 7 along the last axis, mirrored at the ends; as it is where it is too short for that."""
    if x.shape[-1] <= 3:
        return x
    n = x.shape[-1]
    mirrored = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(3, 3)], mode="reflect")
    lanes = [mirrored[..., i : i + n] for i in range(7)]
    # Whole arrays through 13 exchanges, where np.median sorts each frame.
    for a, b in MEDIAN_OF_7:
        lanes[a], lanes[b] = np.minimum(lanes[a], lanes[b]), np.maximum(lanes[a], lanes[b])
    return lanes[3]


def place(found: list[Timing], drafts: Sequence[Draft], *, eot: int, window: Window, last_speech: float) -> None:
    """Give the drafts their words, and move the drafts' ends to them. `last_speech`: where speech ended before."""
    durations = np.array([timing.duration for timing in found if timing.duration != 0])
    median = min(LONGEST_MEDIAN, float(np.median(durations))) if len(durations) else 0.0
    if len(durations):
        _shorten_at_sentence_ends(found, median * 2)
    merge_punctuation(found)
    rest = iter(found)
    for draft in drafts:
        draft.words = _take(rest, len(text_tokens(draft, eot)), window.offset)
        if draft.words:
            _tame(draft, median, last_speech)
            last_speech = draft.end


def _shorten_at_sentence_ends(found: list[Timing], longest: float) -> None:
    """A pause is often counted to the word before or after it."""
    for before, timing in pairwise(found):
        if timing.duration > longest:
            if timing.word in SENTENCE_ENDS:
                timing.end = timing.start + longest
            elif before.word in SENTENCE_ENDS:
                timing.start = timing.end - longest


def merge_punctuation(found: list[Timing]) -> None:
    """Opening marks join the next word, closing marks the one before. `in` means substring, as in the reference."""
    following = len(found) - 1
    for i in range(len(found) - 2, -1, -1):
        mark, word = found[i], found[following]
        if mark.word.startswith(" ") and mark.word.strip() in PREPENDED:
            word.word, word.tokens = mark.word + word.word, mark.tokens + word.tokens
            mark.word, mark.tokens = "", []
        else:
            following = i
    before = 0
    for i in range(1, len(found)):
        word, mark = found[before], found[i]
        if not word.word.endswith(" ") and mark.word in APPENDED:
            word.word, word.tokens = word.word + mark.word, word.tokens + mark.tokens
            mark.word, mark.tokens = "", []
        else:
            before = i


def _take(rest: Iterator[Timing], tokens: int, offset: float) -> list[Word]:
    """The next words of `rest` that cover `tokens` tokens, in seconds of the recording to the hundredth."""
    words: list[Word] = []
    while tokens > 0 and (timing := next(rest, None)) is not None:
        tokens -= len(timing.tokens)
        if timing.word:
            start, end = round(offset + timing.start, 2), round(offset + timing.end, 2)
            words.append(Word(timing.word, start, end, timing.probability))
    return words


def _tame(draft: Draft, median: float, last_speech: float) -> None:
    """Cut the words next to a pause to a length that words have, and let draft and words agree on their ends."""
    words, longest = draft.words, median * 2
    first, last = words[0], words[-1]
    stretched = first.end - first.start > longest or (len(words) > 1 and words[1].end - first.start > longest * 2)
    if first.end - last_speech > median * 4 and stretched:
        if len(words) > 1 and words[1].end - words[1].start > longest:
            first.end = words[1].start = max(words[1].end / 2, words[1].end - longest)
        first.start = max(0, first.end - longest)
    # The model's own times win over a first or last word that is half a second beyond them.
    if draft.start < first.end and draft.start - 0.5 > first.start:
        first.start = max(0, min(first.end - median, draft.start))
    else:
        draft.start = first.start
    if draft.end > last.start and draft.end + 0.5 < last.end:
        last.end = max(last.start + median, draft.end)
    else:
        draft.end = last.end
