"""What the next utterance is heard with: the speech before it and what that said. Pure: a story in, parts of a job out.

An utterance of a second or two, alone, loses words that it keeps among its neighbours (docs/dictation.md), so a job
hears it at the end of as much speech as is worth its time, and is told what that says. Knows no worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from protocol.events import Segment
from protocol.jobs import FULL_CONTEXT, Decoding, Span
from protocol.past import Context, Past
from protocol.settings import SAMPLE_RATE
from service.dictation.segmentation import MAX_UTTERANCE
from service.dictation.spec import Spec
from service.dictation.story import DISTRUSTED, Story

LONGEST = 10 * SAMPLE_RATE
"""Samples of a context."""
OPENING = 16
"""Letters with which an utterance begins as something before it did: more than a "thank you very much"."""
PART_CONTEXT = 1000
"""Encoder frames, for an utterance without a context."""
PART = 16 * SAMPLE_RATE
"""The longest that leaves them the margin of `auto`."""
SPARSE = 4
"""Letters a second, of which speech has more than ten, in an utterance of `LONG_ENOUGH` seconds."""
LONG_ENOUGH = 2
MOST_TOKENS = 150
"""Of what a context says: the decoder has room for 448 tokens, the prompt's and the answer's among them."""


@dataclass(frozen=True)
class Hearing:
    """How to hear an utterance."""

    start: int
    """Where the job's audio begins."""
    context: Context | None
    decoding: Decoding
    """As asked for, and with what is known already: the text before the audio, and the language."""


def hearing(spec: Spec, story: Story, span: Span, model: str, *, alone: bool = False) -> Hearing:
    """`span`: the utterance after those that are committed, as far as it is known; `model`: the id of the one that
    hears it. alone: without a context."""
    decoding = spec.decoding
    # Windows are no utterances: what they said is not what was said in them.
    first = story.committed if alone or spec.segmentation != "vad" else _first(story, span, model)
    start = story.utterances[first].start if first < story.committed else span.start
    known: dict[str, Any] = {}
    if decoding.condition_on_previous_text and story.tails[first]:
        known["before"] = story.tails[first]
    if decoding.language is None and story.language is not None:
        known |= {"language": story.language, "languages": ()}
    context = _context(story, first, start, span)
    if context is None and decoding.audio_ctx == "auto" and span.stop - span.start <= PART:
        # A few seconds without others before them are understood best in a whole window, as Whisper was trained; a
        # part of one does nearly as well in half the time.
        known["audio_ctx"] = FULL_CONTEXT if alone else PART_CONTEXT
    return Hearing(start, context, msgspec.structs.replace(decoding, **known))


def misheard(story: Story, how: Hearing, span: Span, said: Sequence[Segment]) -> bool:
    """Whether to hear the utterance, which is speech, once more, alone: it says nothing, or what was said before, or
    goes on after its end; or, having no context, says too little. Who does say the same again is heard for nothing."""
    if how.context is None and how.decoding.audio_ctx != PART_CONTEXT:
        return False
    if len(within(said, span.stop - how.start)) < len(said):
        return True
    letters = _letters(said)
    if how.context is None:
        seconds = (span.stop - span.start) / SAMPLE_RATE
        return seconds >= LONG_ENOUGH and len(letters) < SPARSE * seconds
    opening = letters[:OPENING]
    before = (story.said(number) for number in range(story.committed) if story.utterances[number].start >= how.start)
    return not opening or (len(opening) == OPENING and opening in _letters(chain.from_iterable(before)))


def within(said: Sequence[Segment], samples: int) -> tuple[Segment, ...]:
    """The segments without those after the first that begin where their audio ends: silence said them."""
    return tuple(each for number, each in enumerate(said) if not number or each.start < samples / SAMPLE_RATE)


def _letters(segments: Iterable[Segment]) -> str:
    return "".join(letter for segment in segments for letter in segment.text.casefold() if letter.isalnum())


def _first(story: Story, span: Span, model: str) -> int:
    """The number of the first utterance of the context; all from there on are heard again. Another model's tokens may
    mean something else."""
    first, tokens = story.committed, 0
    while first > 0:
        said = story.said(first - 1)
        start = story.utterances[first - 1].start
        tokens += sum(len(segment.tokens) for segment in said)
        if not said or story.heard[first - 1].model != model:
            break
        if any(segment.temperature > DISTRUSTED for segment in said) or tokens > MOST_TOKENS:
            break
        if span.start - start > LONGEST or span.stop - start > MAX_UTTERANCE:
            break
        first -= 1
    return first


def _context(story: Story, first: int, start: int, span: Span) -> Context | None:
    if first == story.committed:
        return None
    zero = start / SAMPLE_RATE
    said = [segment for number in range(first, story.committed) for segment in story.said(number)]
    return Context(
        span.start - start,
        tuple(Past(segment.start - zero, segment.end - zero, segment.tokens) for segment in said),
    )
