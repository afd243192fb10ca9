"""A job between its reader and a worker process. Knows events and failures; knows no process and no queue."""

from __future__ import annotations

import asyncio
from collections import deque

from protocol.errors import BY_KIND, Failure, RequestTimeout
from protocol.events import Doubt, Event, Failed, Progress
from protocol.jobs import DetectSpeech, Follow, Job, Transcribe


class Ticket:
    """A job on its way: what was asked, and the answers that nobody has read yet.

    The process's reader never waits for a job's reader, or one slow client would hold up the others of
    that process. What waits is bounded by what a job can say (segments of a recording) and by `backlog`.
    """

    def __init__(self, number: int, job: Job, limit: float, backlog: int) -> None:
        self.number = number
        self.job = job
        self.limit = limit
        """Seconds of silence that a process may keep over it."""
        self.doubts = 0
        """Questions of the process's that nobody has answered yet: its silence meanwhile is no stall."""
        self._backlog = backlog
        self.overdue: asyncio.TimerHandle | None = None
        """Fails it when it has waited for a start for too long; the pool's."""
        self._events: deque[Event] = deque()
        self._failure: Failure | None = None
        self._news = asyncio.Event()
        self._left = False

    @property
    def urgent(self) -> bool:
        """Somebody speaks and waits, or a job that runs does."""
        return isinstance(self.job, DetectSpeech | Follow) or (isinstance(self.job, Transcribe) and self.job.urgent)

    def put(self, event: Event) -> bool:
        """False: too much waits already, and its reader has been told so."""
        self.doubts += isinstance(event, Doubt)
        if self._left:
            return True
        if isinstance(event, Progress) and self._events and isinstance(self._events[-1], Progress):
            self._events[-1] = event
            return True
        if len(self._events) >= self._backlog:
            self.fail(RequestTimeout("the answer was not read while it came"))
            return False
        self._events.append(event)
        self._news.set()
        return True

    def fail(self, failure: Failure) -> None:
        """After the events that are there, raise `failure`."""
        self._failure = self._failure or failure
        self._news.set()

    async def next(self) -> Event:
        """The next event. Raises what ended the job otherwise."""
        while not self._events:
            if self._failure is not None:
                raise again(self._failure)
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    def leave(self) -> None:
        """Nobody reads any more."""
        self._left = True
        self._events.clear()


def again(failure: Failure) -> Failure:
    """The same failure for one more request: an exception is raised once, or its tracebacks pile up."""
    return type(failure)(failure.message, param=failure.param, retry=failure.retry)


def failure_of(failed: Failed) -> Failure:
    """What crossed the pipe, to be raised here."""
    return BY_KIND[failed.kind](failed.message, param=failed.param, retry=failed.retry)
