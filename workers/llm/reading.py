"""Reads prompts piece by piece: whose turn it is, where it may start from, how much at once.

Knows jobs in line and the time that pieces took; knows nothing of answers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workers.llm.queue import BUSY_S, IDLE_S, WORTH_READING, Line, Pace, Shares
from workers.llm.running import Running

if TYPE_CHECKING:
    from workers.llm.seats import Beginnings, Seats

USUAL_ANSWER = 256
"""Tokens; an answer may be longer, but memory is not set aside for it."""


class Reading:
    """Jobs whose prompts are not read to their end."""

    def __init__(
        self, seats: Seats, beginnings: Beginnings, shares: Shares, *, max_rows: int, memory_bytes: int
    ) -> None:
        """memory_bytes: of keys and values, beyond which no further prompt is begun while others are at work."""
        self._seats = seats
        self._beginnings = beginnings
        self._shares = shares
        self._max_rows = max_rows
        self._memory_bytes = memory_bytes
        self._line: Line[Running] = Line(shares, lambda job: job.client, lambda job: job.left)
        self._busy_pace = Pace(BUSY_S, first=32)
        self._idle_pace = Pace(IDLE_S, first=WORTH_READING, least=WORTH_READING)
        self.pieces = 0
        self.tokens = 0
        """Both since the start."""

    def add(self, running: Running) -> None:
        self._line.add(running)

    def remove(self, running: Running) -> None:
        """Also of one that is not in line."""
        self._line.remove(running)

    def next(self, jobs: Sequence[Running]) -> Running | None:
        """Whose turn it is. A prompt is begun only when its answer will have a row, and memory."""
        begun = [job for job in jobs if job.layers is not None]
        if len(self._seats) + len(begun) >= self._max_rows:
            return self._line.next(lambda job: job.layers is not None)
        held = self._seats.nbytes + sum(layer.nbytes for job in begun for layer in job.layers or ())
        return self._line.next(
            lambda job: job.layers is not None or not held or held + self._need(job) <= self._memory_bytes
        )

    def _need(self, job: Running) -> int:
        """Bytes that a prompt and a usual answer will take."""
        rows = min(len(job.to_start), self._max_rows)
        return self._seats.token_bytes * rows * (len(job.ids) + min(job.room, USUAL_ANSWER))

    def read(self, running: Running, jobs: Sequence[Running]) -> None:
        """Put one piece of a prompt into its caches. After the last, `running.logits` are there."""
        running.clock.begin()
        begun = time.perf_counter()
        self._beginnings.begin(running, jobs)
        found = time.perf_counter()
        running.clock.cache += 1e3 * (found - begun)
        pace = self._busy_pace if len(self._seats) else self._idle_pace
        size = pace.piece(running.left)
        last = size == running.left
        if running.layers is None:
            running.layers = self._seats.new_layers()
        piece = running.ids[running.done : running.done + size].tolist()
        running.logits = self._seats.read(running.key, running.layers, piece, last=last)
        seconds = time.perf_counter() - found
        running.done += size
        running.clock.prefill += 1e3 * seconds
        pace.took(size, seconds)
        self._shares.charge(running.client, seconds)
        self.pieces += 1
        self.tokens += size
        if last:
            self._line.remove(running)
        else:
            running.progress()
