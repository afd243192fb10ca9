"""Puts few_rows.cpp between MLX and its BLAS: products with few rows, as decoding a token has them, without packing.

Knows the compiler and shared libraries. Without a compiler everything is computed as before, and as right.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")

MOST = 8
"""Rows up to which going row by row is tried: each reads the weight again, if only from the cache."""

_COMPILE_SECONDS = 60.0


def install(blas: ctypes.CDLL, folder: Path, compiler: str) -> int:
    """Let MLX's products pass through few_rows.cpp; must come before `blas` is opened for the whole process.

    -> up to how many rows a product goes row by row; 0 where nothing is installed, or nothing gained. What was
    compiled is kept in `folder`. Takes some 30 ms.
    """
    product, vector = _symbol(blas, "cblas_sgemm"), _symbol(blas, "cblas_sgemv")
    if not compiler or product is None or vector is None:
        return 0
    try:
        library = ctypes.CDLL(str(_compiled(folder, compiler)), mode=ctypes.RTLD_GLOBAL)
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(library.starling_begin(product, vector, MOST))


def _symbol(blas: ctypes.CDLL, name: str) -> ctypes.c_void_p | None:
    """An address in this very library, also where a wheel prefixes its names."""
    found = getattr(blas, name, None) or getattr(blas, f"scipy_{name}", None)
    return None if found is None else ctypes.cast(found, ctypes.c_void_p)


def _compiled(folder: Path, compiler: str) -> Path:
    """The library, made where it is not there yet. Other processes may do the same."""
    target = folder / f"few-rows-{digest()}-{platform.machine()}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="tmp-") as scratch:
            made = Path(scratch) / "made.so"
            command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE)]
            subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_SECONDS)
            made.replace(target)
    return target


def digest() -> str:
    """What tells one version of the source from another."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
