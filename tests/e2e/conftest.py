"""Servers that the end-to-end tests share: one with the small model for plumbing, one with the default model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import SHARED, Server, serving


@pytest.fixture(scope="session")
def tiny(model_data_dir: Path) -> Iterator[Server]:
    with serving(model_data_dir, "--whisper-model", "whisper-tiny.en") as server:
        yield server


@pytest.fixture(scope="session")
def base(model_data_dir: Path) -> Iterator[Server]:
    with serving(model_data_dir) as server:
        yield server


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of real recordings; the test is skipped where it is not."""
    folder = SHARED / "speech" / "audio"
    if not folder.is_dir():
        pytest.skip("no recordings beside the checkout")
    return folder
