"""Rows that decode together, over mlx-lm's caches: they join and leave between any two steps.

Knows networks, caches and which row is where; knows neither jobs nor sampling. Rows are whatever the caller calls them.
A row alone keeps mlx-lm's cache for one sequence, so that nothing is copied when it comes or goes; from two on the
caches are merged, which pads all rows to the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import BatchKVCache, KVCache

from workers.llm.cache import Layers, trimmable, view
from workers.llm.gaps import GappedKVCache, Gaps, close, settle

R = TypeVar("R")
Head = Callable[[mx.array], mx.array]
"""What a model's layers gave (rows, positions, width) -> logits (rows, positions, vocabulary)."""
Floats = npt.NDArray[np.float32]

PADDING_BYTES = 192 << 20
"""Of keys and values that a batch may hold for padding alone. Reading them costs 10 ms a step on a CPU and a second
batch 50; it is the memory that counts."""
GROWTH = 64
"""Tokens by which merged caches grow, instead of mlx-lm's 256: with eight rows of a small model that is 70 MB less, and
copying them now and then takes 1 % of a step."""
WHOLE_TOKENS = 128
"""Without a `Head`, all logits of up to so many positions are computed at the end of a prompt, the last's alone being
used: for more the last token goes through the network by itself."""


def batches(layers: Layers) -> bool:
    """Whether rows with such caches can decode together."""
    return all(hasattr(layer, "merge") for layer in layers)


def read(network: Any, head: Head | None, layers: Layers, ids: Sequence[int], *, last: bool) -> Floats | None:
    """Put a piece of one prompt into its caches; the logits (vocabulary,) after it if it is the `last` piece."""
    # Its layers without the table of all tokens, where the model has them apart.
    body = getattr(network, "model", None) or network
    if last and head is not None:
        return _only(head(body(_row(ids), cache=layers)[:, -1:]))
    rest = 0 if not last else len(ids) if len(ids) <= WHOLE_TOKENS or body is network else 1
    before = len(ids) - rest
    if before:
        body(_row(ids[:before]), cache=layers)
        mx.eval([layer.state for layer in layers])
    return _only(network(_row(ids[before:]), cache=layers)) if rest else None


def _row(ids: Sequence[int]) -> mx.array:
    return mx.array(list(ids), mx.int32)[None]


def _only(logits: mx.array) -> Floats:
    """Of the last position of the only row."""
    found: Floats = _host(logits[:, -1])[0]
    return found


def _host(logits: mx.array) -> Floats:
    return np.array(logits.astype(mx.float32), copy=False)


class Batch(Generic[R]):
    """Rows with one set of caches. Never empty while it is in use."""

    def __init__(self, network: Any, head: Head | None = None) -> None:
        self._network = network
        self._head = head
        self._layers: Layers = []
        self._merged = False
        self._gaps = Gaps()
        self._span = 0
        """Columns of the step that is not settled yet."""
        self.rows: list[R] = []
        self._lengths: list[int] = []

    @property
    def width(self) -> int:
        """Tokens that each row takes, padding included."""
        return max(self._lengths, default=0)

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._layers)

    def padding(self, length: int) -> int:
        """Tokens of padding that the batch would hold with one more row of `length`."""
        width = max(self.width, length)
        return sum(width - each for each in (*self._lengths, length))

    def joinable(self, layers: Layers) -> bool:
        return not self.rows or self.mergeable(layers)

    def mergeable(self, layers: Layers) -> bool:
        """Whether several rows with such caches can join at once."""
        return batches(layers) and (self._merged or batches(self._layers))

    def join(self, rows: Sequence[R], layers: Sequence[Layers], length: int) -> None:
        """Rows that have `length` tokens in their caches, which the caller gives up."""
        self._close()
        if self.rows or len(rows) > 1:
            alone = [] if self._merged or not self.rows else [self._layers]
            news = [each[0].merge(list(each)) for each in zip(*alone, *layers, strict=True)]
            if self._merged:
                for ours, new in zip(self._layers, news, strict=True):
                    ours.extend(new)
            else:
                self._layers = [
                    GappedKVCache(layer, self._gaps) if type(layer) is BatchKVCache else layer for layer in news
                ]
                for layer in self._layers:
                    if isinstance(layer, BatchKVCache):
                        layer.step = GROWTH
            self._merged = True
        else:
            self._layers = list(layers[0])
        self.rows.extend(rows)
        self._lengths.extend([length] * len(rows))

    @property
    def uneven(self) -> bool:
        """Whether rows can take spans of unequal length."""
        return len(self.rows) == 1 or all(isinstance(layer, GappedKVCache) for layer in self._layers)

    @property
    def forgets(self) -> bool:
        """Whether rows can take back tokens of the last step."""
        return self.uneven if self._merged else trimmable(self._layers)

    def step(self, spans: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Floats]:
        """Feed each row its span, in the order of `rows`; `settle` must follow.

        For each row the logits (wanted, vocabulary) after the last so many tokens of its span.
        """
        self._span = max(len(span) for span in spans)
        ids = mx.array([[*span, *[0] * (self._span - len(span))] for span in spans], mx.int32)
        if self._span == 1:
            logits = _host(self._network(ids, cache=self._layers)[:, -1])
            return [logits[row : row + count] for row, count in enumerate(wanted)]
        places = [
            row * self._span + len(span) - count + each
            for row, (span, count) in enumerate(zip(spans, wanted, strict=True))
            for each in range(count)
        ]
        found = self._at(ids, places)
        ends = np.cumsum(wanted)
        return [found[end - count : end] for end, count in zip(ends, wanted, strict=True)]

    def _at(self, ids: mx.array, places: list[int]) -> Floats:
        """The logits (places, vocabulary) at some of all rows' positions, counted row by row."""
        body = getattr(self._network, "model", None)
        if self._head is None or body is None:
            logits = self._network(ids, cache=self._layers)
            return _host(logits.reshape(-1, logits.shape[-1])[mx.array(places)]) if places else self._only_caches()
        hidden = body(ids, cache=self._layers)
        if not places:
            return self._only_caches()
        return _host(self._head(hidden.reshape(1, -1, hidden.shape[-1])[:, mx.array(places)])[0])

    def _only_caches(self) -> Floats:
        """Nobody asked for logits."""
        mx.eval([layer.state for layer in self._layers])
        return np.zeros((0, 1), np.float32)

    def settle(self, kept: Sequence[int]) -> None:
        """Of each row's last span the first so many tokens stay, at least one; the others it never had."""
        if self._merged and isinstance(self._layers[0], GappedKVCache):
            settle(self._layers, self._gaps, self._lengths, self._span, kept)
        elif kept[0] < self._span:
            for layer in self._layers:
                layer.trim(self._span - kept[0])
        self._lengths = [length + each for length, each in zip(self._lengths, kept, strict=True)]
        if self._gaps.wasted:
            self._close()

    def _close(self) -> None:
        close(self._layers, self._gaps)

    def prefix(self, row: R, length: int) -> Layers | None:
        """A copy of what a row holds of its first `length` tokens; None where its caches cannot be cut."""
        self._close()
        place = self.rows.index(row)
        if not self._merged:
            return copied(self._layers, length, self._lengths[place])
        if not all(isinstance(layer, BatchKVCache) for layer in self._layers):
            return None
        pad = self.width - self._lengths[place]
        found = []
        for layer in self._layers:
            span = slice(pad, pad + length)
            found.append(_kv(layer.keys[place : place + 1, :, span], layer.values[place : place + 1, :, span], length))
        mx.eval([layer.state for layer in found])
        return found

    def leave(self, gone: Sequence[R], *, keep: bool) -> list[tuple[R, Layers]]:
        """Rows go; their caches with them where `keep` says so."""
        self._close()
        places = [self.rows.index(row) for row in gone]
        kept: list[tuple[R, Layers]] = []
        if keep and self._merged:
            kept = [(self.rows[place], [layer.extract(place) for layer in self._layers]) for place in places]
            # Before the batch's arrays go, or they would stay for as long as the slices of them.
            mx.eval([layer.state for _, layers in kept for layer in layers])
        elif keep:
            kept = [(self.rows[place], self._layers) for place in places]
        stay = [place for place in range(len(self.rows)) if place not in places]
        self.rows = [self.rows[place] for place in stay]
        self._lengths = [self._lengths[place] for place in stay]
        if not stay:
            self._layers, self._merged = [], False
        elif places:
            for layer in self._layers:
                layer.filter(stay)
        return kept


def copied(layers: Layers, length: int, size: int) -> Layers | None:
    """The first `length` of `size` tokens in memory of their own; None where the caches cannot be cut.

    Evaluated at once: as long as a slice waits to be computed, the other's next token would copy all it has.
    """
    if not trimmable(layers) or not all(isinstance(layer, KVCache) for layer in layers):
        return None
    found = view(layers, length, size)
    found = [_kv(layer.keys[..., :length, :], layer.values[..., :length, :], length) for layer in found]
    mx.eval([layer.state for layer in found])
    return found


def _kv(keys: mx.array, values: mx.array, length: int) -> KVCache:
    layer = KVCache()  # type: ignore[no-untyped-call]
    layer.state = mx.contiguous(keys), mx.contiguous(values), length
    return layer
