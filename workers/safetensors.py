"""The container of model weights, as far as it can be judged without reading them. Imports no mlx.

Knows the bytes before the weights: a header that says how long the file is to be.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

_DTYPES = {"float16": "F16", "float32": "F32", "int32": "I32", "uint32": "U32"}
"""numpy's names of what is written, and those of the format."""

MAX_HEADER = 100 << 20
"""Bytes; what the format allows."""


class _Tensor(msgspec.Struct):
    data_offsets: tuple[int, int]


def whole(path: Path) -> bool:
    """Whether a file is as long as its header says: MLX notices a cut one only when its last arrays are evaluated.

    Raises OSError when it cannot be read.
    """
    with path.open("rb") as file:
        try:
            return os.fstat(file.fileno()).st_size == _announced(file.read(8), file.read)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return False


def names(path: Path) -> set[str]:
    """Of the tensors in a file that is whole. Raises OSError and msgspec.DecodeError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return set(msgspec.json.decode(file.read(min(length, MAX_HEADER)), type=dict[str, Any])) - {"__metadata__"}


def _announced(start: bytes, read: Callable[[int], bytes]) -> int:
    """The size in bytes that a file gives itself; -1 when it is none. Raises msgspec.DecodeError."""
    length = int.from_bytes(start, "little")
    if not 2 <= length <= MAX_HEADER:
        return -1
    header = msgspec.json.decode(read(length), type=dict[str, Any])
    header.pop("__metadata__", None)
    tensors = msgspec.convert(header, dict[str, _Tensor])
    return len(start) + length + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)


def pieces(
    weights: Mapping[str, np.ndarray[Any, np.dtype[Any]]], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """A whole file, in pieces. mlx writes the same, but words a full disk as a bug of its own."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, array in weights.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": (start, end)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    yield from (np.ascontiguousarray(array).reshape(-1).data for array in weights.values())
