"""2^x, which MLX's CPU backend lacks a fast form of.

Knows how MLX compiles for the CPU; knows no model. It is right without a compiler too (mx.compile then runs the same
operations one by one, about four times slower).
"""

import shutil
import subprocess
import sys
from collections.abc import Callable

import mlx.core as mx

LOG2E = 1.4426950408889634

# exp2 is right for scores in (-127, 127): above, the int conversion overflows and the result is silently 0. The limit
# leaves 11 powers of two for the sum of 1500 terms and 11 for the values they weigh. Speech in base reaches 93.
SCORE_LIMIT = 105.0

_ROUND = 12582912.0  # 1.5 * 2^23: adding and subtracting it rounds a float32 to an integer
_HALF_ULP = 4194304.0  # 2^22: half of the exponent's unit, because y + |y| doubles


def _fit_mantissa() -> tuple[float, float, float]:
    """g with 2^r - 1 - r = (1/4 - u^2) (g0 + g1 u + g2 u^2), u = r - 1/2 in [-1/2, 1/2]; relative error 1.7e-5."""
    import numpy as np

    u = np.linspace(-0.4999, 0.4999, 4001)
    r = u + 0.5
    edge = 0.25 - u * u
    weight = 1 / 2.0**r
    basis = np.stack([np.ones_like(u), u, u * u], axis=1) * (edge * weight)[:, None]
    g, *_ = np.linalg.lstsq(basis, (2.0**r - 1 - r) * weight, rcond=None)
    return float(g[0]), float(g[1]), float(g[2])


_G0, _G1, _G2 = (g * _HALF_ULP for g in _fit_mantissa())


def _exp2_bits(x: mx.array) -> mx.array:
    """sqrt(2) * 2^x as the bits of a float32, in one loop that vectorises: no maximum (its NaN test prevents it)."""
    u = x - ((x + _ROUND) - _ROUND)
    # Not Horner's form: mx.compile splits at a depth of 11 operations, and a second kernel doubles the time.
    mantissa = (0.25 - u * u) * (_G0 + _G1 * u + _G2 * u * u)
    y = (x * _HALF_ULP + 127.5 * _HALF_ULP) + mantissa
    return (y + mx.abs(y)).astype(mx.int32)  # y + |y|: double it, or 0 where x < -127.5


def _compiler_runs() -> bool:
    """MLX's own condition for compiling; without it mx.compile does nothing, silently, even if kernels are cached."""
    found = shutil.which("g++")
    return found is not None and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0


class Exponential:
    """exp2, compiled where a compiler is at hand; `compiled` says whether it is."""

    def __init__(self) -> None:
        self.compiled = not sys.platform.startswith("linux") or _compiler_runs()
        bits = mx.compile(_exp2_bits)
        try:
            mx.eval(bits(mx.zeros((8, 8))))
        except RuntimeError:  # a g++ that runs and cannot compile: MLX notices when the kernel is needed
            self.compiled = False
            bits = _exp2_bits
        self._bits: Callable[[mx.array], mx.array] = bits

    def exp2(self, x: mx.array) -> mx.array:
        """sqrt(2) * 2^x, float32, relative error 1.7e-5; 0 below -127.5. The caller keeps x below SCORE_LIMIT."""
        return mx.view(self._bits(x), mx.float32)
