"""What any test may ask for: the folder in which converted models and the prepared BLAS are kept between runs.

Test modules import mlx inside their tests or fixtures, never at the top: the first mlx of a process fixes its BLAS.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers import blas


def data_dir() -> Path:
    """A data directory that outlives the run. Conversions in it are atomic, so that parallel runs may share it."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "starling-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def model_data_dir() -> Path:
    return data_dir()


@pytest.fixture(scope="session")
def fast_blas(model_data_dir: Path) -> blas.Blas:
    """The BLAS that this process computes with; comes before the first mlx. As in the language model's worker."""
    return blas.prepare(model_data_dir, threads=1, few=True)


@pytest.fixture(scope="session")
def kernel_dir(model_data_dir: Path) -> Path:
    """Where a worker over this data directory keeps what it compiled."""
    return model_data_dir / "blas"
