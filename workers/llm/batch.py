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

    def __init__(self, network: Any) -> None:
        self._network = network
        self._layers: Layers = []
        self._merged = False
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
        if self.rows or len(rows) > 1:
            alone = [] if self._merged or not self.rows else [self._layers]
            news = [each[0].merge(list(each)) for each in zip(*alone, *layers, strict=True)]
            if self._merged:
                for ours, new in zip(self._layers, news, strict=True):
                    ours.extend(new)
            else:
                self._layers = news
                for layer in news:
                    if isinstance(layer, BatchKVCache):
                        layer.step = GROWTH
            self._merged = True
        else:
            self._layers = list(layers[0])
        self.rows.extend(rows)
        self._lengths.extend([length] * len(rows))

    def step(self, tokens: Sequence[int]) -> Floats:
        """Feed one token to each row, in the order of `rows`. Logits (rows, vocabulary)."""
        logits = self._network(mx.array(list(tokens), mx.int32)[:, None], cache=self._layers)
        found = _host(logits[:, -1])
        self._lengths = [length + 1 for length in self._lengths]
        return found

    def prefix(self, row: R, length: int) -> Layers | None:
        """A copy of what a row holds of its first `length` tokens; None where its caches cannot be cut."""
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
