"""Softmax attention over a cache on MLX's CPU backend: few new positions, or blocks of many over two streams.

Knows queries, keys and masks; knows no weights. Scores of few positions are in natural units, of many in powers of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from workers.whisper.cpu.kernels import LOG2E, SCORE_LIMIT

BLOCK = 128
"""New positions whose scores are computed together: one head's stay in the cache of a core."""

FEW_SCORES = 2048
"""Up to so many MLX's softmax is sooner done than the operations that go around its slow exponential."""

Exp2 = Callable[[mx.array], mx.array]


def attend(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None, exp2: Exp2) -> mx.array:
    """queries (B, heads, L, d), keys and values (B, key heads, T, d) -> (B, L, heads * d). Any mask, natural units.

    mask: added to the scores (B or 1, 1, L, T); finite.
    """
    rows, heads, length, size = queries.shape
    groups, end = keys.shape[1], keys.shape[2]
    grouped = queries.reshape(rows, groups, -1, size)  # (B, key heads, heads / key heads * L, d)
    many = rows * heads * length * end > FEW_SCORES
    scores = (grouped * LOG2E if many else grouped) @ keys.swapaxes(-1, -2)
    if mask is not None:
        scores = (scores.reshape(rows, groups, -1, length, end) + mask[:, :, None]).reshape(scores.shape)
    if many:
        powers = exp2(scores - mx.max(scores, axis=-1, keepdims=True))
        mixed = (powers @ values) / (powers @ mx.ones((end, 1)))
    else:
        mixed = mx.softmax(scores, axis=-1) @ values
    return mixed.reshape(rows, heads, length, size).swapaxes(1, 2).reshape(rows, length, heads * size)


@dataclass(frozen=True)
class Bound:
    """How large scores can become, in powers of two, for each key head: told before the exponentials are taken."""

    safe: list[bool]


def largest(queries: mx.array, keys: mx.array) -> mx.array:
    """queries (heads, rows, d), keys (key heads, T, d) -> (key heads,): |q| |k| bounds every score of the group."""
    groups, _, size = keys.shape
    ones = mx.ones((size, 1))
    q = mx.max(((queries * queries) @ ones).reshape(groups, -1), axis=-1)
    k = mx.max(((keys * keys) @ ones).reshape(groups, -1), axis=-1)
    return q * k


def bound(squares: mx.array) -> Bound:
    """From `largest` of all queries; waits for it. Written so that a NaN counts as too large."""
    found: Any = squares.tolist()
    return Bound([square < SCORE_LIMIT**2 for square in found])


def causal(
    queries: mx.array, keys: mx.array, values: mx.array, seen: int, exp2: Exp2, triangle: mx.array, limit: Bound
) -> mx.array:
    """One block: queries (heads, b, d) at positions seen .. seen + b, keys (key heads, T, d) with T = seen + b, values
    (key heads, T, d + 1) whose last column is 1 -> (b, heads * d).

    triangle: (heads / key heads * b, b), 0 where a key is later than the query, else 1.
    """
    heads, block, size = queries.shape
    groups = keys.shape[0]
    mixed = []
    for group, safe in enumerate(limit.safe):
        share = heads // groups
        q = queries[group * share : (group + 1) * share].reshape(share * block, size)
        k, v = keys[group], values[group]
        if safe:
            late = (exp2(q @ k[seen:].T) * triangle) @ v[seen:]
            weighed = mx.addmm(late, exp2(q @ k[:seen].T), v[:seen]) if seen else late
        else:
            # The score of a key that may not be seen counts in the maximum too: exact, but for what underflows.
            scores = q @ k.T
            hidden = mx.pad(1 - triangle, [(0, 0), (seen, 0)])
            scores = mx.where(hidden > 0, -1e30, scores)
            powers = exp2(mx.maximum(scores - mx.max(scores, axis=-1, keepdims=True), -1e4))
            weighed = powers @ v
        mixed.append((weighed[:, :-1] / weighed[:, -1:]).reshape(share, block, size))
    return mx.concatenate(mixed).swapaxes(0, 1).reshape(block, heads * size)
