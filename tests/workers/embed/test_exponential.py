"""The fast 2^x against numpy, with and without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest


def test_exp2_is_within_two_in_a_hundred_thousand(fast_blas: Any) -> None:
    import mlx.core as mx

    from workers.embed.exponential import SCORE_LIMIT, Exponential

    x = np.linspace(-SCORE_LIMIT, SCORE_LIMIT, 200001).astype(np.float32)
    ratio = np.array(Exponential().exp2(mx.array(x))).astype(np.float64) / 2.0 ** (x.astype(np.float64) + 0.5)
    assert float(np.abs(ratio - 1).max()) < 2e-5


@pytest.mark.parametrize("low", [-127.6, -200.0, -1e6, -1e30])
def test_exp2_is_zero_below_its_range(low: float, fast_blas: Any) -> None:
    import mlx.core as mx

    from workers.embed.exponential import Exponential

    assert Exponential().exp2(mx.full((8,), low)).tolist() == [0.0] * 8


@pytest.mark.parametrize("compiler", ["missing", "broken", "cannot compile"])
def test_without_a_working_compiler_it_is_still_right(compiler: str, tmp_path: Any) -> None:
    """In a process of its own: MLX keeps what it compiled."""
    if compiler != "missing":
        broken = tmp_path / "g++"
        broken.write_text("#!/bin/sh\nexit 1\n" if compiler == "broken" else '#!/bin/sh\ntest "$1" = --version\n')
        broken.chmod(0o755)
    script = (
        "import mlx.core as mx\n"
        "from workers.embed.exponential import Exponential\n"
        "k = Exponential()\n"
        "assert not k.compiled\n"
        "assert abs(k.exp2(mx.zeros((4,)))[0].item() - 2 ** 0.5) < 1e-4\n"
    )
    path = str(tmp_path) if compiler == "missing" else f"{tmp_path}:/bin"
    environment = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
