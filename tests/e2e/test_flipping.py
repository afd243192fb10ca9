"""A little of what `python -m tests.e2e.flipping` does for minutes, with a fixed seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.flipping import Found, flip, flip_frames
from tests.e2e.server import serving


def test_flipped_frames_are_messages_or_refused() -> None:
    found = Found()
    flip_frames(1, 2000, found)
    assert found.failures == []
    assert found.frames.keys() == {"a message", "the end", "refused"}
    assert min(found.frames.values()) > 40


@pytest.mark.model
@pytest.mark.port
def test_damaged_recordings_are_heard_or_refused_and_nothing_dies(model_data_dir: Path) -> None:
    with serving(model_data_dir, "--whisper-model", "whisper-tiny.en", "--stall-seconds", "600") as server:
        found = flip(server, 1, frames=0)
    assert found.failures == []
    assert {name.rpartition(" ")[2] for name in found.files} >= {"200", "400"}
