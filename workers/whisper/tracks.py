"""What the engine holds of a job: its tracks, where each is, and its answers in order. Runs no model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import Any

import msgspec

from protocol.errors import Failure
from protocol.events import Doubt, Progress, Segment, Timings, Transcribed, VocabularyReport
from protocol.jobs import Guess, Heard, Transcribe
from protocol.past import Reached
from workers.loop import Emit, failed
from workers.whisper.decoding.fallback import Kit
from workers.whisper.guess import Guessing
from workers.whisper.hearing import Spent, Tongue
from workers.whisper.mel import HOP
from workers.whisper.needs import Ask, Encode, Need, Pause, Steps
from workers.whisper.recording import Recording, Spool
from workers.whisper.segments import FRAMES_PER_SECOND
from workers.whisper.timeline import Timeline
from workers.whisper.transcript import Outlet, Transcript
from workers.whisper.vocabulary import fit


class Rank(IntEnum):
    """Who goes first."""

    URGENT = 0
    GUESS = 1
    FILE = 2


class Track:
    """One transcript or guess under way. `need` is what it waits for; None when it is over."""

    def __init__(self, job: Running, steps: Steps[Any]) -> None:
        self.job = job
        self.result: Any = None
        """What the steps came to, once it is over."""
        self.need: Need | None = Pause()
        self.holds_window = False
        """Whether an encoded window is in memory for it."""
        self.heard: bool | None = None
        """The answer to its Ask, once it is there."""
        self.served = 0
        """The engine's step that last did something for it."""
        self._steps = steps

    def advance(self, answer: Any) -> None:
        """Go on with the answer to `need`. Raises what the transcript raises."""
        self.holds_window = self.holds_window or isinstance(self.need, Encode)
        try:
            self.need = self._steps.send(answer)
        except StopIteration as end:
            self.need, self.result = None, end.value
        if self.need is None or isinstance(self.need, Encode):
            self.holds_window = False
        if isinstance(self.need, Ask):
            self.job.ask(self, self.need)

    def close(self) -> None:
        self._steps.close()
        self.need = None
        self.holds_window = False


class Running:
    """An admitted job. Subclasses say what it answers; this holds what they share."""

    def __init__(self, kit: Kit, job: Transcribe | Guess, emit: Emit, rank: Rank) -> None:
        self.rank = rank
        self.spent = Spent()
        self.tracks: Sequence[Track] = ()
        self._emit = emit
        self._tongue = Tongue(job.decoding.language)
        asked = job.decoding
        self._fitted = fit(kit.tokenizer.encode, asked.vocabulary, asked.prompt, kit.prompt_budget, asked.before)

    @property
    def live(self) -> Sequence[Track]:
        """The tracks to work on."""
        return [track for track in self.tracks if track.need is not None]

    @property
    def over(self) -> bool:
        return all(track.need is None for track in self.tracks)

    def finish(self) -> None:
        """Say the last word of a job that is over."""
        raise NotImplementedError

    def release(self) -> None:
        """Let out what waited for tracks that are over now."""

    def ask(self, track: Track, question: Ask) -> None:
        """A track waits for an answer."""
        raise NotImplementedError

    def answer(self, heard: Heard) -> None:
        """Answers the oldest Doubt; one too many is dropped."""

    def fail(self, failure: Failure) -> None:
        self._emit(failed(failure))

    def close(self) -> None:
        """Forget it: rows and windows are freed with the tracks."""
        for track in self.tracks:
            track.close()


class RunningGuess(Running):
    """One track, one answer."""

    def __init__(self, kit: Kit, job: Guess, emit: Emit) -> None:
        super().__init__(kit, job, emit, Rank.GUESS)
        recording = Recording(Spool(job.audio.path), job.audio.start, job.audio.stop)
        self.tracks = [Track(self, Guessing(kit, job, recording, self._fitted, self._tongue, self.spent).run())]

    def finish(self) -> None:
        (track,) = self.tracks
        self._emit(track.result)


class RunningTranscripts(Running):
    """A transcript, or one for each independent span. Segments leave in order, whichever track is ready first."""

    def __init__(self, kit: Kit, job: Transcribe, emit: Emit) -> None:
        super().__init__(kit, job, emit, Rank.URGENT if job.urgent else Rank.FILE)
        begun = job.reached or Reached(seek=0)
        if begun.language is not None:
            self._tongue = Tongue(begun.language, begun.language_probability)
        self._job = job
        self._spoke = begun.end > 0
        self._asking: deque[Track] = deque()
        recordings = _recordings(job)
        self._timeline = Timeline(job.audio.seconds, begun.end)
        self._first = self._head = begun.track
        """Of the tracks that are not done; of those, the one whose segments go out as they come."""
        done = [recording.duration for recording in recordings[: begun.track]]
        self._total = sum(recording.duration for recording in recordings)
        self._done = [*done, *(0.0 for _ in recordings[begun.track :])]
        if begun.track < len(recordings):
            self._done[begun.track] = begun.seek / FRAMES_PER_SECOND
        self._waiting: list[list[Segment]] = [[] for _ in recordings]
        """Segments of each track that follows one still under way."""
        self._reached = {begun.track: begun} if job.reached is not None else {}
        """Where each track is that has finished a window."""
        self.tracks = [
            Track(self, self._transcript(kit, recordings[i], i).run()) for i in range(begun.track, len(recordings))
        ]

    def _transcript(self, kit: Kit, recording: Recording, i: int) -> Transcript:
        outlet = Outlet(partial(self._say, i), partial(self._progress, i))
        reached = self._job.reached if i == self._first else None
        return Transcript(kit, self._job, recording, self._fitted, self._tongue, self.spent, outlet, i, reached)

    @property
    def live(self) -> Sequence[Track]:
        """After the first window of the first, which tells the language, all of them."""
        return super().live if self._tongue.code is not None else super().live[:1]

    def _say(self, track: int, segment: Segment) -> None:
        self._spoke = True
        if track == self._head:
            self._emit(self._timeline.settle(segment))
        else:
            self._waiting[track].append(segment)

    def _progress(self, track: int, done: float, reached: Reached) -> None:
        self._done[track] = done
        self._reached[track] = reached
        self._report()

    def _report(self) -> None:
        """How far all are, and the place up to which segments are out."""
        here = self._reached.get(self._head)
        if here is None:
            here = Reached(0, self._fitted.prompt, self._tongue.code, self._tongue.probability)
        mark = msgspec.structs.replace(here, end=self._timeline.reached, track=self._head)
        self._emit(Progress(done=sum(self._done), total=self._total, reached=mark))

    def release(self) -> None:
        before, last = self._head, self._first + len(self.tracks) - 1
        while self._head < last and self.tracks[self._head - self._first].need is None:
            self._head += 1
            waiting, self._waiting[self._head] = self._waiting[self._head], []
            for segment in waiting:
                self._emit(self._timeline.settle(segment))
        if self._head > before:
            self._report()

    def ask(self, track: Track, question: Ask) -> None:
        self._asking.append(track)
        self._emit(Doubt(question.start, question.end))

    def answer(self, heard: Heard) -> None:
        if self._asking:
            self._asking.popleft().heard = heard.speech

    def finish(self) -> None:
        asked = self._job.decoding.language
        fitted = self._fitted
        vocabulary = VocabularyReport(fitted.given, fitted.fitted, len(fitted.terms), fitted.budget)
        self._emit(
            Transcribed(
                language=self._tongue.code if self._spoke or asked is not None else None,
                language_probability=self._tongue.probability if self._spoke else None,
                timings=Timings(**{phase: seconds * 1e3 for phase, seconds in self.spent.items()}),
                vocabulary=vocabulary if fitted.given else None,
                reached=self._end(),
            )
        )

    def _end(self) -> Reached | None:
        if self._job.independent:
            return None
        (track,) = self.tracks
        assert isinstance(track.result, Reached)
        return msgspec.structs.replace(track.result, end=self._timeline.reached)


def running(kit: Kit, job: Transcribe | Guess, emit: Emit) -> Running:
    return RunningGuess(kit, job, emit) if isinstance(job, Guess) else RunningTranscripts(kit, job, emit)


def _recordings(job: Transcribe) -> list[Recording]:
    """One for each track. Independent spans too short for a frame are nothing to hear."""
    audio, spool = job.audio, Spool(job.audio.path)
    if job.spans is None:
        return [Recording(spool, audio.start, audio.stop)]
    spans = [(span.start, span.stop) for span in job.spans]
    if not job.independent:
        return [Recording(spool, audio.start, audio.stop, spans)]
    each = [Recording(spool, audio.start, audio.stop, [span]) for span in spans]
    return [recording for recording in each if recording.samples >= HOP]
