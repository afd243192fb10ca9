"""One live dictation: audio is taken, listened to and written, and no word of it is ever lost.

Knows the order of these; how audio is kept is the store's, what has happened is the story's. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from protocol.errors import (
    AudioTooLong,
    DiskFull,
    Failure,
    InternalError,
    SequenceGap,
    SessionFailed,
    SessionFinishing,
    ShuttingDown,
    UnknownSession,
)
from protocol.events import Decoded
from protocol.jobs import Decode
from protocol.settings import SAMPLE_RATE
from service import reply, transcripts
from service.dictation import chunk as chunks
from service.dictation.bell import Bell, Errand
from service.dictation.chunk import Chunk
from service.dictation.guessing import Guesser
from service.dictation.listening import Listener
from service.dictation.records import Answered, Began, Broke, Finished, Finishing, Reason
from service.dictation.spec import Spec
from service.dictation.store import Stored
from service.dictation.story import Event, SessionState, Story, seconds
from service.dictation.turns import Patience, Turns
from service.dictation.writing import Writer
from service.ticket import again
from service.transcripts import Transcript
from service.worker import Worker

log = logging.getLogger("starling.dictation")


class Accepted(msgspec.Struct, frozen=True):
    """The answer to a chunk. It is the same whenever the chunk is sent again."""

    seq: int
    samples: int
    """Of the whole session, at 16 kHz."""
    duration: float
    speech: bool | None
    """What the detector last heard; None before it knows."""
    segments: tuple[Mapping[str, Any], ...]
    """Those committed since the last answer, in verbose_json's shape."""


class Session:
    """What its files say, and the tasks that go on with them. Between `start` and `stop` it belongs to one event loop.

    `live` converts and listens, `whisper` writes, with the model of the id `model`; `turns` is shared by all sessions.
    """

    def __init__(
        self, stored: Stored, *, live: Worker, whisper: Worker, model: str, turns: Turns, max_seconds: float
    ) -> None:
        self.spec: Spec = stored.spec
        self._stored = stored
        self._live = live
        self._whisper = whisper
        self._max_samples = int(max_seconds * SAMPLE_RATE)
        self._bell = Bell()
        self._adding = asyncio.Lock()
        self._decoding = Errand()
        self._gone: Failure | None = None
        """Why nothing can be asked of it any more: it was removed, or the service ends."""
        self._owner: asyncio.Task[None] | None = None
        self._story = Story(stored.spec, stored, stored.story)
        self._patience = Patience(self._bell.ring)
        self._listener = Listener(stored, self._story, live, self._patience, self._heard)
        self._guesser = Guesser(stored, self._story, self._listener, whisper, model, turns)
        self._writer = Writer(
            stored, self._story, self._listener, whisper, model, live, self._patience, self._guesser.draft
        )

    @property
    def state(self) -> SessionState:
        return self._story.state

    @property
    def model(self) -> str:
        """The id of the one that wrote last; before that, of the one that it was created for."""
        return self._story.model

    @property
    def samples(self) -> int:
        """Acknowledged, at 16 kHz."""
        return self._stored.samples

    @property
    def duration(self) -> float:
        return seconds(self.samples)

    @property
    def text(self) -> str:
        """What is committed."""
        return self._story.text

    @property
    def last_event(self) -> int:
        """The id of the newest event; 0: there is none yet."""
        return len(self._story.events)

    # Life.

    async def begin(self, view: Mapping[str, Any]) -> None:
        """Its first event: the session as its client sees it. Once in its life."""
        await self._story.tell(Began(dict(view)), sync=True)

    def start(self) -> None:
        """Go on where the files say that it stands. Returns at once."""
        if self._owner is None and self.state in ("open", "finishing"):
            self._owner = asyncio.create_task(self._live_on(), name=f"dictation {self.spec.id}")

    async def stop(self) -> None:
        """The service ends: who waits for the session hears ShuttingDown. Nothing is lost."""
        try:
            await self._end(ShuttingDown("the server is shutting down; the session goes on when it is back"))
        finally:
            # Its readers are told also when there is no time to wait for what is under way.
            self._story.stop()

    async def close(self, reason: Reason) -> None:
        """The session is about to be removed. Nothing is written to its files once this has returned."""
        await self._end(UnknownSession("this session was removed"))
        self._story.close(reason)

    async def _end(self, why: Failure) -> None:
        self._gone = self._gone or why
        self._decoding.call_off()
        self._bell.ring()
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.wait([self._owner])
        async with self._adding:
            """A chunk that is being written is written."""

    async def _live_on(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listener.run(self._bell))
                guessing = group.create_task(self._guesser.run(self._bell, self._writer))
                await self._writer.run(self._bell)
                guessing.cancel()
            await self._bell.until(lambda: self.state == "finishing")
            await self._patience.insist(lambda: self._story.tell(Finished(self._meta()), sync=True))
        except* Failure as failed:
            await self._fail(_first(failed))
        except* Exception:
            # The last wall: a bug in here must not end the service, and this session goes no further.
            log.exception("a dictation failed")
            await self._fail(InternalError("the server met an error of its own; its log has the details"))
        self._bell.ring()

    async def _fail(self, failure: Failure) -> None:
        if self._story.failure is not None:
            return
        log.error("dictation %s has failed: %s", self.spec.id, failure.message)
        record = Broke(failure.kind, failure.message)
        try:
            await self._story.tell(record, sync=True)
        except (Failure, OSError) as error:
            log.error("and that cannot be written down: %s", error)
            self._story.break_in_memory(record)

    def _heard(self) -> None:
        """The listener has heard something: what is at work may be of no use any more."""
        self._writer.reconsider()
        self._guesser.reconsider(self._writer)
        self._bell.ring()

    # Audio.

    async def add(self, seq: int | None, chunk: Chunk) -> Accepted:
        """Take a chunk: it is on disk when this returns. A `seq` that was there before gets the same answer again.

        Raises SequenceGap, SessionFinishing, SessionFailed, AudioTooLong, DiskFull, what is wrong with the chunk, and
        for an encoded file what its decoder says; the session is then as it was.
        """
        async with self._adding:
            number = len(self._stored.records)
            if seq is not None and (told := self.answered(seq)) is not None:
                return told
            self._check_open(seq, number)
            if chunk.path is None:
                chunks.check(chunk.raw, chunk.data)
            # Who speaks will be written, though perhaps not for a while.
            self._whisper.touch()
            try:
                await self._append(number, chunk)
            finally:
                self._bell.ring()
            return await self._answered(number)

    def answered(self, seq: int) -> Accepted | None:
        """What the chunk with that number was answered; None: it has not been taken yet."""
        return self._answer(seq) if seq < len(self._stored.records) else None

    def _check_open(self, seq: int | None, number: int) -> None:
        if self._gone is not None:
            raise again(self._gone)
        if self._story.failure is not None:
            raise SessionFailed(f"this session has failed: {self._story.failure.message}")
        if self.state != "open":
            raise SessionFinishing("this session takes no more audio: it was told to finish")
        if seq is not None and seq > number:
            raise SequenceGap(f"chunk {seq} came, but the next one is {number}: send what lies between first")

    async def _append(self, number: int, chunk: Chunk) -> None:
        if chunk.raw is not None:
            self._check_length(self._stored.after(chunk))
            await self._stored.append(chunk, number)
            return
        async with self._stored.received(chunk) as received:
            job = Decode(source=str(received.path), target=str(received.target))
            decoded: Decoded | None = await self._decoding.run(reply.decoded(self._live, job))
            if decoded is None:
                assert self._gone is not None
                raise again(self._gone)
            self._check_length(self.samples + decoded.samples)
            await self._stored.append(received, number, decoded.samples)

    def _check_length(self, samples: int) -> None:
        if samples > self._max_samples:
            longest = self._max_samples / SAMPLE_RATE
            raise AudioTooLong(f"with this chunk the session would be longer than the {longest:.6g} s allowed")

    async def _answered(self, seq: int) -> Accepted:
        """The answer to the newest chunk, remembered where it says more than the one before it."""
        last, speech, segments = self._story.last_answer, self._listener.speech, len(self._story.segments)
        if (speech, segments) != (last.speech, last.segments):
            try:
                await self._story.tell(Answered(seq, speech, segments), sync=False)
            except DiskFull:
                # The chunk is there: its answer says no more than the last one did, now and whenever it is asked for.
                log.warning("no room to remember an answer")
        return self._answer(seq)

    def _answer(self, seq: int) -> Accepted:
        samples = self._stored.records[seq].samples
        speech, new = self._story.answer(seq)
        segments = tuple(transcripts.verbose_segment(number, self._story.segments[number]) for number in new)
        return Accepted(seq, samples, seconds(samples), speech, segments)

    # The end.

    async def finish(self, reason: Reason = "finished") -> Transcript:
        """Take no more audio; the whole transcript, once all is written. Again, or twice at once: the same.

        Who is cancelled here cancels nothing. Raises SessionFailed, and what keeps the workers from serving when that
        lasts: the session goes on by itself, and asking again helps.
        """
        async with self._adding:
            if self._gone is None and self.state == "open":
                await self._story.tell(Finishing(reason), sync=True)
        self._bell.ring()
        await self._bell.until(
            lambda: self._story.transcript or self._story.failure or self._gone or self._patience.stuck
        )
        if self._story.transcript is not None:
            return self._story.transcript
        if self._story.failure is not None:
            raise SessionFailed(f"this session has failed: {self._story.failure.message}")
        raise again(self._gone) if self._gone is not None else self._stuck()

    def _stuck(self) -> Failure:
        stuck = self._patience.stuck
        assert stuck is not None
        return stuck

    def _meta(self) -> transcripts.Meta:
        """What the whole answer says of itself. Its times are those of all utterances together."""
        story = self._story
        language, probability = story.spoken
        return transcripts.Meta(
            model=self._story.model,
            language=language,
            language_probability=probability,
            duration=self.duration,
            timings=transcripts.spent(story.spent_s, 0.0, story.vad_ms, story.timings, self.duration),
            vocabulary=story.vocabulary,
        )

    # Events.

    async def events(self, after: int | None = None) -> AsyncGenerator[tuple[int | None, Event], None]:
        """All events after the one with the id `after`, those to come included; partial texts have no id.

        Ends after the session's last event. Raises ShuttingDown when the service ends before it.
        """
        async with aclosing(self._story.read(after)) as events:
            async for event in events:
                yield event


def _first(group: BaseExceptionGroup[Failure]) -> Failure:
    """The first of the failures that were raised together."""
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
