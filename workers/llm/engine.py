"""The language-model engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.events import Loading
from protocol.settings import LlmSettings
from workers.loop import Engine


def build(settings: LlmSettings, report: Callable[[Loading], None]) -> Engine[Any]:
    """Load the BLAS, MLX and the model, in this order and this thread. Raises ModelNotConfigured."""
    raise NotImplementedError
