"""From a window's tokens to segments and the next seek. Pure: knows token ids and times, no text and no model.

Times are seconds in the recording; seeks are mel frames of 10 ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from workers.whisper.mel import HOP, N_FRAMES

SAMPLE_RATE = 16_000
FRAMES_PER_SECOND = 100
FRAMES_PER_TOKEN = 2
"""Mel frames between timestamp tokens: the encoder halves the rate (3000 frames, 1500 positions)."""
SECONDS_PER_TOKEN = FRAMES_PER_TOKEN * HOP / SAMPLE_RATE


@dataclass(frozen=True)
class Window:
    """Frames [seek, seek + size) of the recording, at most 30 s of them."""

    seek: int
    size: int

    @property
    def offset(self) -> float:
        return float(self.seek * HOP / SAMPLE_RATE)

    @property
    def seconds(self) -> float:
        return self.size * HOP / SAMPLE_RATE

    @property
    def full_end(self) -> float:
        """Where the window would end if the recording did not end in it."""
        return float((self.seek + N_FRAMES) * HOP / SAMPLE_RATE)

    @property
    def next(self) -> int:
        """The seek behind this window."""
        return self.seek + self.size


@dataclass
class Word:
    """A spoken word, with the space before it and the punctuation around it."""

    word: str
    start: float
    end: float
    probability: float


@dataclass
class Draft:
    """A segment whose times word alignment may still move. `first` counts the window's tokens before it."""

    start: float
    end: float
    tokens: tuple[int, ...]
    first: int
    text: str = ""
    """Of its tokens alone."""
    words: list[Word] = field(default_factory=list)
    aligned: bool = False
    """Whether `words` are all that is said in it, which may then be nothing."""

    @property
    def spoken(self) -> str:
        """The text to show: its words', where it has them. They differ where a word is split over two segments."""
        return "".join(word.word for word in self.words) if self.aligned else self.text


@dataclass(frozen=True)
class Cut:
    """A window cut into segments. `closed`: its last token is a lone timestamp, so nothing is said after it."""

    drafts: list[Draft]
    seek: int
    closed: bool


def cut(tokens: Sequence[int], timestamp_begin: int, window: Window) -> Cut:
    """Segments end where two timestamps meet. What follows the last such pair is heard again in the next window,
    unless the window is closed or has no pair at all."""
    times = [token >= timestamp_begin for token in tokens]
    closed = times[-2:] == [False, True]
    bounds = [i for i in range(1, len(tokens)) if times[i - 1] and times[i]]
    if not bounds:
        return Cut([_whole(tokens, timestamp_begin, window)], window.next, closed)
    if closed:
        bounds.append(len(tokens))
    drafts = [
        Draft(
            start=window.offset + (tokens[first] - timestamp_begin) * SECONDS_PER_TOKEN,
            end=window.offset + (tokens[last - 1] - timestamp_begin) * SECONDS_PER_TOKEN,
            tokens=tuple(tokens[first:last]),
            first=first,
        )
        for first, last in zip([0, *bounds], bounds, strict=False)
    ]
    if closed:
        return Cut(drafts, window.next, closed)
    spoken = (tokens[bounds[-1] - 1] - timestamp_begin) * FRAMES_PER_TOKEN
    return Cut(drafts, window.seek + spoken, closed)


def _whole(tokens: Sequence[int], timestamp_begin: int, window: Window) -> Draft:
    """The window as one segment, to its last timestamp if it says one after 0."""
    latest = next((token for token in reversed(tokens) if token >= timestamp_begin), timestamp_begin)
    said = (latest - timestamp_begin) * SECONDS_PER_TOKEN
    return Draft(window.offset, window.offset + (said or window.seconds), tuple(tokens), first=0)


def spoken_end(drafts: Sequence[Draft]) -> float | None:
    """Where the last word ends, or without words the last segment."""
    if not drafts:
        return None
    return next(_ends_of_words(drafts), drafts[-1].end)


def _ends_of_words(drafts: Sequence[Draft]) -> Iterator[float]:
    return (word.end for draft in reversed(drafts) for word in reversed(draft.words))
