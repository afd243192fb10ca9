"""Which rows decode in which batch, and whose beginnings others may start from. Knows rows as ids and caches only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from protocol.events import Kept
from workers.llm.adapters.serving import Serving
from workers.llm.batch import PADDING_BYTES, Batch, Head, copied, read
from workers.llm.cache import Ids, Layers, PromptCache, common, view
from workers.llm.running import Row, Running
from workers.llm.sampling import Floats
from workers.llm.spans import Costs, Fed, Wanted, width

WORTH_COPYING = 32
"""Tokens that a prompt which is being read must gain by starting over from somebody else's."""

ROOM = 256
"""Tokens by which mlx-lm's cache of one sequence grows: a short one takes as much."""


class Seats:
    """All rows of one network, in as few batches as their lengths and caches allow."""

    def __init__(
        self,
        network: Any,
        head: Head | None = None,
        *,
        padding_bytes: int = PADDING_BYTES,
        serving: Serving | None = None,
    ) -> None:
        """network: mlx-lm's model, tokens (rows, length), cache=layers -> logits. head: its last part, where known.
        serving: told whose adapters each pass needs."""
        self._network = network
        self._head = head
        self._padding_bytes = padding_bytes
        self._serving = serving or Serving()
        self._batches: list[Batch[Row]] = []
        self._costs = Costs()
        self.token_bytes = 0
        """Keys and values of one token, about; 0 before the first row."""

    def __len__(self) -> int:
        return sum(len(batch.rows) for batch in self._batches)

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self._batches for row in batch.rows]

    @property
    def nbytes(self) -> int:
        """Of all rows' keys and values, padding and room to grow included."""
        return sum(batch.nbytes for batch in self._batches)

    def new_layers(self) -> Layers:
        """Empty caches of one sequence."""
        return make_prompt_cache(self._network)

    def read(self, key: str, layers: Layers, ids: Sequence[int], *, last: bool) -> Floats | None:
        """A piece of one prompt goes into its caches; the logits (vocabulary,) after it if it is the `last`. key: of
        its adapter."""
        self._serving.turn((key,))
        return read(self._network, self._head, layers, ids, last=last)

    def seat(self, rows: Sequence[Row], layers: Layers, length: int, *, shared: bool) -> None:
        """Rows that go on from the same `length` tokens. Without `shared` a single row gets `layers` themselves."""
        self.token_bytes = sum(layer.nbytes for layer in layers) // max(length, ROOM)
        waiting = list(rows)
        while waiting:
            batch = self._roomiest(layers, length)
            # One after the other where caches do not merge; else all at once.
            joining, waiting = self._fitting(batch, layers, waiting)
            own = [view(layers, length, length) if shared else layers for _ in joining]
            batch.join(joining, own, length)

    def guesses(self, row: Row) -> bool:
        """Whether `row` can take back what was guessed wrong."""
        return any(row in batch.rows and batch.forgets for batch in self._batches)

    def step(self, wanted: Mapping[int, Wanted]) -> list[Fed]:
        """Feed each row (by id(row)) as much as pays; `settle` must follow before rows come or go."""
        fed: list[Fed] = []
        for batch in self._batches:
            fed.extend(self._step(batch, [wanted[id(row)] for row in batch.rows]))
        return fed

    def _step(self, batch: Batch[Row], wanted: Sequence[Wanted]) -> list[Fed]:
        wishes = [each.wish for each in wanted]
        columns = width(wishes, self._costs, uneven=batch.uneven)
        spans = [[*each.known, *each.certain, *each.guessed][:columns] for each in wanted]
        counts = [max(len(span) - len(each.known) + 1, 0) for span, each in zip(spans, wanted, strict=True)]
        self._serving.turn([row.running.key for row in batch.rows])
        begun = time.perf_counter()
        logits = batch.step(spans, counts)
        self._costs.took(len(spans), columns, time.perf_counter() - begun)
        tried = [max(len(span) - wish.sure, 0) for span, wish in zip(spans, wishes, strict=True)]
        # Without guesses the step would have been as wide as the longest of what is sure.
        plain = min(max(wish.sure for wish in wishes), columns)
        dearer = self._costs.ratio(len(spans), columns) - self._costs.ratio(len(spans), plain)
        guessing = sum(each > 0 for each in tried)
        price = max(dearer, 0.0) * len(spans) / guessing if guessing else 0.0
        return [Fed(*each, price) for each in zip(batch.rows, spans, logits, tried, strict=True)]

    def settle(self, kept: Mapping[int, int]) -> None:
        """Of each row's last span (by id(row)) the first so many tokens stay in its caches."""
        for batch in self._batches:
            batch.settle([kept[id(row)] for row in batch.rows])

    def leave(self, rows: Sequence[Row], *, keep: bool = False) -> list[tuple[Row, Layers]]:
        """Rows go; those that have no seat are passed over. With `keep` their caches are returned."""
        kept: list[tuple[Row, Layers]] = []
        for batch in self._batches:
            gone = [row for row in batch.rows if row in rows]
            if gone:
                kept.extend(batch.leave(gone, keep=keep))
        self._batches = [batch for batch in self._batches if batch.rows]
        return kept

    def prefix(self, row: Row, length: int) -> Layers | None:
        return next(batch.prefix(row, length) for batch in self._batches if row in batch.rows)

    def _roomiest(self, layers: Layers, length: int) -> Batch[Row]:
        able = [batch for batch in self._batches if batch.joinable(layers)]
        best = min(able, key=lambda batch: batch.padding(length), default=None)
        if best is None or best.padding(length) * self.token_bytes > self._padding_bytes:
            best = Batch(self._network, self._head)
            self._batches.append(best)
        return best

    @staticmethod
    def _fitting(batch: Batch[Row], layers: Layers, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        return (rows, []) if batch.mergeable(layers) else (rows[:1], rows[1:])


class Beginnings:
    """Where a prompt may start from: what finished conversations left, and what is being read or answered now."""

    def __init__(self, cache: PromptCache, seats: Seats) -> None:
        self._cache = cache
        self._seats = seats

    @property
    def nbytes(self) -> int:
        """Of finished conversations."""
        return self._cache.nbytes

    @property
    def kept(self) -> Kept:
        """Of them."""
        return Kept(len(self._cache), self._cache.nbytes)

    def begin(self, running: Running, others: Sequence[Running]) -> None:
        """Put `running` as far into its prompt as anything known reaches, if that is further than it is."""
        stored = self._cache.longest(running.key, running.ids)
        live, source = self._live(running, others)
        least = running.done + (WORTH_COPYING if running.done else 1)
        if live > stored and live >= least and source is not None and self._copy(running, source, live):
            return
        if stored < least:
            return
        found = self._cache.take(running.key, running.ids)
        if found is not None:
            running.layers, running.done, running.cached = found.layers, found.length, found.length
            running.pin = running.pin or found.pin

    def leave(self, rows: Sequence[Row]) -> None:
        """Rows give up their seats; of each job the first choice's caches are kept. They hold the prompt, and nobody
        knows yet which choice goes on: all of them would push other conversations out."""
        for row, layers in self._seats.leave([row for row in rows if row.choice == 0], keep=True):
            ids = np.concatenate([row.running.ids, np.array(row.ids[: row.fed], np.int32)])
            self.keep(row.running, ids, layers)
        self._seats.leave(rows)

    def keep(self, running: Running, ids: Ids, layers: Layers) -> None:
        """Remember a sequence; the caller gives up its layers."""
        self._cache.put(running.key, ids, layers, running.pin)

    def _live(self, running: Running, others: Sequence[Running]) -> tuple[int, Running | None]:
        best: tuple[int, Running | None] = (0, None)
        for other in others:
            if other is running or other.key != running.key or (other.layers is None and not other.rows):
                continue
            length = min(common(other.ids, running.ids), other.done, len(running.ids) - 1)
            if length > best[0]:
                best = length, other
        return best

    def _copy(self, running: Running, source: Running, length: int) -> bool:
        if source.layers is not None:
            layers = copied(source.layers, length, source.done)
        else:
            layers = self._seats.prefix(source.rows[0], length)
        if layers is None:
            return False
        running.layers, running.done, running.cached = layers, length, length
        return True
