"""Reads prompts piece by piece: whose turn it is, where it may start from, how much at once.

Knows jobs in line and the time that pieces took; knows nothing of answers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workers.llm.queue import BUSY_S, IDLE_S, Line, Pace, Shares
from workers.llm.running import Running

if TYPE_CHECKING:
    from workers.llm.seats import Beginnings, Seats


class Reading:
    """Jobs whose prompts are not read to their end."""

    def __init__(self, seats: Seats, beginnings: Beginnings, shares: Shares, max_rows: int) -> None:
        self._seats = seats
        self._beginnings = beginnings
        self._shares = shares
        self._max_rows = max_rows
        self._line: Line[Running] = Line(shares, lambda job: job.client, lambda job: job.left)
        self._busy_pace = Pace(BUSY_S, first=32)
        self._idle_pace = Pace(IDLE_S, first=128)
        self.pieces = 0
        self.tokens = 0
        """Both since the start."""

    def add(self, running: Running) -> None:
        self._line.add(running)

    def remove(self, running: Running) -> None:
        """Also of one that is not in line."""
        self._line.remove(running)

    def next(self, jobs: Sequence[Running]) -> Running | None:
        """Whose turn it is. A prompt is begun only when its answer will have a row."""
        taken = len(self._seats) + sum(job.layers is not None for job in jobs)
        return self._line.next(lambda job: job.layers is not None or taken < self._max_rows)

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
        running.logits = self._seats.read(running.layers, piece, last=last)
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
