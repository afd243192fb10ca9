"""A few runs of the dictations' state machine, with a fixed seed (`python -m tests.e2e.machine` is the long run)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.machine import opened, run

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]


def test_whatever_is_asked_in_whatever_order_loses_nothing_and_says_nothing_twice(model_data_dir: Path) -> None:
    with opened(model_data_dir) as house:
        run(house, 1, examples=5, steps=20)
    assert house.done["kill"] >= 1
    assert house.done["step"] >= 60
