"""Cross attention's keys and values of a window, computed by cross.cpp and laid out as decoder.cpp reads them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from workers.cpu.kept import pointer
from workers.cpu.matrices import Matrices, Matrix

FRAMES = 16
"""decoder.cpp's: keys lie in blocks of so many frames."""


@dataclass(frozen=True)
class NativeEncoded:
    """A window's cross keys (heads, blocks, d/heads, FRAMES) and values (heads, frames, d/heads) for each layer."""

    context: int
    cross: list[tuple[np.ndarray, np.ndarray]]
    pointers: np.ndarray
    """Where they lie: keys, values of each layer."""


class NativeCross:
    """Features to a window's keys and values; owns the weights, which it takes out of the modules it is given."""

    def __init__(self, blocks: Sequence[Any], heads: int, threads: int, library: ctypes.CDLL) -> None:
        self._library, self._heads, self._layers = library, heads, len(blocks)
        self._held = Matrices(bool(library.starling_halves()))
        self._matrices = (Matrix * (2 * len(blocks)))()
        for index, block in enumerate(blocks):
            for place, linear in enumerate((block.cross_attn.key, block.cross_attn.value)):
                bias = np.array(linear.bias) if "bias" in linear else None
                self._matrices[2 * index + place] = self._held.dense(np.array(linear.pop("weight")), bias)
        library.starling_cross.restype = ctypes.c_void_p
        cross = library.starling_cross(threads)
        if not cross:
            raise MemoryError("no threads for Whisper's cross attention")
        self._cross = ctypes.c_void_p(cross)
        weakref.finalize(self, library.starling_cross_end, self._cross)

    def __call__(self, features: mx.array) -> NativeEncoded:
        """(frames, d); waits for them."""
        x = np.ascontiguousarray(np.array(features.astype(mx.float32), copy=False))
        frames, width = x.shape
        size = width // self._heads
        held = []
        for _ in range(self._layers):
            keys = np.empty((self._heads, -(-frames // FRAMES), size, FRAMES), np.float32)
            if frames % FRAMES:
                keys[:, -1, :, frames % FRAMES :] = 0
            held.append((keys, np.empty((self._heads, frames, size), np.float32)))
        pointers = np.array([[each.ctypes.data for each in pair] for pair in held], np.int64)
        done = self._library.starling_cross_run(
            *(self._cross, self._layers, self._matrices, self._heads, frames),
            *(pointer(x), pointer(pointers)),
        )
        if not done:
            raise MemoryError("not enough memory for a window's keys and values")
        return NativeEncoded(frames, held, pointers)
