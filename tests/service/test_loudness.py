"""Where a recording is quietest."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from service.loudness import quietest


def written(path: Path, *parts: tuple[int, int]) -> str:
    """A file of (samples, loudness) one after the other."""
    draw = random.Random(1)
    samples = array("h", (draw.randint(-level, level) for count, level in parts for _ in range(count)))
    path.write_bytes(samples.tobytes())
    return str(path)


def test_the_middle_of_the_quietest_stretch(tmp_path: Path) -> None:
    path = written(tmp_path / "pcm", (64_000, 8000), (4_000, 900), (60_000, 8000))
    assert abs(quietest(path, 32_000, 100_000) - 66_000) <= 720


def test_a_closure_within_a_word_is_too_short_to_count(tmp_path: Path) -> None:
    path = written(tmp_path / "pcm", (32_000, 8000), (800, 0), (16_000, 8000), (3_200, 2000), (32_000, 8000))
    assert 48_800 < quietest(path, 0, 84_000) < 52_000


def test_only_what_lies_between_the_two_moments_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "pcm", (16_000, 0), (16_000, 5000), (4_000, 1000), (16_000, 5000), (16_000, 0))
    assert 32_000 < quietest(path, 16_000, 52_000) < 36_000


@pytest.mark.parametrize("length", [0, 100, 2_000])
def test_a_stretch_too_short_to_compare_is_cut_in_its_middle(tmp_path: Path, length: int) -> None:
    path = written(tmp_path / "pcm", (4_000, 100))
    assert quietest(path, 1_000, 1_000 + length) == 1_000 + length // 2
