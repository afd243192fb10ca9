"""What adapters add to the results of linear layers, row by row: rows with different ones go through together.

Knows matrices, and which row has which adapter in the pass that is being computed; knows no job and no file.

The adapters of a pass are put side by side: x [A1 A2] is one product for all rows, of which each row keeps the columns
of its own adapter, and what is left goes through [B1; B2]. A row without an adapter gets exact zeros.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module

from workers.llm.adapters.files import Pair

BASE = ""
"""The key of rows without an adapter."""

PASSES = 8
"""Kept: rows decode step after step, and prompts are read in between."""
STACKS = 2
"""Sets of several adapters whose matrices are kept side by side."""


class _Pass:
    """Which adapter each row has."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.active = tuple(sorted({key for key in keys if key != BASE}))
        self.keys = keys
        self._masks: dict[tuple[tuple[str, int], ...], mx.array | None] = {}

    def mask(self, columns: tuple[tuple[str, int], ...]) -> mx.array | None:
        """Of columns that belong to these adapters, so many to each, those that are a row's own: (rows, 1, columns).
        None: all are, for every row."""
        if columns not in self._masks:
            owners = np.repeat([key for key, _ in columns], [width for _, width in columns])
            own = np.array(self.keys)[:, None] == owners
            self._masks[columns] = None if own.all() else mx.array(own[:, None])
        return self._masks[columns]


class Serving:
    """The pass that is being computed. All layers of a network share it."""

    def __init__(self) -> None:
        self._now = _Pass(())
        self._recent: OrderedDict[tuple[str, ...], _Pass] = OrderedDict()

    def turn(self, keys: Sequence[str]) -> None:
        """The next pass has a row for each of these adapters, in this order."""
        told = tuple(keys)
        found = self._recent.pop(told, None) or _Pass(told)
        self._recent[told] = self._now = found
        if len(self._recent) > PASSES:
            self._recent.popitem(last=False)

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the pass, row by row; empty: no row has an adapter."""
        return self._now.keys

    @property
    def active(self) -> tuple[str, ...]:
        """The adapters of the pass."""
        return self._now.active

    def mask(self, columns: tuple[tuple[str, int], ...]) -> mx.array | None:
        """As _Pass has it."""
        return self._now.mask(columns)


class Additions:
    """What is added to the result of one matrix, by adapter."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._pairs: dict[str, Pair] = {}
        self._stacks: OrderedDict[tuple[str, ...], Pair] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def put(self, key: str, pair: Pair) -> None:
        self._pairs[key] = pair

    def drop(self, key: str) -> None:
        """Also of one that is not there."""
        self._pairs.pop(key, None)
        self._stacks.clear()

    def to(self, x: mx.array) -> mx.array | None:
        """x (rows of the pass * positions, in) -> (the same, out) in float32; None: no row has any."""
        keys = tuple(key for key in self._serving.active if key in self._pairs)
        if not keys:
            return None
        stack = self._stack(keys)
        low = x @ stack.a
        mask = self._serving.mask(tuple((key, self._pairs[key].a.shape[1]) for key in keys))
        if mask is not None:
            # Not a product: what another's columns overflow to must not come back as NaN.
            low = mx.where(mask, low.reshape(mask.shape[0], -1, low.shape[1]), 0).reshape(low.shape)
        return low @ stack.b

    def _stack(self, keys: tuple[str, ...]) -> Pair:
        if len(keys) == 1:
            return self._pairs[keys[0]]
        if keys not in self._stacks:
            pairs = [self._pairs[key] for key in keys]
            self._stacks[keys] = Pair(
                mx.concatenate([pair.a for pair in pairs], axis=1), mx.concatenate([pair.b for pair in pairs])
            )
            if len(self._stacks) > STACKS:
                self._stacks.popitem(last=False)
        else:
            self._stacks.move_to_end(keys)
        return self._stacks[keys]


class AdaptedLinear(Module):
    """A linear module of any kind, quantized ones too, with what adapters add; the module itself stays as it is."""

    def __init__(self, linear: Any, additions: Additions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.linear = linear
        self._additions = additions

    def __call__(self, x: mx.array) -> mx.array:
        """x (rows, …, in) -> (rows, …, out)."""
        y: mx.array = self.linear(x)
        added = self._additions.to(x.reshape(-1, x.shape[-1]))
        return y if added is None else y + added.reshape(y.shape).astype(y.dtype)
