"""Damaged files of every kind: the process lives, and each gets an answer that blames no one but the file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests import audio_inputs as make
from tests.speech import speak
from tests.workers.media.process import in_a_process

EACH = 8


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """`data` cut, with flipped bytes anywhere or in its headers, with a hole, or overwritten in one place."""
    broken = bytearray(data)
    at, length = int(random.integers(len(data))), int(random.integers(1, 400))
    match int(random.integers(5)):
        case 0:
            del broken[at:]
        case 1:
            for flip in random.integers(0, len(data), 10):
                broken[flip] = int(random.integers(256))
        case 2:
            for flip in random.integers(0, min(len(data), 512), 4):
                broken[flip] = int(random.choice([0, 127, 128, 255]))
        case 3:
            del broken[at : at + length]
        case _:
            broken[at : at + length] = random.bytes(length)
    return bytes(broken)


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_files_of_all_kinds_are_decoded_or_refused(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    sentence = speak("Quick fox.")[0].astype(np.float32) / 32768
    paths = []
    for kind, write in make.CONTAINERS.items():
        whole = write(sentence)
        for number in range(EACH):
            path = tmp_path / f"{kind} {number}"
            path.write_bytes(damaged(whole, random))
            paths.append(str(path))
    events, _, printed = in_a_process(1 << 30, *paths)
    outcomes = Counter(str(event.get("kind", event["type"])) for event in events)
    assert outcomes.total() == EACH * len(make.CONTAINERS)
    assert outcomes.keys() <= {"decoded", "undecodable_audio", "empty_audio"}
    assert outcomes["decoded"] > outcomes.total() // 2
    assert printed == ""
