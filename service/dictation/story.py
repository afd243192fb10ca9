"""What has happened in a session so far: its records, the events and the text that follow from them, and its readers.

Knows neither workers nor HTTP. A record is on disk before anything that follows from it is told to anyone.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, assert_never

import msgspec

from protocol.errors import BY_KIND, Failure, SessionFailed, ShuttingDown
from protocol.events import Segment, Timings, VocabularyReport
from protocol.jobs import Span
from protocol.past import Reached
from protocol.settings import SAMPLE_RATE
from service import errors, transcripts
from service.dictation import records
from service.dictation.bell import Bell, to_the_end
from service.dictation.records import (
    Answered,
    Began,
    Broke,
    Committed,
    Finished,
    Finishing,
    Listened,
    Reason,
    Record,
    Spoke,
)
from service.dictation.spec import Spec
from service.transcripts import Transcript

Event = Mapping[str, Any]
SessionState = Literal["open", "finishing", "finished", "failed"]

SURE = 0.8
"""The probability from which a detected language is kept for all that follows."""
DISTRUSTED = 0.5
"""Text sampled at a higher temperature is no prompt (openai/whisper transcribe.py)."""
TAIL = 200
"""Bytes of committed text that the next utterance is conditioned on, about 50 tokens (ufal/whisper_streaming has 200
characters): more costs a prefill each time, takes room from hint terms, and tells little."""


class Log(Protocol):
    """Where the records are kept; service.dictation.store has it."""

    async def tell(self, record: bytes, *, sync: bool) -> None: ...


class Story:
    """One session's. Made anew from the same records, it tells the same events under the same ids.

    An event's id is its place, from 1. Language: each utterance detects its own until one was sure (SURE); that one
    is kept for all that follow, after a restart too.
    """

    def __init__(self, spec: Spec, log: Log, told: Sequence[bytes]) -> None:
        self._spec = spec
        self._log = log
        self._writing = asyncio.Lock()
        self._news = Bell()
        self._deltas = transcripts.Deltas()
        self._partial: tuple[int, Event] | None = None
        self._partials = 0
        self._ended = False
        self._stopped = False
        self.events: list[Event] = []
        self.state: SessionState = "open"
        self.reason: Reason = "finished"
        self.failure: Failure | None = None
        self.transcript: Transcript | None = None
        self.segments: list[Segment] = []
        self.utterances: list[Span] = []
        """All that were found; the first `committed` of them are written."""
        self.committed = 0
        self.spoke = 0
        self.listened: Listened | None = None
        self._listening_ms = 0.0
        self.heard: list[Committed] = []
        """Of each commit what is left when its segments are taken out."""
        self.tails: list[str] = [""]
        """Of the text before each commit, the next one included, what that may be conditioned on."""
        self._firsts: list[int] = [0]
        """How many segments were there before each commit."""
        self.language: str | None = None
        """The one that is kept."""
        self._text: list[str] = []
        self._fitted: VocabularyReport | None = None
        self._answers: list[Answered] = [Answered(-1, None, 0)]
        for body in told:
            self._fold(records.decode(body))

    async def tell(self, record: Record, *, sync: bool) -> None:
        """Write the record down, then let it count. Raises DiskFull, and then nothing has happened.

        A caller that is cancelled is so when the record counts or does not.
        """
        await to_the_end(self._tell(record, sync))

    async def _tell(self, record: Record, sync: bool) -> None:
        async with self._writing:
            await self._log.tell(records.encode(record), sync=sync)
            self._fold(record)
        self._news.ring()

    # What follows from a record.

    def _fold(self, record: Record) -> None:
        match record:
            case Began(session):
                self._fitted = msgspec.convert(session.get("vocabulary"), VocabularyReport | None, from_attributes=True)
                self._publish({"type": "session.created", "session": session})
            case Spoke(started, at):
                self.spoke += 1
                name = "start" if started else "end"
                self._publish({"type": f"speech.{'started' if started else 'stopped'}", name: seconds(at)})
            case Listened():
                self.listened = record
                self.utterances += record.utterances
                self._listening_ms += record.vad_ms
            case Committed():
                self._commit(record)
            case Answered():
                self._answers.append(record)
            case Finishing(reason):
                self.state, self.reason = "finishing", reason
            case Finished(meta):
                self._finish(meta)
            case Broke(kind, message):
                self.state, self.failure = "failed", BY_KIND[kind](message)
                self._publish({"type": "error", "error": errors.body(SessionFailed(message))})
                self._ended = True
            case _:
                assert_never(record)

    def _publish(self, event: Event) -> None:
        self.events.append(event)

    def _commit(self, record: Committed) -> None:
        self.committed += 1
        self._partial = None
        for segment in record.segments:
            self.segments.append(segment)
            self._text.append(segment.text)
            if event := self._deltas.add(segment):
                self._publish(event)
        self.heard.append(msgspec.structs.replace(record, segments=()))
        tail = self.tails[-1]
        if record.segments:
            said = tail + "".join(segment.text for segment in record.segments)
            tail = "" if record.segments[-1].temperature > DISTRUSTED else _last(said, TAIL)
        self.tails.append(tail)
        self._firsts.append(len(self.segments))
        if self.language is None and (record.language_probability or 0.0) >= SURE:
            self.language = record.language

    def _finish(self, meta: transcripts.Meta) -> None:
        decoding = self._spec.decoding
        self.transcript = Transcript(
            task=self._spec.task,
            segments=tuple(self.segments),
            meta=meta,
            words=decoding.words,
            logprobs=decoding.logprobs,
        )
        self.state = "finished"
        self._publish(transcripts.done(self.transcript, self._spec.response_format))
        self._close(self.reason)

    def _close(self, reason: Reason) -> None:
        self._publish({"type": "session.closed", "reason": reason})
        self._partial = None
        self._ended = True

    # What is not written down.

    def close(self, reason: Reason) -> None:
        """The last event, if there was none yet, of a session whose files are about to go."""
        if not self._ended:
            self._close(reason)
        self._news.ring()

    def break_in_memory(self, record: Broke) -> None:
        """The session has failed, and not even that can be written."""
        self._fold(record)
        self._news.ring()

    def stop(self) -> None:
        """The service ends: readers are told, and come back to the next one."""
        self._stopped = True
        self._news.ring()

    def show(self, guess: Event) -> None:
        """A partial text: replaces the one before it, for readers that have not seen that yet."""
        self._partials += 1
        self._partial = (self._partials, guess)
        self._news.ring()

    async def read(self, after: int | None) -> AsyncGenerator[tuple[int | None, Event], None]:
        """The events after the one with the id `after`, with their ids; partial texts, the newest only, without.

        Ends after the session's last event; raises ShuttingDown when the service ends before. A reader may be as
        slow as it likes.
        """
        place, shown = min(max(after or 0, 0), len(self.events)), 0
        while True:
            if place < len(self.events):
                place += 1
                yield place, self.events[place - 1]
            elif self._ended:
                return
            elif self._stopped:
                raise ShuttingDown("the server is shutting down; the session goes on when it is back")
            elif self._partial is not None and self._partial[0] > shown:
                shown, event = self._partial
                yield None, event
            else:
                await self._news.until(partial(self._has_news, len(self.events), shown))

    def _has_news(self, known: int, shown: int) -> bool:
        newer = self._partial is not None and self._partial[0] > shown
        return len(self.events) > known or newer or self._ended or self._stopped

    # What was said.

    def said(self, commit: int) -> Sequence[Segment]:
        """What the commit of that number said."""
        return self.segments[self._firsts[commit] : self._firsts[commit + 1]]

    @property
    def text(self) -> str:
        return "".join(self._text).strip()

    @property
    def model(self) -> str:
        """The id of the one that wrote last. A service that was restarted may have another than before."""
        return next((each.model for each in reversed(self.heard) if each.model), self._spec.model)

    def answer(self, seq: int) -> tuple[bool | None, range]:
        """What the answer to chunk `seq` says: what the detector heard, and which segments were new."""
        at = bisect_right(self._answers, seq, key=lambda answered: answered.seq) - 1
        answered = self._answers[at]
        if answered.seq < seq or at == 0:
            return answered.speech, range(0)
        return answered.speech, range(self._answers[at - 1].segments, answered.segments)

    @property
    def last_answer(self) -> Answered:
        return self._answers[-1]

    @property
    def reached(self) -> Reached | None:
        return self.heard[-1].reached if self.heard else None

    @property
    def spoken(self) -> tuple[str | None, float | None]:
        """The language that was spoken longest, and how sure the surest detection of it was."""
        lengths: dict[str, float] = {}
        for each in self.heard:
            if each.language is not None:
                lengths[each.language] = lengths.get(each.language, 0.0) + each.seconds
        if not lengths:
            return self._spec.decoding.language, None
        language = max(lengths, key=lambda code: lengths[code])
        sure = [each.language_probability for each in self.heard if each.language == language]
        return language, max((each for each in sure if each is not None), default=None)

    @property
    def vocabulary(self) -> VocabularyReport | None:
        """As reported when the session was created, else as the first utterance had it."""
        return self._fitted or next((each.vocabulary for each in self.heard if each.vocabulary), None)

    @property
    def vad_ms(self) -> float:
        return self._listening_ms + sum(each.vad_ms for each in self.heard)

    @property
    def spent_s(self) -> float:
        """From question to answer, of all that workers were asked."""
        return self._listening_ms / 1000 + sum(each.spent_s for each in self.heard)

    @property
    def timings(self) -> Timings:
        """Of all commits together."""
        names = Timings.__struct_fields__
        return Timings(**{name: sum(getattr(each.timings, name) for each in self.heard) for name in names})


def seconds(samples: int) -> float:
    return round(samples / SAMPLE_RATE, 3)


def _last(text: str, size: int) -> str:
    """The end of the text, at most `size` bytes of UTF-8, from the start of a word if there are words."""
    data = text.encode()
    if len(data) <= size:
        return text
    end = data[-size:].decode(errors="ignore")
    at = end.find(" ")
    return end[at:] if at >= 0 else end
