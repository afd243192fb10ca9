"""Whose turn it is among sessions: what all of them share, and how one of them waits for workers that come and go.

Knows failures and pools of workers; knows no audio and no text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from protocol.errors import Failure, InternalError, QueueFull, RequestTimeout, Unavailable, WorkerCrashed
from service.ticket import again
from service.worker import Worker

T = TypeVar("T")

log = logging.getLogger("starling.dictation")

GUESSES = 2
"""Guesses at what is being said that all sessions together may ask for at once: they are a courtesy."""
POISON = 3
"""Times in a row that the pool has given a job up, each time for several crashes, after which it is not tried again.
Nobody kills workers for so long by chance."""
FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
"""Seconds between two tries, doubling, where the pool itself does not make a job wait (it does after a crash)."""
OVERDUE = 30.0
"""Seconds of trying after which those who wait for an answer are told."""


class Turns:
    """One for all sessions."""

    def __init__(self) -> None:
        self.guesses = asyncio.Semaphore(GUESSES)


class Patience:
    """One session's: repeats what fails for reasons that pass. `changed` is called when `stuck` has changed."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._stuck: dict[object, Failure] = {}

    @property
    def stuck(self) -> Failure | None:
        """What keeps the session from going on, and has done so for long or will until someone acts; to be raised."""
        return next((again(failure) for failure in self._stuck.values()), None)

    async def insist(self, attempt: Callable[[], Awaitable[T]], worker: Worker | None = None) -> T:
        """The attempt's result, however many it takes. Raises what would fail again: refusals, bugs, and the crash of
        a job that has ended its worker over and over."""
        key = object()
        try:
            return await self._insist(attempt, worker, key)
        finally:
            if self._stuck.pop(key, None):
                self._changed()

    async def _insist(self, attempt: Callable[[], Awaitable[T]], worker: Worker | None, key: object) -> T:
        loop = asyncio.get_running_loop()
        since = loop.time()
        crashes, delay = 0, FIRST_DELAY
        while True:
            try:
                return await attempt()
            except (QueueFull, Unavailable, RequestTimeout, InternalError) as failure:
                broken = worker is not None and worker.failure is not None
                if isinstance(failure, WorkerCrashed | InternalError) and not broken:
                    crashes += 1
                    if crashes >= POISON:
                        raise
                log.info("a dictation tries again: %s", failure.message)
                overdue = loop.time() - since >= OVERDUE
                if broken or overdue or not isinstance(failure, QueueFull | WorkerCrashed | InternalError):
                    self._stuck[key] = failure
                    self._changed()
                if crashes and not broken and isinstance(failure, WorkerCrashed):
                    continue
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)
