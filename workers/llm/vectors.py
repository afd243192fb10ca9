"""Vectors of texts from mlx-lm's networks: what the last layer says of a text's tokens, pooled.

Knows networks, caches and pooling; knows neither jobs nor text. Texts of unequal length are filled up behind their end,
which no token of theirs sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from workers.llm.adapters.serving import BASE, Serving
from workers.llm.pooling import Pooling
from workers.llm.texts import Embedder, Floats, Ids

Body = Callable[..., mx.array]
"""A network without what makes logits: tokens (rows, length), cache=layers or None -> (rows, length, width)."""

_PLACES = ("model", "language_model.model", "transformer", "backbone")
"""Where mlx-lm's classes keep it."""


def body_of(network: Any) -> Body | None:
    """None where a network has no such part, or none that is known."""
    for place in _PLACES:
        found = network
        for name in place.split("."):
            found = getattr(found, name, None)
        if callable(found):
            body: Body = found
            return body
    return None


def width_of(network: Any, vocabulary: int) -> int:
    """Numbers in its vectors; 0: it gives none. Runs a token through it."""
    body = body_of(network)
    if body is None:
        return 0
    given: Any = body(mx.zeros((1, 1), mx.int32))
    fits = isinstance(given, mx.array) and given.ndim == 3 and given.shape[-1] != vocabulary
    return int(given.shape[-1]) if fits else 0


class Decoder:
    """A network that reads from left to right, as texts.Network."""

    def __init__(
        self, network: Any, width: int, pooling: Pooling, serving: Serving | None = None, key: str = BASE
    ) -> None:
        """serving: told that all rows want the adapter of this key, or none."""
        found = body_of(network)
        assert found is not None, "it has a width, so it has a body"
        body = found

        def adapted(tokens: mx.array, **options: Any) -> mx.array:
            if serving is not None:
                serving.turn(() if key == BASE else (key,) * len(tokens))
            return body(tokens, **options)

        self._network, self._body = network, adapted
        self._serving = serving
        self._pooling = pooling
        self.width = width

    def beside(self, serving: Serving) -> Decoder:
        return Decoder(self._network, self.width, self._pooling, serving)

    def adapted(self, key: str) -> Decoder:
        assert self._serving is not None, "there are adapters"
        return Decoder(self._network, self.width, self._pooling, self._serving, key)

    def together(self, inputs: Sequence[Ids]) -> Floats:
        lengths = [len(ids) for ids in inputs]
        rows = np.zeros((len(inputs), max(lengths)), np.int32)
        for row, ids in zip(rows, inputs, strict=True):
            row[: len(ids)] = ids
        return host(pooled(self._body(mx.array(rows)), lengths, self._pooling))

    def begin(self, ids: Ids) -> Reading:
        return Reading(self._body, make_prompt_cache(self._network), ids, self._pooling)


def served(embedder: Embedder | None, serving: Serving) -> Embedder | None:
    """The same beside adapters, which it has to tell what its passes want."""
    if embedder is None or not isinstance(embedder.network, Decoder):
        return embedder
    return replace(embedder, network=embedder.network.beside(serving))


class Reading:
    """One long text on its way through a network's caches, as texts.Reading."""

    def __init__(self, body: Body, layers: list[Any], ids: Ids, pooling: Pooling) -> None:
        self._body, self._layers, self._ids, self._pooling = body, layers, ids, pooling
        self._done = 0
        self._held: mx.array | None = None
        """(width,): the sum of the tokens' vectors so far, or the one that counts."""

    @property
    def left(self) -> int:
        return len(self._ids) - self._done

    def read(self, size: int) -> Floats | None:
        piece = self._ids[self._done : self._done + size]
        hidden = self._body(mx.array(piece)[None], cache=self._layers)[0]
        if self._pooling == "mean":
            total = _mean(hidden.astype(mx.float32)[None], [len(piece)])[0] * len(piece)
            self._held = total if self._held is None else self._held + total
        elif self._pooling == "last" or self._held is None:
            self._held = hidden[-1 if self._pooling == "last" else 0].astype(mx.float32)
        assert self._held is not None
        mx.eval(self._held, [layer.state for layer in self._layers])
        self._done += len(piece)
        if self.left:
            return None
        return host(self._held / len(self._ids) if self._pooling == "mean" else self._held)


def pooled(hidden: mx.array, lengths: Sequence[int], pooling: Pooling) -> mx.array:
    """(rows, length, width), of each row the first so many tokens -> (rows, width) float32."""
    if pooling == "cls":
        return hidden[:, 0].astype(mx.float32)
    if pooling == "last":
        return hidden[mx.arange(len(lengths)), mx.array(list(lengths)) - 1].astype(mx.float32)
    return _mean(hidden.astype(mx.float32), lengths)


def _mean(hidden: mx.array, lengths: Sequence[int]) -> mx.array:
    """A product of matrices: MLX's own sums are slow on the CPU."""
    counts = mx.array(list(lengths))[:, None]
    shares = mx.where(mx.arange(hidden.shape[1]) < counts, 1 / counts.astype(mx.float32), 0.0)
    return (shares[:, None] @ hidden)[:, 0]


def host(vectors: mx.array) -> Floats:
    found: Floats = np.array(vectors, copy=False)
    return found
