"""Puts few_rows.cpp between MLX and its BLAS: products with few rows, as decoding a token has them, without packing.

Knows the compiler and shared libraries. Without a compiler everything is computed as before, and as right.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from workers import native

SOURCE = Path(__file__).with_suffix(".cpp")
OPTIONS = ("-O2", "-pthread")

MOST = 8
"""Rows up to which going row by row is tried: each reads the weight again, if only from the cache."""


def install(blas: ctypes.CDLL, folder: Path, compiler: str) -> int:
    """Let MLX's products pass through few_rows.cpp; must come before `blas` is opened for the whole process.

    -> up to how many rows a product goes row by row; 0 where nothing is installed, or nothing gained. What was
    compiled is kept in `folder`. Takes 0.1 to 0.5 s, and 64 MiB meanwhile.
    """
    product, vector = _symbol(blas, "cblas_sgemm"), _symbol(blas, "cblas_sgemv")
    if product is None or vector is None:
        return 0
    try:
        library = native.library([SOURCE], folder, compiler, OPTIONS, mode=ctypes.RTLD_GLOBAL)
    except native.NotBuilt:
        return 0
    return int(library.starling_begin(product, vector, MOST))


def _symbol(blas: ctypes.CDLL, name: str) -> ctypes.c_void_p | None:
    """An address in this very library, also where a wheel prefixes its names."""
    found = getattr(blas, name, None) or getattr(blas, f"scipy_{name}", None)
    return None if found is None else ctypes.cast(found, ctypes.c_void_p)
