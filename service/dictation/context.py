"""What the next utterance is heard with: the speech before it and what that said. Pure: a story in, parts of a job out.

An utterance of a second or two, alone, loses words that it keeps among its neighbours (docs/dictation.md), so a job
hears it at the end of as much speech as is worth its time, and is told what that says. Knows no worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.jobs import Context, Decoding, Past, Span
from protocol.settings import SAMPLE_RATE
from service.dictation.segmentation import MAX_UTTERANCE
from service.dictation.spec import Spec
from service.dictation.story import DISTRUSTED, Story

LONGEST = 10 * SAMPLE_RATE
"""Samples of a context."""
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


def hearing(spec: Spec, story: Story, span: Span, model: str | None) -> Hearing:
    """`span`: the utterance after those that are committed, as far as it is known; `model`: the id of the one that
    hears it."""
    decoding = spec.decoding
    # Windows are no utterances: what they said is not what was said in them.
    first = _first(story, span, model) if spec.segmentation == "vad" else story.committed
    start = story.utterances[first].start if first < story.committed else span.start
    known: dict[str, Any] = {}
    if decoding.condition_on_previous_text and story.tails[first]:
        known["before"] = story.tails[first]
    if decoding.language is None and story.language is not None:
        known |= {"language": story.language, "languages": ()}
    return Hearing(start, _context(story, first, start, span), msgspec.structs.replace(decoding, **known))


def _first(story: Story, span: Span, model: str | None) -> int:
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
