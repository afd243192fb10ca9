"""Servers that the end-to-end tests share: the small model for plumbing, the default model, the language model."""

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
def talker(model_data_dir: Path) -> Iterator[Server]:
    """With a language model and one for embeddings; its speech model is the smallest. On a busy machine nothing is
    given up soon."""
    models = ("--whisper-model", "whisper-tiny.en", "--llm-model", "smollm2-135m-instruct")
    models += ("--embedding-model", "all-minilm-l6-v2")
    with serving(model_data_dir, *models, "--stall-seconds", "600", "--start-wait", "300") as server:
        yield server


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of real recordings; the test is skipped where it is not."""
    folder = SHARED / "speech" / "audio"
    if not folder.is_dir():
        pytest.skip("no recordings beside the checkout")
    return folder
