"""A weight as MLX's CPU backend multiplies with it fastest, whatever the number of rows. One copy, several views.

OpenBLAS packs its operands before it multiplies; with few rows that costs more than the product. Where it has kernels
that need no packing (`small_products`), a product of up to a million multiplications takes those: the weight is cut
into chunks of rows, (n / chunk, chunk, k). Elsewhere packing is cheapest from (k, n), where it copies runs instead of
transposing: a quarter less time for each product on AVX2.
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
    """An (out, k) float32 weight, or `parts` of the same size below each other that are multiplied in one go."""

    def __init__(self, weight: mx.array, *, small_products: bool, parts: int = 1) -> None:
        """`weight` must be contiguous. With `small_products` it is kept; else it is copied."""
        self.out, self.k = weight.shape
        each = self.out // parts
        whole = weight.reshape(parts, each, self.k).swapaxes(1, 2)
        if small_products:
            sizes = sorted({gcd(each, size) for size in _CHUNKS}, reverse=True)
            views = [weight.reshape(-1, size, self.k).swapaxes(1, 2) for size in sizes]
        else:
            sizes, views = [each], [whole := mx.contiguous(whole)]
        self._whole = whole
        # Of one part: (k, out) and (out, k). Not by an index, which would copy.
        self._plain = whole.squeeze(0) if parts == 1 else whole
        self._rows = self._plain.swapaxes(-1, -2)
        mx.eval(whole, self._plain, self._rows, *views)
        self._views = [
            # Of the last, the smallest, any number of rows is the most.
            (SMALL_PRODUCT // (size * self.k) if size > sizes[-1] else sys.maxsize, view)
            for size, view in zip(sizes, views, strict=True)
        ]

    def rows(self, places: mx.array) -> mx.array:
        """places (…,) -> those rows of the weight, (…, k). Of one part only."""
        return self._rows[places]

    def chunks(self, x: mx.array) -> mx.array:
        """x (rows, k), few rows -> (chunks, rows, out / chunks). The fewest chunks that keep each product small."""
        rows = x.shape[0]
        return x[None] @ next(view for most, view in self._views if rows <= most)

    def apart(self, x: mx.array) -> mx.array:
        """x (rows, k), any number -> (chunks, rows, out / chunks), each part a run of as many chunks as the others."""
        return self.chunks(x) if x.shape[0] <= FEW_ROWS else x[None] @ self._whole

    def many(self, x: mx.array, plus: mx.array | None = None) -> mx.array:
        """x (rows, k), any number -> (rows, out), added to `plus`. Of one part only."""
        return x @ self._plain if plus is None else mx.addmm(plus, x, self._plain)

    def __call__(self, x: mx.array) -> mx.array:
        """x (rows, k) -> (rows, out). Of one part only."""
        return joined(self.chunks(x)) if x.shape[0] <= FEW_ROWS else self.many(x)


def joined(chunks: mx.array) -> mx.array:
    """(chunks, rows, chunk) -> (rows, chunks * chunk)."""
    count, rows, chunk = chunks.shape
    return (chunks if rows == 1 or count == 1 else chunks.swapaxes(0, 1)).reshape(rows, count * chunk)
