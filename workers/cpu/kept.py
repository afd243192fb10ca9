"""Memory that compiled code points into."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

_CHUNK = 32 << 20
"""Bytes that are asked for at once: numpy has the system put so much on huge pages, and weights are read a tenth
faster from them. What is not used of it never becomes resident, but for part of one page."""
_LINE = 64
"""Bytes of a cache line."""


class Kept:
    """Copies of arrays that live as long as this does."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._chunk = np.empty(0, np.uint8)

    def at(self, array: Any) -> int:
        """Where the copy lies, contiguous."""
        source = array if isinstance(array, np.ndarray) else np.array(array)
        copy = self._room(source.nbytes).view(source.dtype).reshape(source.shape)
        copy[...] = source
        self.arrays.append(copy)
        return copy.ctypes.data

    def _room(self, size: int) -> np.ndarray:
        """(size,) bytes from the start of a cache line on."""
        if len(self._chunk) < size + _LINE:
            self._chunk = np.empty(max(size + _LINE, _CHUNK), np.uint8)
        start = -self._chunk.ctypes.data % _LINE
        room, self._chunk = self._chunk[start : start + size], self._chunk[start + size :]
        return room


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    """To the first number of an array, for as long as somebody holds that."""
    return ctypes.c_void_p(array.ctypes.data)
