"""A session's utterances, or windows, become text: strictly in order, each committed once.

Knows the speech worker's Transcribe and what a commit holds; knows neither the journal nor readers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from protocol.errors import InternalError, InvalidValue, ModelNotConfigured, UnsupportedTask
from protocol.events import Progress, Segment, Speech, Transcribed, Word
from protocol.jobs import DetectSpeech, Pcm, Span, Transcribe
from protocol.settings import SAMPLE_RATE
from service import reply, transcripts
from service.dictation.bell import Bell, Errand
from service.dictation.context import Hearing, hearing, misheard, within
from service.dictation.listening import Listener
from service.dictation.records import Committed
from service.dictation.store import Stored
from service.dictation.story import Story
from service.dictation.turns import Patience
from service.worker import Worker

HOP = 160
"""Samples of one mel frame."""
WINDOW = 30 * SAMPLE_RATE
MARGIN = 480
"""Samples after a full window that its last mel frames look into."""
FURTHER = SAMPLE_RATE
"""Samples more for a window that was not full enough."""

UNSPACED = frozenset(("zh", "ja", "yue", "th", "lo", "my", "km", "bo"))
"""Languages that are written without spaces between words."""


@dataclass(frozen=True)
class Written:
    """What a job said."""

    start: int
    """The sample of the recording where the job's audio begins."""
    segments: tuple[Segment, ...]
    """Times from there."""
    end: Transcribed
    spent_s: float
    vad_ms: float
    model: str
    """The id of the one that said it."""


class Writer:
    """One session's pen. `draft` tells the tokens that an utterance from that sample on will probably say."""

    def __init__(
        self,
        stored: Stored,
        story: Story,
        listener: Listener,
        whisper: Worker,
        model: str,
        live: Worker,
        patience: Patience,
        draft: Callable[[int], tuple[int, ...]],
    ) -> None:
        self._spec = stored.spec
        self._pcm = str(stored.pcm)
        self._story = story
        self._listener = listener
        self._whisper = whisper
        self._model = model
        """Its id. The worker tells it once it is ready: too late for what is heard first after a restart."""
        self._live = live
        self._patience = patience
        self._draft = draft
        self._errand = Errand()
        self._span: Span | None = None
        """The utterance at work."""

    @property
    def idle(self) -> bool:
        """Nothing waits to be written, and nothing is being written."""
        return not self._errand.busy and self._next() is None

    def reconsider(self) -> None:
        """Something else was heard: an utterance that goes on after all is not what is being transcribed."""
        if self._span is not None and self._next() != self._span:
            self._errand.call_off()

    async def run(self, bell: Bell) -> None:
        """Until all is written and there will be no more."""
        if self._spec.segmentation == "window":
            await self._windows(bell)
        else:
            await self._utterances(bell)

    # By utterances.

    def _next(self) -> Span | None:
        """The utterance to write now: the first that ended, or the one that has probably ended."""
        if self._spec.segmentation == "window":
            return None
        found, committed = self._story.utterances, self._story.committed
        span = found[committed] if committed < len(found) else self._listener.tentative
        # After a restart the audio of an utterance that is known may not be converted yet.
        return span if span is not None and span.stop <= self._listener.samples else None

    def _has_ended(self, span: Span) -> bool:
        """Whether the next utterance to commit is this one, for certain."""
        return self._story.utterances[self._story.committed :][:1] == [span]

    def _is_over(self) -> bool:
        return self._listener.ended and self._story.committed == len(self._story.utterances)

    async def _utterances(self, bell: Bell) -> None:
        while True:
            await bell.until(lambda: self._next() or self._is_over())
            self._span = self._next()
            if self._span is None:
                return
            written = await self._errand.run(self._utterance(self._span, bell))
            if written is not None:
                await self._commit(written, self._span)
            self._span = None
            bell.ring()

    async def _utterance(self, span: Span, bell: Bell) -> Written | None:
        """The utterance's text, once it is certain that it has ended; None when it has not."""
        how = hearing(self._spec, self._story, span, self._model)
        written = await self._heard(how, span)
        if misheard(self._story, how, span, written.segments):
            how = hearing(self._spec, self._story, span, self._model, alone=True)
            written = await self._heard(how, span)
        written = replace(written, segments=within(written.segments, span.stop - how.start))
        await bell.until(lambda: self._has_ended(span) or self._next() != span)
        return written if self._has_ended(span) else None

    async def _heard(self, how: Hearing, span: Span) -> Written:
        job = Transcribe(
            Pcm(self._pcm, how.start, span.stop),
            self._spec.task,
            how.decoding,
            urgent=True,
            draft=self._draft(span.start),
            context=how.context,
        )
        return await self._patience.insist(partial(self._ask, job), self._whisper)

    # By windows.

    async def _windows(self, bell: Bell) -> None:
        """A job for each window, over the audio up to the window's end: done again it hears the same."""
        decoding, further = self._spec.decoding, 0
        # The rule about silence looks beyond the window by as much as it forbids.
        silence = decoding.hallucination_silence_threshold if decoding.words else None
        ahead = MARGIN + math.ceil((silence or 0.0) * SAMPLE_RATE)
        while not (self._story.heard and self._story.heard[-1].last):
            reached = self._story.reached
            seek = reached.seek if reached else 0
            stop = seek * HOP + WINDOW + ahead + further
            await bell.until(partial(self._has, stop))
            whole = self._listener.samples < stop
            stop = min(stop, self._listener.samples)
            if whole and stop <= seek * HOP:
                return
            audio = Pcm(self._pcm, 0, stop)
            job = Transcribe(audio, self._spec.task, decoding, urgent=True, reached=reached, whole=whole)
            written = await self._errand.run(self._patience.insist(partial(self._ask, job), self._whisper))
            assert written is not None, "nobody calls a window off"
            if not whole and (written.end.reached is None or written.end.reached.seek <= seek):
                further += FURTHER
                continue
            further = 0
            await self._commit(written, Span(seek * HOP, stop), last=whole)

    def _has(self, samples: int) -> bool:
        return self._listener.samples >= samples or self._listener.ended

    # Both.

    async def _hear(self, job: Transcribe, asked: DetectSpeech) -> Speech:
        """Settles a doubt, as often as it takes: an answer for want of a worker would make another text.

        An utterance as a whole is speech, or it would be none; what Whisper makes of the padding after it may not be.
        """
        if self._spec.segmentation == "vad":
            if asked.audio.start == job.audio.start:
                return Speech((Span(0, asked.audio.stop - asked.audio.start),), 0.0)
            asked = DetectSpeech(asked.audio, self._spec.vad_threshold, self._spec.vad_min_speech_ms)
        return await self._patience.insist(partial(reply.spoken, self._live, asked), self._live)

    async def _ask(self, job: Transcribe) -> Written:
        began = time.perf_counter()
        segments: list[Segment] = []
        hear = partial(self._hear, job)
        try:
            async with aclosing(reply.transcribing(self._whisper, self._live, job, hear)) as events:
                async for event in events:
                    match event:
                        case Segment():
                            segments.append(event)
                        case Progress():
                            pass
                        case reply.Ended(end, vad_ms):
                            spent_s = time.perf_counter() - began
                            return Written(job.audio.start, tuple(segments), end, spent_s, vad_ms, self._model)
        except (InvalidValue, UnsupportedTask) as refusal:
            # Language and task suited the model with which the session began: the service has another one since.
            needed = f"this session needs the model {self._spec.model} that it began with: {refusal.message}"
            raise ModelNotConfigured(needed) from refusal
        raise InternalError("the worker stopped answering before the end of the job")

    async def _commit(self, written: Written, span: Span, *, last: bool = False) -> None:
        """`span`: what is written thereby."""
        end = written.end
        spaced = self._spec.task == "translate" or end.language not in UNSPACED
        record = Committed(
            segments=tuple(settled(written.segments, written.start, span.stop, self._story, spaced=spaced)),
            language=end.language,
            language_probability=end.language_probability,
            seconds=(span.stop - span.start) / SAMPLE_RATE,
            spent_s=written.spent_s,
            timings=end.timings,
            vad_ms=written.vad_ms,
            vocabulary=end.vocabulary,
            reached=end.reached,
            last=last,
            model=written.model,
        )
        await self._patience.insist(lambda: self._story.tell(record, sync=True))


def settled(segments: Iterable[Segment], start: int, stop: int, story: Story, *, spaced: bool) -> Iterable[Segment]:
    """The segments in the recording's clock; `start` and `stop`: the samples of the job's audio.

    Whisper begins a text with a space where its language has spaces (`spaced`), but not always.
    """
    before = story.segments[-1].text if story.segments else ""
    timeline = transcripts.Timeline(stop / SAMPLE_RATE, story.segments[-1].end if story.segments else 0.0)
    for number, segment in enumerate(segments):
        moved = timeline.settle(_moved(segment, start))
        runs_on = number == 0 and before and not before[-1].isspace() and moved.text[:1].isalnum()
        yield _spaced(moved) if spaced and runs_on else moved


def _moved(segment: Segment, start: int) -> Segment:
    by = start / SAMPLE_RATE
    words = segment.words and tuple(
        msgspec.structs.replace(word, start=word.start + by, end=word.end + by) for word in segment.words
    )
    return msgspec.structs.replace(
        segment, start=segment.start + by, end=segment.end + by, seek=segment.seek + start // HOP, words=words
    )


def _spaced(segment: Segment) -> Segment:
    first, *rest = segment.words or [None]
    words = (Word(" " + first.word, first.start, first.end, first.probability), *rest) if first else segment.words
    return msgspec.structs.replace(segment, text=" " + segment.text, words=words)
