"""How long a process may be silent. Knows the clock; knows no process."""

from __future__ import annotations

import asyncio
from types import TracebackType

HELD_UP_S = 1.0
"""An alarm that comes so late says that this process was held up itself: stopped, or frozen with its container."""


class Patience:
    """A context like asyncio.timeout, with seconds of silence instead of a moment; to be entered once.

    A silence in which this process did not run counts for nothing: whoever was silent may have been held up as well,
    or has spoken and was not read yet.
    """

    def __init__(self) -> None:
        self._timeout = asyncio.timeout(None)
        self._alarm: asyncio.TimerHandle | None = None
        self._limit: float | None = None
        self._since = 0.0

    async def __aenter__(self) -> Patience:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises TimeoutError when the silence was too long."""
        self._disarm()
        await self._timeout.__aexit__(kind, error, trace)

    @property
    def ran_out(self) -> bool:
        return self._timeout.expired()

    @property
    def silence(self) -> float:
        """Seconds."""
        return asyncio.get_running_loop().time() - self._since

    def begin(self) -> None:
        """The silence begins now. Followed by `allow`."""
        self._since = asyncio.get_running_loop().time()

    def allow(self, limit: float | None) -> None:
        """None: for ever. Does nothing once it has run out."""
        self._disarm()
        self._limit = limit
        if limit is not None and not self.ran_out:
            due = self._since + limit
            self._alarm = asyncio.get_running_loop().call_at(due, self._ring, due)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _ring(self, due: float) -> None:
        if asyncio.get_running_loop().time() - due > HELD_UP_S:
            self.begin()
            self.allow(self._limit)
        else:
            self._timeout.reschedule(due)
