"""What MLX computes with in this process, and whether it can build its fused kernels.

Knows MLX's devices; knows no model. Imports no mlx before it is asked: the BLAS comes first.
"""

from __future__ import annotations

import logging
from importlib.metadata import version

from protocol.events import Backend
from workers import blas

_log = logging.getLogger(__name__)


def describe(library: blas.Blas) -> Backend:
    """What MLX computes with in this process; the compiler is "" when MLX cannot build its kernels with it."""
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.gpu):
        return Backend("metal" if mx.metal.is_available() else "cuda", version=version("mlx"))
    compiler = blas.compiler()
    if compiler and not compiles():
        _log.warning("%s cannot build MLX's kernels: fused operations are off, which is slower", compiler)
        mx.disable_compile()
        compiler = ""
    return Backend("cpu", version=version("mlx"), blas=library.description, slow=library.slow, compiler=compiler)


def compiles() -> bool:
    """Whether MLX can build fused kernels. It takes any `g++` on PATH and fails within a job if that is broken."""
    import mlx.core as mx
    from mlx.nn.layers.activations import gelu

    try:
        mx.eval(gelu(mx.zeros((1, 8), dtype=mx.float32)))
    except RuntimeError:
        return False
    return True
