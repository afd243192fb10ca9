"""Memory that a worker freed: kept for the next job, and given back at rest."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import psutil
from workers.heap import give_back, keep_memory

def mebibytes():
    return psutil.Process().memory_info().rss / (1 << 20)

keep_memory()
before = mebibytes()
blocks = [bytearray(1 << 18) for _ in range(800)]
blocks = blocks[::20]  # what stays lies between what goes
kept = mebibytes()
give_back()
print(kept - before, mebibytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_freed_blocks_are_kept_and_go_back_to_the_system_when_that_is_asked_for() -> None:
    said = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True, timeout=60)
    kept, left = map(float, said.stdout.split())
    assert kept > 190
    assert left < 20
