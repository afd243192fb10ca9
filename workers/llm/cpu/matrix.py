"""A weight as MLX's CPU backend multiplies with it fastest, whatever the number of rows. One copy, several views.

Why chunks: OpenBLAS packs its operands before a product of more than a million multiplications, which costs more than
the product itself when there are few rows. As (n / chunk, chunk, k) each product stays below that.
"""

from __future__ import annotations

import sys
from math import gcd

import mlx.core as mx

SMALL_PRODUCT = 1_000_000
"""OpenBLAS's limit for its small-matrix kernels (multiplications per product)."""
FEW_ROWS = 40
"""Up to so many rows are multiplied in chunks; beyond, packing pays."""
_CHUNKS = (64, 32, 16, 8)


class Matrix:
    """An (out, k) float32 weight."""

    def __init__(self, weight: mx.array) -> None:
        """`weight` must be contiguous; it is kept, not copied."""
        self.out, self.k = weight.shape
        self.transposed = weight.T
        sizes = sorted({gcd(self.out, each) for each in _CHUNKS}, reverse=True)
        views = [weight.reshape(-1, size, self.k).swapaxes(1, 2) for size in sizes]
        mx.eval(weight, self.transposed, *views)
        self._views = [
            # Of the last, the smallest, any number of rows is the most.
            (SMALL_PRODUCT // (size * self.k) if size > sizes[-1] else sys.maxsize, view)
            for size, view in zip(sizes, views, strict=True)
        ]

    def chunks(self, x: mx.array) -> mx.array:
        """x (rows, k), few rows -> (chunks, rows, out / chunks). The fewest chunks that keep each product small."""
        rows = x.shape[0]
        return x[None] @ next(view for most, view in self._views if rows <= most)

    def few(self, x: mx.array) -> mx.array:
        """x (rows, k), few rows -> (rows, out)."""
        return joined(self.chunks(x))

    def many(self, x: mx.array, plus: mx.array | None = None) -> mx.array:
        """x (rows, k), any number -> (rows, out), added to `plus`."""
        return x @ self.transposed if plus is None else mx.addmm(plus, x, self.transposed)

    def __call__(self, x: mx.array) -> mx.array:
        """x (rows, k) -> (rows, out)."""
        return self.few(x) if x.shape[0] <= FEW_ROWS else self.many(x)


def joined(chunks: mx.array) -> mx.array:
    """(chunks, rows, chunk) -> (rows, chunks * chunk)."""
    count, rows, chunk = chunks.shape
    return (chunks if rows == 1 else chunks.swapaxes(0, 1)).reshape(rows, count * chunk)
