"""Our compiled half of Whisper, three sources in one library, and the memory that it points into."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from workers import native
from workers.cpu import kept
from workers.cpu.matrices import PANEL

_HERE = Path(__file__).parent
SOURCES = (*(_HERE / f"{name}.cpp" for name in ("encoder", "cross", "decoder")), *native.HEADERS)


class Norm(ctypes.Structure):
    """A layer norm's weight and bias, (d,) each."""

    _fields_ = (("gain", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class Kept(kept.Kept):
    """With Whisper's own structures."""

    def norm(self, norm: Any) -> Norm:
        """Of one of mlx's LayerNorms."""
        return Norm(self.at(norm.weight), self.at(norm.bias))


def load(folder: Path, compiler: str) -> ctypes.CDLL:
    """The library, compiled into `folder` where it is not there yet. Raises native.NotBuilt."""
    return native.library(SOURCES, folder, compiler, native.FAST)


def fits(dims: Any) -> bool:
    """Whether it can run a model of these sizes: all real ones have heads of 64."""
    shapes = ((dims.n_audio_state, dims.n_audio_head), (dims.n_text_state, dims.n_text_head))
    return all(width % PANEL == 0 and width // heads % PANEL == 0 for width, heads in shapes)
