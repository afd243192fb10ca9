"""What a job has said so far, whichever processes worked on it: what the next one is asked to do, and what of its
answers was heard before.

Knows jobs and events; knows neither processes nor readers. A process that takes a job over begins at the last place
that both sides can name and says everything behind it again, in the same events: here they are counted, and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from protocol.events import TERMINAL, ChoiceEnded, Delta, Event, Progress, Segment, Started
from protocol.jobs import Chat, Complete, Guess, Job, Transcribe
from protocol.past import Reached
from protocol.resume import Begun, Resume


class Told:
    """Of a job that says nothing before its end, but how far it is: another process begins it anew."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._done = -1.0
        self.further = False
        """The process that has it now has said something that none had said before."""

    @property
    def resumable(self) -> bool:
        """Whether another process could go on with it."""
        return True

    def begin(self) -> Job:
        """A process gets it, the first or another: what it is to do."""
        self.further = False
        return self._job

    def take(self, event: Event) -> bool:
        """Whether the event is new to whoever reads."""
        if isinstance(event, Progress):
            new = event.done > self._done
            self._done = max(self._done, event.done)
        else:
            new = isinstance(event, TERMINAL)
        self.further = self.further or new
        # A question is asked again, and must be answered again.
        return new or not isinstance(event, Progress)


class _Guess(Told):
    """Of a job that nobody waits for any more when its process has died."""

    @property
    def resumable(self) -> bool:
        return False


class _Transcription(Told):
    """Goes on from the last window that was finished. `exact`: hearing a window again gives the same segments."""

    def __init__(self, job: Transcribe, *, exact: bool) -> None:
        super().__init__(job)
        self._transcribe = job
        self._exact = exact
        self._reached: Reached | None = None
        self._segments = 0
        """So many of those behind `_reached` are told."""
        self._said = 0
        """So many of them the process has said that has the job now."""

    @property
    def resumable(self) -> bool:
        return self._exact or not self._segments

    def begin(self) -> Job:
        super().begin()
        self._said = 0
        if self._reached is None:
            return self._job
        return msgspec.structs.replace(self._transcribe, reached=self._reached, draft=())

    def take(self, event: Event) -> bool:
        match event:
            case Segment():
                self._said += 1
                new = self._said > self._segments
                self._segments = max(self._segments, self._said)
                self.further = self.further or new
                return new
            case Progress(reached=Reached() as reached) if self._is_beyond(reached):
                # Of what is told some may lie behind this place too.
                self._reached, self._segments, self._said = reached, self._segments - self._said, 0
                self.further = True
        return super().take(event)

    def _is_beyond(self, reached: Reached) -> bool:
        known = self._reached
        return known is None or (reached.track, reached.seek) > (known.track, known.seek)


@dataclass
class _Choice:
    ids: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    deltas: int = 0
    repeated: int = 0
    """So many deltas are still to be said again."""
    ended: bool = False


class _Answer(Told):
    """Goes on from the last token of each choice that a Delta has told of."""

    def __init__(self, job: Chat | Complete) -> None:
        super().__init__(job)
        self._asked = job
        self._started: Started | None = None
        self._choices = [_Choice() for _ in range(job.generation.n)]

    def begin(self) -> Job:
        super().begin()
        for choice in self._choices:
            choice.repeated = choice.deltas
        if self._started is None:
            return self._job
        resume = Resume(
            tuple(Begun(tuple(each.ids), tuple(each.calls), each.ended) for each in self._choices),
            self._started.cached_tokens,
            self._started.prompt,
        )
        return msgspec.structs.replace(
            self._asked, generation=msgspec.structs.replace(self._asked.generation, resume=resume)
        )

    def take(self, event: Event) -> bool:
        match event:
            case Started():
                new, self._started = self._started is None, self._started or event
            case Delta():
                new = self._take_delta(self._choices[event.choice], event)
            case ChoiceEnded():
                choice = self._choices[event.choice]
                new, choice.ended = not choice.ended, True
                choice.ids.extend(event.ids if new else ())
            case _:
                return super().take(event)
        self.further = self.further or new
        return new

    @staticmethod
    def _take_delta(choice: _Choice, delta: Delta) -> bool:
        if choice.repeated:
            choice.repeated -= 1
            return False
        choice.deltas += 1
        choice.ids.extend(delta.ids)
        choice.calls.extend(part.id for part in delta.calls if part.id is not None)
        return True


def told(job: Job, *, exact: bool = True) -> Told:
    """Of a job that has said nothing yet. `exact`: its engine says the same when it does the same work again."""
    match job:
        case Transcribe():
            return _Transcription(job, exact=exact)
        case Chat() | Complete():
            return _Answer(job)
        case Guess():
            return _Guess(job)
        case _:
            return Told(job)
