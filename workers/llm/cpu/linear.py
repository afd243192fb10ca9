"""Linear layers for MLX's CPU backend in float32: networks that network.py does not know, or that cannot be compiled.

OpenBLAS packs its operands before it multiplies; with few rows that costs more than the product. Where it has kernels
that need no packing (`small_products`), a product of up to a million multiplications takes those: the weight is cut
into chunks of rows, (n / chunk, chunk, k). Elsewhere packing is cheapest from (k, n), where it copies runs instead of
transposing: a quarter less time for each product on AVX2.
"""

from __future__ import annotations

import sys
from functools import partial
from math import gcd
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.utils import tree_map

SMALL_PRODUCT = 1_000_000
"""OpenBLAS's limit for its small-matrix kernels (multiplications per product)."""
FEW_ROWS = 40
"""Up to so many rows are multiplied in chunks; beyond, packing pays."""
_CHUNKS = (64, 32, 16, 8)
_LEAST = 1 << 16
"""Weights below which a linear module stays as it is."""


class CpuLinear(Module):
    """mlx's Linear, whose weight it takes. One copy of it, several views."""

    def __init__(self, linear: Any, small_products: bool) -> None:
        """With `small_products` the weight is kept as it is; else it is copied."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._bias = linear.get("bias")
        weight = mx.contiguous(linear.pop("weight"))
        self.outs, self.ins = weight.shape
        whole = weight.T
        if small_products:
            sizes = sorted({gcd(self.outs, size) for size in _CHUNKS}, reverse=True)
            views = [weight.reshape(-1, size, self.ins).swapaxes(1, 2) for size in sizes]
        else:
            sizes, views = [self.outs], [(whole := mx.contiguous(whole))[None]]
        self._whole = whole
        mx.eval(whole, *views)
        self._views = [
            # Of the last, the smallest, any number of rows is the most.
            (SMALL_PRODUCT // (size * self.ins) if size > sizes[-1] else sys.maxsize, view)
            for size, view in zip(sizes, views, strict=True)
        ]

    def __call__(self, x: mx.array) -> mx.array:
        flat = x.reshape(-1, self.ins)
        y = self._chunks(flat) if flat.shape[0] <= FEW_ROWS else flat @ self._whole
        y = y.reshape(*x.shape[:-1], self.outs)
        return y if self._bias is None else y + self._bias

    def _chunks(self, x: mx.array) -> mx.array:
        """x (rows, ins), few rows -> (rows, outs). The fewest chunks that keep each product small."""
        rows = x.shape[0]
        y = x[None] @ next(view for most, view in self._views if rows <= most)
        return (y if rows == 1 or len(y) == 1 else y.swapaxes(0, 1)).reshape(rows, self.outs)


def install(network: Any, *, small_products: bool) -> None:
    """Replace the linear layers of a network, whose weights are float32 and evaluated."""
    tuned = partial(_tuned, small_products=small_products)
    network.update_modules(tree_map(tuned, network.leaf_modules(), is_leaf=Module.is_module))


def _tuned(module: Any, small_products: bool) -> Any:
    fits = type(module) is Linear and module.weight.dtype == mx.float32 and module.weight.size >= _LEAST
    return CpuLinear(module, small_products) if fits and module.weight.shape[0] % 8 == 0 else module
