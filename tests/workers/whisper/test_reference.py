"""mlx-whisper's parts without the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def loaded(code: str) -> set[str]:
    """The modules that a fresh process holds after `code`."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    return set(run.stdout.split())


def test_the_engine_and_the_loader_need_neither_numba_nor_scipy_nor_the_whole_package() -> None:
    code = "import workers.whisper.engine, workers.whisper.load, workers.whisper.model, workers.whisper.cpu.model"
    names = loaded(f"{code}\nfrom workers.whisper import reference\nreference.module('whisper')")
    assert names & {"mlx_whisper", "numba", "scipy"} == set()
    assert "starling_mlx_whisper.whisper" in names


def test_the_engine_brings_no_mlx_before_its_blas() -> None:
    assert "mlx.core" not in loaded("import workers.whisper.engine, workers.backend, workers.whisper.tokenizer")


def test_the_whole_package_may_be_there_as_well() -> None:
    code = (
        "from workers.whisper import reference\npart = reference.module('whisper')\nimport mlx_whisper.whisper as whole"
    )
    names = loaded(f"{code}\nassert part.__file__ == whole.__file__\nassert part is not whole")
    assert {"starling_mlx_whisper.whisper", "mlx_whisper.whisper", "mlx_whisper.timing"} <= names
