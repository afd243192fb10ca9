"""A job between its reader and the worker processes that work on it, one after the other where they die. Knows events
and failures; knows no process and no queue."""

from __future__ import annotations

import asyncio
import time
from collections import deque

import msgspec

from protocol.errors import BY_KIND, Failure, RequestTimeout
from protocol.events import Delta, Doubt, Event, Failed, Progress
from protocol.jobs import DetectSpeech, Follow, Job, ListAdapters, MountAdapter, Transcribe
from service.told import Told

MOST_JOINED = 64
"""Tokens of an event that further ones are joined to."""


class Ticket:
    """A job on its way: what was asked, and the answers that nobody has read yet.

    The process's reader never waits for a job's reader, or one slow client would hold up the others of
    that process. What waits is bounded by what a job can say (segments of a recording) and by `backlog`.
    """

    def __init__(self, number: int, job: Job, told: Told, limit: float, backlog: int) -> None:
        self.number = number
        self.job = job
        """As it was asked."""
        self.told = told
        self.came = time.monotonic()
        self.limit = limit
        """Seconds of silence that a process may keep over it."""
        self.doubts = 0
        """Questions of the process's that nobody has answered yet: its silence meanwhile is no stall."""
        self.lives = 0
        """Processes that have died with it in hand."""
        self.suspect = False
        """One has, perhaps because of it, and it has not got further since: it is tried alone."""
        self.deaths = 0
        """Processes in a row that died while they had this job on trial, or no other."""
        self.strikes = 0.0
        """The same; those that were ended from outside count less."""
        self._backlog = backlog
        self.overdue: asyncio.TimerHandle | None = None
        """Fails it when it has waited for a start for too long; the pool's."""
        self._events: deque[Event] = deque()
        self._failure: Failure | None = None
        self._news = asyncio.Event()
        self._left = False

    @property
    def urgent(self) -> bool:
        """Somebody speaks and waits, or a job that runs does; or it is done at once. Unmounting an adapter is not
        urgent: it comes after the jobs before it, which may want that one."""
        quick = DetectSpeech | Follow | MountAdapter | ListAdapters
        return isinstance(self.job, quick) or (isinstance(self.job, Transcribe) and self.job.urgent)

    @property
    def over(self) -> bool:
        """Nobody waits for what a process would say."""
        return self._left or self._failure is not None

    def bereave(self, strike: float) -> None:
        """Its process has died: what that asked nobody need answer. strike: how far the job is to blame."""
        self.suspect = True
        self.lives += 1
        self.deaths += strike > 0
        self.strikes += strike
        self.doubts = 0
        self._events = deque(event for event in self._events if not isinstance(event, Doubt))

    def put(self, event: Event) -> bool:
        """Take what a process says, unless it was said before. False: too much waits already, and its reader has been
        told so."""
        self.doubts += isinstance(event, Doubt)
        new = self.told.take(event)
        if self.told.further:
            self.suspect, self.deaths, self.strikes = False, 0, 0.0
        if self._left or not new:
            return True
        if isinstance(event, Progress) and self._events and isinstance(self._events[-1], Progress):
            self._events[-1] = event
            return True
        if isinstance(event, Delta) and self._join(event):
            return True
        if len(self._events) >= self._backlog:
            self.fail(RequestTimeout("the answer was not read while it came"))
            return False
        self._events.append(event)
        self._news.set()
        return True

    def _join(self, delta: Delta) -> bool:
        """Words that nobody has read yet and those that follow them become one event, or a few of a length that a
        client reads at once."""
        for place in reversed(range(len(self._events))):
            before = self._events[place]
            if not isinstance(before, Delta):
                break
            if before.choice == delta.choice:
                both = joined(before, delta) if len(before.ids) < MOST_JOINED else None
                if both is None:
                    break
                self._events[place] = both
                return True
        return False

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


def joined(before: Delta, later: Delta) -> Delta | None:
    """Both as one, of one choice; None where their order would be lost: reasoning, text, calls."""
    if (before.calls and (later.text or later.reasoning or later.said)) or (before.text and later.reasoning):
        return None
    calls = [*before.calls]
    for part in later.calls:
        if part.id is None and calls and calls[-1].id is None:
            calls[-1] = msgspec.structs.replace(calls[-1], arguments=calls[-1].arguments + part.arguments)
        else:
            calls.append(part)
    return Delta(
        before.choice,
        before.text + later.text,
        before.reasoning + later.reasoning,
        before.said + later.said,
        tuple(calls),
        before.ids + later.ids,
    )


def again(failure: Failure) -> Failure:
    """The same failure for one more request: an exception is raised once, or its tracebacks pile up."""
    return type(failure)(failure.message, param=failure.param, retry=failure.retry)


def failure_of(failed: Failed) -> Failure:
    """What crossed the pipe, to be raised here."""
    return BY_KIND[failed.kind](failed.message, param=failed.param, retry=failed.retry)
