"""The small networks of the compiled code's tests, for adapters on them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.llm.cpu.conftest import compiled, make_llama, make_pair
from tests.workers.llm.toy import network

__all__ = ["compiled", "make_llama", "make_pair"]


@pytest.fixture(scope="module")
def model(fast_blas: Any) -> Any:
    """The toy network."""
    return network()
