"""The service that most tests of the front end start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripted import Scripted, scripted


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Scripted]:
    with scripted(tmp_path) as made:
        yield made
