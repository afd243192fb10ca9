"""The fast kernels against numpy, with and without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from math import erf
from typing import Any

import numpy as np
import pytest


def test_exp2_is_within_two_in_a_hundred_thousand(fast_blas: Any) -> None:
    import mlx.core as mx

    from workers.whisper.cpu.kernels import SCORE_LIMIT, Kernels

    x = np.linspace(-SCORE_LIMIT, SCORE_LIMIT, 200001).astype(np.float32)
    ratio = np.array(Kernels().exp2(mx.array(x))).astype(np.float64) / 2.0 ** (x.astype(np.float64) + 0.5)
    assert float(np.abs(ratio - 1).max()) < 2e-5


@pytest.mark.parametrize("low", [-127.6, -200.0, -1e6, -1e30])
def test_exp2_is_zero_below_its_range(low: float, fast_blas: Any) -> None:
    import mlx.core as mx

    from workers.whisper.cpu.kernels import Kernels

    assert Kernels().exp2(mx.full((8,), low)).tolist() == [0.0] * 8


def test_exp2_below_max_takes_any_finite_scores(fast_blas: Any) -> None:
    import mlx.core as mx

    from workers.whisper.cpu.kernels import Kernels

    x = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32) * 1000
    weights = np.array(Kernels().exp2_below_max(mx.array(x)))
    exact = 2.0 ** (x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(weights / weights.sum(1, keepdims=True), exact / exact.sum(1, keepdims=True), atol=4e-5)


def test_gelu_is_the_exact_gelu(fast_blas: Any) -> None:
    import mlx.core as mx

    from workers.whisper.cpu.kernels import Kernels

    x = np.concatenate([np.linspace(-12, 12, 4001), [-1e30, -1e4, 1e4, 1e30]]).astype(np.float32)
    exact = np.array([0.5 * v * (1 + erf(v / 2**0.5)) for v in x.astype(np.float64)])
    np.testing.assert_allclose(np.array(Kernels().gelu(mx.array(x))), exact, atol=3e-6, rtol=1e-6)


@pytest.mark.parametrize("compiler", ["missing", "broken", "cannot compile"])
def test_without_a_working_compiler_the_kernels_are_still_right(compiler: str, tmp_path: Any) -> None:
    """In a process of its own: MLX keeps what it compiled."""
    if compiler != "missing":
        broken = tmp_path / "g++"
        broken.write_text("#!/bin/sh\nexit 1\n" if compiler == "broken" else '#!/bin/sh\ntest "$1" = --version\n')
        broken.chmod(0o755)
    script = (
        "import mlx.core as mx\n"
        "from workers.whisper.cpu.kernels import Kernels\n"
        "k = Kernels()\n"
        "assert not k.compiled\n"
        "assert abs(k.exp2(mx.zeros((4,)))[0].item() - 2 ** 0.5) < 1e-4\n"
        "assert abs(k.gelu(mx.ones((4,)))[0].item() - 0.8413447) < 1e-5\n"
    )
    path = str(tmp_path) if compiler == "missing" else f"{tmp_path}:/bin"
    environment = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
