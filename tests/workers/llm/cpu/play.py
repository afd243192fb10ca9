"""Seats, stored conversations and adapters around one small network, played without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

VOCABULARY = 301
PADDING = 300
"""Tokens of padding that a batch may hold: rows of very unequal length make two batches."""
STORED = 1200
"""Tokens that finished conversations may take."""


@dataclass(eq=False)
class Job:
    """Of running.Running what seats ask for."""

    key: str
    ids: Any
    to_start: list[int]
    layers: Any = None
    done: int = 0
    cached: int = 0
    pin: str | None = None
    rows: list[Line] = field(default_factory=list)

    @property
    def left(self) -> int:
        return len(self.ids) - self.done


@dataclass(eq=False)
class Line:
    """Of running.Row."""

    running: Job
    choice: int
    ids: list[int] = field(default_factory=list)

    @property
    def fed(self) -> int:
        return len(self.ids)

    @property
    def all_ids(self) -> list[int]:
        return [*self.running.ids.tolist(), *self.ids]


class Play:
    """One network with all that the engine has around it."""

    def __init__(self, network: Any, mounts: Any) -> None:
        from workers.llm.cache import PromptCache
        from workers.llm.seats import Beginnings, Seats

        token = 2 * 4 * 32 * len(network.layers)
        self.network, self.mounts = network, mounts
        head = network.model.embed_tokens.as_linear
        self.seats: Any = Seats(network, head, serving=mounts.serving, padding_bytes=PADDING * token)
        self.cache = PromptCache(STORED * token)
        self.beginnings: Any = Beginnings(self.cache, self.seats)
        self.jobs: list[Job] = []

    @property
    def lines(self) -> list[Line]:
        return [line for job in self.jobs for line in job.rows]

    @property
    def resting(self) -> list[Any]:
        """Caches of one sequence that nobody else may touch: stored, being read, or of a row that is alone."""
        found = [entry.layers for entry in self.cache._entries]
        found += [job.layers for job in self.jobs if job.layers is not None]
        return found + [batch._layers for batch in self.seats._batches if not batch._merged]

    def read(self, at: int, size: int) -> Any:
        job = self.jobs[at]
        self.beginnings.begin(job, self.jobs)
        if job.layers is None:
            job.layers = self.seats.new_layers()
        size = min(size, job.left)
        last = size == job.left
        piece = job.ids[job.done : job.done + size].tolist()
        job.done += size
        return self.seats.read(job.key, job.layers, piece, last=last)

    def start(self, at: int, count: int) -> None:
        job = self.jobs[at]
        chosen, job.to_start = job.to_start[:count], job.to_start[count:]
        layers, last = job.layers, not job.to_start
        if last:
            job.layers = None
        lines = [Line(job, choice) for choice in chosen]
        job.rows += lines
        self.seats.seat(lines, layers, len(job.ids), shared=not (last and len(lines) == 1))

    def step(self, spans: Sequence[int], kept: Sequence[int], wanted: Sequence[int], seed: int) -> list[Any]:
        """Rows are to take spans of such lengths in turn, of which they keep so many tokens. The logits of all."""
        tokens, said = np.random.default_rng(seed), []
        for batch in self.seats._batches:
            rows = range(len(batch.rows))
            fed = [tokens.integers(0, VOCABULARY, turn(spans, row if batch.uneven else 0)).tolist() for row in rows]
            counts = [min(turn(wanted, row), len(span)) for row, span in enumerate(fed)]
            stay = [min(turn(kept, row), len(span)) for row, span in enumerate(fed)]
            self.mounts.serving.turn([line.running.key for line in batch.rows])
            said += batch.step(fed, counts)
            batch.settle(stay)
            for line, span, count in zip(batch.rows, fed, stay, strict=True):
                line.ids += span[:count]
        return said

    def leave(self, places: Sequence[int]) -> None:
        lines = [self.lines[place] for place in places]
        self.beginnings.leave(lines)
        for line in lines:
            line.running.rows.remove(line)
        self.jobs = [job for job in self.jobs if job.rows or job.to_start]

    def part(self, at: int) -> None:
        job = self.jobs.pop(at)
        self.seats.leave(job.rows)
        if job.layers is not None:
            self.beginnings.keep(job, job.ids[: job.done], job.layers)

    def full(self, key: str, ids: Any) -> Any:
        """The logits (rows, positions, vocabulary) without any cache."""
        import mlx.core as mx

        self.mounts.serving.turn((key,) * len(ids))
        return np.array(self.network(mx.array(np.array(ids, np.int32))))


def turn(values: Sequence[int], place: int) -> int:
    return values[place % len(values)]
