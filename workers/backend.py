"""MLX in this process: started behind its BLAS, what it computes with, and whether it can build its fused kernels.

Knows MLX's devices; knows no model. Imports no mlx before it is asked: the BLAS comes first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version

from protocol.events import Backend, Loading, Model
from workers import blas
from workers.heap import share_heap

CACHE_BYTES = 256 << 20
"""Buffers that MLX may keep for reuse on a GPU. On a CPU none: there the C library keeps them already."""

_log = logging.getLogger(__name__)


def start(data_dir: str, report: Callable[[Loading], None], *, few: bool) -> Backend:
    """Load the BLAS and MLX, in this order, for a model that runs its own streams side by side.

    few: as blas.prepare has it, for a model whose products with few rows are MLX's; it costs a measurement.
    """
    report(Loading("preparing BLAS"))
    # One thread: on a CPU the model's own streams are what runs side by side.
    library = prepare_blas(data_dir, threads=1, few=few)
    report(Loading("importing MLX"))
    share_heap()
    import mlx.core as mx

    backend = describe(library)
    mx.set_cache_limit(0 if backend.name == "cpu" else CACHE_BYTES)
    return backend


def prepare_blas(data_dir: str, threads: int, *, few: bool = False) -> blas.Blas:
    """As blas.prepare, and loud where there is none but the slow one."""
    library = blas.prepare(data_dir, threads, few=few)
    if library.slow:
        _log.warning("MLX runs on the reference BLAS, fifty times slower than OpenBLAS: %s", library.reason)
    return library


def log_loaded(model: Model, backend: Backend) -> None:
    _log.info("%s (%s) on %s, BLAS: %s", model.id, model.dtype, backend.name, backend.blas or "none needed")


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
