"""Whisper's encoder on the CPU, computed by encoder.cpp.

Owns the encoder's weights; knows frames, nothing of their order in a recording. The plain formulation is in plain.py.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import mlx.core as mx
import numpy as np

from workers.cpu.kept import pointer
from workers.cpu.matrices import Matrices, Matrix
from workers.whisper.cpu.library import Kept, Norm


class _Layer(ctypes.Structure):
    _fields_ = (
        ("own_norm", Norm),
        ("projection", Matrix),
        ("out", Matrix),
        ("up_norm", Norm),
        ("up", Matrix),
        ("down", Matrix),
    )


class _Shape(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in ("mels", "width", "heads", "hidden", "layers"))


class NativeEncoder:
    """Log-mel frames to audio features; takes the encoder's weights out of the module it is given."""

    def __init__(self, module: Any, heads: int, threads: int, library: ctypes.CDLL) -> None:
        self._library = library
        self._kept = Kept()
        self._matrices = Matrices(bool(library.starling_halves()))
        self._width, _, self._mels = module.conv1.weight.shape
        layers = (_Layer * len(module.blocks))()
        hidden = module.blocks[0].mlp1.weight.shape[0]
        for index in range(len(layers)):  # one by one, so that old and new weights never stand side by side
            layers[index] = self._layer(module.blocks.pop(0))
        library.starling_encoder.restype = ctypes.c_void_p
        first, second = self._linear(module.conv1), self._linear(module.conv2)
        encoder = library.starling_encoder(
            *(_Shape(self._mels, self._width, heads, hidden, len(layers)), ctypes.byref(first), ctypes.byref(second)),
            *(ctypes.c_void_p(self._kept.at(module._positional_embedding)), layers, self._kept.norm(module.ln_post)),
            threads,
        )
        if not encoder:
            raise MemoryError("no threads for Whisper's encoder")
        self._encoder = ctypes.c_void_p(encoder)
        weakref.finalize(self, library.starling_encoder_end, self._encoder)

    def _layer(self, block: Any) -> _Layer:
        own = block.attn
        weight = mx.concatenate([own.query.weight, own.key.weight, own.value.weight])
        bias = mx.concatenate([own.query.bias, mx.zeros_like(own.query.bias), own.value.bias])
        projection = self._matrices.dense(np.array(weight), np.array(bias))
        norms = self._kept.norm(block.attn_ln), self._kept.norm(block.mlp_ln)
        linears = (self._linear(each) for each in (own.out, block.mlp1, block.mlp2))
        out, up, down = linears
        return _Layer(norms[0], projection, out, norms[1], up, down)

    def _linear(self, linear: Any) -> Matrix:
        """Of a linear layer, or of a convolution: (out, taps, in) lies as (out, taps in) does."""
        weight = np.array(linear.pop("weight"))
        return self._matrices.dense(weight.reshape(len(weight), -1), np.array(linear.bias))

    def __call__(self, mel: mx.array, context: int) -> mx.array:
        """mel (>= 2 context, n_mels) to (context, d); waits for it."""
        padded = np.zeros((2 * context + 2, self._mels), np.float32)
        padded[1:-1] = np.array(mel[: 2 * context].astype(mx.float32), copy=False)
        features = np.empty((context, self._width), np.float32)
        done = self._library.starling_encoder_run(self._encoder, pointer(padded), context, pointer(features))
        if not done:
            raise MemoryError("not enough memory to encode a window")
        return mx.array(features)
