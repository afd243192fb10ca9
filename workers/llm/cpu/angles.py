"""The angles of rotary positions as tables, taken from a model's own rope module, whatever its scaling."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

_GROWTH = 2048
"""Positions by which the tables grow."""

Floats = npt.NDArray[np.float32]


class Angles:
    """cosine and sine for each position, (positions, half a head), made as far as they are needed."""

    def __init__(self, rope: Any, size: int) -> None:
        self._rope = rope
        self._half = size // 2
        self._cosine = self._sine = np.zeros((0, self._half), np.float32)

    def upto(self, end: int) -> tuple[Floats, Floats]:
        """For at least all positions below `end`."""
        if end > len(self._cosine):
            grown = -(-end // _GROWTH) * _GROWTH
            # A rope module turns (1, 0) into (cosine, sine): whatever it does to the angles is in it.
            ones, zeros = (make((1, 1, grown, self._half)) for make in (mx.ones, mx.zeros))
            turned = np.array(self._rope(mx.concatenate([ones, zeros], axis=-1)))[0, 0]
            self._cosine, self._sine = (
                np.ascontiguousarray(half) for half in (turned[:, : self._half], turned[:, self._half :])
            )
        return self._cosine, self._sine
