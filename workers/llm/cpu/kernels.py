"""The elementwise kernels of a Llama layer that MLX's CPU backend lacks a fast form of, over Whisper's exp2.

Right without a compiler too: mx.compile then runs the same operations one by one, more slowly.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from workers.whisper.cpu.kernels import LOG2E, Kernels

_UNROOT = 0.5**0.5
"""exp2 gives sqrt(2) times the power."""

_FEW = 4
"""Rows up to which a product and a compiled kernel are sooner done than mx.fast.rms_norm."""


def _exponent(gate: mx.array) -> mx.array:
    """Never above 0, so that no gate is too large for exp2."""
    return mx.abs(gate) * -LOG2E


def _swiglu(gate: mx.array, up: mx.array, power: mx.array) -> mx.array:
    """silu(gate) * up, given exp2's power of -|gate|: silu is g / (1 + e) where g >= 0, else g e / (1 + e)."""
    e = power * _UNROOT
    size = mx.abs(gate)
    return 0.5 * ((gate + size) + (gate - size) * e) / (1 + e) * up


def _normalise(x: mx.array, squares: mx.array, scale: mx.array, eps: mx.array) -> mx.array:
    return x * mx.rsqrt(squares * scale + eps)


def _rotate(first: mx.array, second: mx.array, cosine: mx.array, sine: mx.array) -> tuple[mx.array, mx.array]:
    return first * cosine - second * sine, first * sine + second * cosine


class LlamaKernels:
    """swiglu, rotation and the RMS norm without its weight; `exp2` as Whisper has it."""

    def __init__(self) -> None:
        base = Kernels()
        self.exp2 = base.exp2
        compiled: Any = mx.compile if base.compiled else lambda function: function
        self._exponent, self._swiglu = compiled(_exponent), compiled(_swiglu)
        self._normalise = compiled(_normalise)
        self._rotate = compiled(_rotate)

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        """silu(gate) * up, float32, any finite values; relative error 2e-5."""
        activated: mx.array = self._swiglu(gate, up, self.exp2(self._exponent(gate)))
        return activated

    def rotate(self, first: mx.array, second: mx.array, turn: Turn) -> tuple[mx.array, mx.array]:
        """Both halves of each pair, turned; all four of one shape: only contiguous arrays are fast."""
        turned: tuple[mx.array, mx.array] = self._rotate(first, second, turn.cosine, turn.sine)
        return turned

    def rms(self, x: mx.array, norm: Norm) -> mx.array:
        """x (rows, width) over its root mean square."""
        if x.shape[0] > _FEW:
            return mx.fast.rms_norm(x, None, norm.eps)
        # A product of matrices: MLX's own sums are slow on the CPU.
        normalised: mx.array = self._normalise(x, (x * x) @ norm.ones, norm.scale, norm.epsilon)
        return normalised


class Turn:
    """cosine and sine of the angles by which rows are turned, times what scores are scaled by."""

    __slots__ = ("cosine", "sine")

    def __init__(self, cosine: mx.array, sine: mx.array) -> None:
        self.cosine = cosine
        self.sine = sine


class Norm:
    """What an RMS norm over `width` numbers needs, made once: a constant is an operation too."""

    def __init__(self, width: int, eps: float) -> None:
        self.eps = eps
        self.ones = mx.ones((width, 1))
        self.scale = mx.array(1 / width)
        self.epsilon = mx.array(eps)
        mx.eval(self.ones, self.scale, self.epsilon)
