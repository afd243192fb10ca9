"""The angles of rotary positions as tables, taken from a model's own rope module, whatever its scaling.

Knows the layout in which layer.py keeps queries and keys: first halves of all heads, then second halves.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from workers.llm.cpu.kernels import Turn

_GROWTH = 2048
"""Positions by which the tables grow; a power of two."""


class Rotation:
    """cosine and sine for each position, (positions, half a head), made as far as they are needed."""

    def __init__(self, rope: Any, head_size: int, heads: int, key_heads: int) -> None:
        self._rope = rope
        self._half = head_size // 2
        self._queries, self._keys = heads, key_heads
        self._scale = head_size**-0.5
        self._cosine, self._sine = mx.zeros((0, self._half)), mx.zeros((0, self._half))

    def at(self, offset: int | mx.array, rows: int, length: int, end: int, *, factor: float) -> Turn:
        """For `length` positions from `offset` on, in each of `rows`: (rows * length, half a head * all heads).

        offset: one number, or one for each row; those below 0 are padding. end: no position reaches it. factor:
        multiplies the scale that queries are turned with, which is that of softmax in natural units.
        """
        self._reach(end)
        if isinstance(offset, int):
            cosine, sine = self._cosine[offset : offset + length], self._sine[offset : offset + length]
            if rows > 1:
                cosine, sine = mx.tile(cosine, (rows, 1)), mx.tile(sine, (rows, 1))
        else:
            positions = mx.maximum(offset[:, None] + mx.arange(length), 0).reshape(-1)
            cosine, sine = self._cosine[positions], self._sine[positions]
        return Turn(self._spread(cosine, factor), self._spread(sine, factor))

    def _spread(self, table: mx.array, factor: float) -> mx.array:
        """(rows, half) to (rows, heads * half), the queries' part scaled."""
        scaled = table * (self._scale * factor)
        return mx.concatenate([mx.tile(scaled, (1, self._queries)), mx.tile(table, (1, self._keys))], axis=1)

    def _reach(self, end: int) -> None:
        have = self._cosine.shape[0]
        if end <= have:
            return
        grown = -(-end // _GROWTH) * _GROWTH
        # A rope module turns (1, 0) into (cosine, sine): whatever it does to the angles, and its scaling, are in it.
        unit = mx.concatenate([mx.ones((1, 1, grown, self._half)), mx.zeros((1, 1, grown, self._half))], axis=-1)
        turned = self._rope(unit)[0, 0]
        self._cosine, self._sine = mx.contiguous(turned[:, : self._half]), mx.contiguous(turned[:, self._half :])
        mx.eval(self._cosine, self._sine)
