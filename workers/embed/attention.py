"""Softmax attention on MLX's CPU backend. Knows queries, keys and masks; knows no weights."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from workers.embed.exponential import LOG2E

FEW_SCORES = 2048
"""Up to so many MLX's softmax is sooner done than the operations that go around its slow exponential."""

Exp2 = Callable[[mx.array], mx.array]


def attend(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array, exp2: Exp2) -> mx.array:
    """queries, keys and values (B, heads, L, d) -> (B, L, heads * d).

    mask: added to the scores (B or 1, 1, 1, L); finite.
    """
    rows, heads, length, size = queries.shape
    many = rows * heads * length * length > FEW_SCORES
    scores = (queries * LOG2E if many else queries) @ keys.swapaxes(-1, -2) + mask
    if many:
        powers = exp2(scores - mx.max(scores, axis=-1, keepdims=True))
        mixed = (powers @ values) / (powers @ mx.ones((length, 1)))
    else:
        mixed = mx.softmax(scores, axis=-1) @ values
    return mixed.swapaxes(1, 2).reshape(rows, length, heads * size)
