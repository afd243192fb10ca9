"""What a worker says, on its way to the service: the words of a fast, long answer travel a few at a time.

Each frame that crosses by itself wakes the service, its client's connection and the client: together half a millisecond
of processor time, a tenth of a small model's token. Nobody reads faster than a screen is drawn. Knows frames and time;
knows no engine.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from protocol.events import TERMINAL, Delta, FromWorker
from protocol.wire import frame

HOLD_S = 0.02
"""Seconds for which a Delta may wait for the next one."""
YOUTH = 0.2
"""Of a job's first seconds, this part: at first each word goes by itself, and the longer an answer, the less its client
notices."""


class Outbox:
    """Frames in the order in which they were said. Any thread may say one; `let_go` is the main thread's.

    A Delta waits while the last parcel is younger than `hold_s`, or than `youth` of the time since the first Delta of
    its job. Everything else goes out at once, after what waits; and so does a Delta behind a step that took longer than
    `hold_s`, for the one that it comes from may read as long a piece of a prompt yet.
    """

    def __init__(self, write: Callable[[bytes], None], hold_s: float = HOLD_S, youth: float = YOUTH) -> None:
        self._write = write
        self._hold_s = hold_s
        self._youth = youth
        self._lock = threading.Lock()  # Reports of loading may come from a downloader's threads.
        self._held = bytearray()
        self._wrote_at = 0.0
        self._due_at = math.inf
        """When what is held goes out at the latest."""
        self._stepped_at = 0.0
        self._slow = True
        """The last step took longer than a Delta may wait."""
        self._spoke_at: dict[int, float] = {}
        """When a job's first Delta was said."""

    def say(self, answer: tuple[int, FromWorker]) -> None:
        """Raises what `write` does."""
        job, event = answer
        data = frame(job, event)
        with self._lock:
            self._held += data
            self._due_at = min(self._due_at, self._wrote_at + self._patience(job, event))
            self._go()

    def let_go(self) -> None:
        """A step is over: what has waited long enough goes out. Raises what `write` does."""
        with self._lock:
            before, self._stepped_at = self._stepped_at, time.monotonic()
            self._slow = self._stepped_at - before > self._hold_s
            self._go()

    def _patience(self, job: int, event: FromWorker) -> float:
        """Seconds that must lie between the last parcel and this event."""
        if isinstance(event, Delta):
            now = time.monotonic()
            young = self._youth * (now - self._spoke_at.setdefault(job, now))
            return 0.0 if self._slow else min(self._hold_s, young)
        if isinstance(event, TERMINAL):
            self._spoke_at.pop(job, None)
        return 0.0

    def _go(self) -> None:
        if time.monotonic() >= self._due_at:
            self._write(bytes(self._held))
            self._held.clear()
            self._wrote_at, self._due_at = time.monotonic(), math.inf
