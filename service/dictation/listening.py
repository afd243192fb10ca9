"""Where speech is in a session's audio, as it grows: the journal becomes PCM, PCM becomes utterances.

Knows the live media worker's Follow; knows nothing of text. What it learns goes into the story, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.events import Followed
from protocol.jobs import Follow, Span
from service import reply
from service.dictation.bell import Bell
from service.dictation.records import Listened, Spoke
from service.dictation.segmentation import Boundary, Segmenter, SpeechStarted, SpeechStopped, State, Utterance
from service.dictation.store import Stored
from service.dictation.story import Story
from service.dictation.turns import Patience
from service.worker import Worker

CHECKPOINT = 2_000
"""Windows, about a minute: a restart does not listen again to more than that, even where nobody speaks."""
RUNS = 1_000
"""Runs of one job: a session that changes its format more often than that needs several."""


class Listener:
    """One session's ear. `changed` is called whenever it has heard something."""

    def __init__(
        self, stored: Stored, story: Story, live: Worker, patience: Patience, changed: Callable[[], None]
    ) -> None:
        self._stored = stored
        self._story = story
        self._live = live
        self._patience = patience
        self._changed = changed
        known = story.listened
        spec = stored.spec
        self._segmenter = Segmenter(
            spec.vad_threshold, spec.vad_min_speech_ms, spec.vad_silence_ms, known.segmenter if known else State()
        )
        self._memory = known.memory if known else b""
        self._spoke = known.spoke if known else 0
        """Starts and stops of speech up to here; those that the story has already are not told again."""
        self._all_found = known.ended if known else False
        self._checkpoint = self._segmenter.heard
        self._heard = known.heard if known else 0
        self._vad_s = 0.0
        self._followed = 0
        """Chunks."""
        self._first = 0
        """The first run that is not wholly converted."""
        self._base = 0
        self._open: int | None = None
        self._tentative: Span | None = None
        self.samples = 0
        """In the PCM file. It is written anew after a restart."""
        self.ended = False
        """All audio is converted and listened to, and there will be no more."""

    @property
    def speech(self) -> bool | None:
        """What was heard last; None before anything was."""
        return self._segmenter.speech

    @property
    def open(self) -> int | None:
        """The first sample of the utterance that is being spoken."""
        return self._open if self._open is not None and self._open >= self._told() else None

    @property
    def tentative(self) -> Span | None:
        """The open utterance as it will be if nothing more is said."""
        return self._tentative if self._tentative is not None and self._tentative.start >= self._told() else None

    def _told(self) -> int:
        """Where the last utterance of the story ends."""
        return self._story.utterances[-1].stop if self._story.utterances else 0

    async def run(self, bell: Bell) -> None:
        """Follow the journal until the story is `finishing` and all of it was heard. `bell` tells that it has grown."""
        while not self.ended:
            await bell.until(lambda: len(self._stored.records) > self._followed or self._is_ending())
            ending = self._is_ending()
            # After that: nothing is appended once the session ends.
            chunks = len(self._stored.records)
            more = chunks > self._followed or (ending and chunks > 0)
            while more:
                more = await self._follow(ending)
            self._followed = chunks
            if ending:
                await self._end()

    def _is_ending(self) -> bool:
        return self._story.state != "open"

    async def _follow(self, ending: bool) -> bool:
        """Convert and listen on. -> whether there is more."""
        began = time.perf_counter()
        runs = self._stored.runs(self._first)
        if not runs and not ending:
            return False
        whole = len(runs) <= RUNS
        job = Follow(
            runs=tuple(runs[:RUNS]),
            pcm=str(self._stored.pcm),
            base=self._base,
            samples=self.samples,
            ended=ending and whole,
            heard=self._heard,
            memory=self._memory,
        )
        followed = await self._patience.insist(lambda: reply.followed(self._live, job), self._live)
        self._vad_s += time.perf_counter() - began
        await self._take(followed)
        return followed.more or not whole

    async def _take(self, followed: Followed) -> None:
        self._first += followed.runs
        self._base = followed.base
        self.samples = followed.samples
        self._memory = followed.memory
        self._heard += len(followed.probabilities)
        if not self._all_found:
            await self._note(self._segmenter.feed(followed.probabilities, followed.levels))
            # Not before all that ended before them is told.
            self._open, self._tentative = self._segmenter.open, self._segmenter.tentative
        self._changed()

    async def _end(self) -> None:
        if not self._all_found:
            await self._note(self._segmenter.end(self.samples), ended=True)
        self.ended = True
        self._changed()

    async def _note(self, found: list[Boundary], *, ended: bool = False) -> None:
        """Write down what was found, and, if an utterance ended or enough was heard since, how to go on from here.

        The latter need not reach the disk at once: what is lost with the machine's power is heard again.
        """
        utterances: list[Span] = []
        for boundary in found:
            match boundary:
                case SpeechStarted(at) | SpeechStopped(at):
                    await self._tell_speech(isinstance(boundary, SpeechStarted), at)
                case Utterance(start, stop):
                    utterances.append(Span(start, stop))
        if not (utterances or ended or self._heard - self._checkpoint >= CHECKPOINT):
            return
        checkpoint = Listened(
            utterances=tuple(utterances),
            heard=self._heard,
            memory=self._memory,
            segmenter=self._segmenter.state(),
            spoke=self._spoke,
            vad_ms=self._vad_s * 1000,
            ended=ended,
        )
        await self._patience.insist(lambda: self._story.tell(checkpoint, sync=False))
        self._checkpoint = self._heard
        self._vad_s = 0.0

    async def _tell_speech(self, started: bool, at: int) -> None:
        """Safe on the disk before a reader has its id, as all events are: else another could have that id later."""
        self._spoke += 1
        if self._spoke > self._story.spoke:
            await self._patience.insist(lambda: self._story.tell(Spoke(started, at), sync=True))
