"""How tasks of one event loop wait for each other: something has changed, look for yourself. And how they call each
other's work off. Knows no session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Bell:
    """Rung whenever something has changed. Who waits looks at what he waits for before and after, so no ring is
    missed."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        rung, self._rung = self._rung, asyncio.Event()
        rung.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self._rung.wait()


class Errand:
    """One task's work that another task may call off. One at a time."""

    def __init__(self) -> None:
        self._limit: asyncio.Timeout | None = None

    @property
    def busy(self) -> bool:
        return self._limit is not None

    async def run(self, work: Awaitable[T]) -> T | None:
        """The work's result; None when it was called off."""
        assert self._limit is None
        try:
            async with asyncio.timeout(None) as limit:
                self._limit = limit
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            return None
        finally:
            self._limit = None

    def call_off(self) -> None:
        """Does nothing when there is no work, or when it was called off already."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())


async def to_the_end(work: Awaitable[T]) -> T:
    """The work's result. A caller that is cancelled meanwhile is so only when the work has ended."""
    working = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait((working,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not working.cancelled() and (failure := working.exception()):
            raise cancelled from failure
        raise cancelled
    return working.result()
