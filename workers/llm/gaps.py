"""Rows of one batch that take spans of unequal length: columns of the caches that are nobody's, and are never seen.

mlx-lm's batched cache has all rows end in its last column. After a step in which a row took fewer tokens than the
longest span, or took some of them back, its columns up to there are gaps: masked from then on, closed before rows join
or leave. Knows caches and columns; knows no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import BatchKVCache

from workers.llm.cache import Layers

Columns = npt.NDArray[np.bool_]
"""(rows, width): True where a column holds a token of the row."""

WORTH_CLOSING = 64
"""Columns that are wasted, and a quarter of all: closing copies everything once."""


class Gaps:
    """The columns of a batch's caches. All layers share it."""

    def __init__(self) -> None:
        self.seen: Columns | None = None
        """None: each row's tokens are the last columns, as mlx-lm has them."""

    @property
    def wasted(self) -> bool:
        if self.seen is None:
            return False
        width: int = self.seen.shape[1]
        longest = int(self.seen.sum(1).max())
        return width - longest > max(WORTH_CLOSING, width // 4)

    def settle(self, lengths: Sequence[int], kept: Sequence[int]) -> None:
        """Rows that had `lengths` tokens took a span each, and keep so many tokens of it."""
        most = max(kept)
        if self.seen is None:
            if min(kept) == most:
                return
            width = max(lengths)
            self.seen = np.arange(width) >= width - np.array(lengths)[:, None]
        self.seen = np.concatenate([self.seen, np.arange(most) < np.array(kept)[:, None]], axis=1)

    def mask(self, new: int, window: int | None) -> mx.array:
        """Which columns each of `new` positions of every row sees: (rows, 1, new, width + new)."""
        assert self.seen is not None
        rows, width = self.seen.shape
        every = np.concatenate([self.seen, np.ones((rows, new), np.bool_)], axis=1)
        earlier = np.arange(width + new) <= width + np.arange(new)[:, None]
        mask = every[:, None, :] & earlier
        if window is not None:
            place = every.cumsum(1)
            mask &= place[:, width:, None] < place[:, None, :] + window
        return mx.array(mask[:, None])


class GappedKVCache(BatchKVCache):
    """mlx-lm's, but for the mask while there are gaps."""

    def __init__(self, plain: BatchKVCache, gaps: Gaps) -> None:
        """Takes over the arrays of `plain`."""
        super().__init__([0])
        self.state = plain.state
        self.gaps = gaps

    def make_mask(self, N: int, return_array: bool = False, **kwargs: Any) -> Any:
        """As mlx-lm calls it."""
        if self.gaps.seen is None:
            return super().make_mask(N, return_array, **kwargs)
        return self.gaps.mask(N, kwargs.get("window_size"))


def settle(layers: Layers, gaps: Gaps, lengths: Sequence[int], span: int, kept: Sequence[int]) -> None:
    """After a step of `span` columns: of each row's so many tokens stay. lengths: before it."""
    gaps.settle(lengths, kept)
    if min(kept) == span:
        return
    offset = mx.array([length + each for length, each in zip(lengths, kept, strict=True)])
    for layer in layers:
        layer._idx -= span - max(kept)
        layer.offset = offset


def close(layers: Layers, gaps: Gaps) -> None:
    """All rows end in the last column again; copies all keys and values where there were gaps."""
    if gaps.seen is None:
        return
    own = [np.flatnonzero(row) for row in gaps.seen]
    width = max(len(row) for row in own)
    places = [mx.array(np.concatenate([np.zeros(width - len(row), np.int64), row])) for row in own]
    padding = mx.array([width - len(row) for row in own])
    offset = mx.array([len(row) for row in own])
    for layer in layers:
        layer.keys = _gathered(layer.keys, places)
        layer.values = _gathered(layer.values, places)
        layer.left_padding, layer.offset, layer._idx = padding, offset, width
        # One layer after the other, or the old and the new of all would be held at once.
        mx.eval(layer.keys, layer.values)
    gaps.seen = None


def _gathered(array: mx.array, places: list[mx.array]) -> mx.array:
    """array: (rows, heads, columns, d); places: of each row, the columns that it is to have."""
    return mx.stack([mx.take(array[row], place, axis=1) for row, place in enumerate(places)])
