"""Runs the media engine, as its own process builds it, over some files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

IN_A_PROCESS = """
import json, resource, sys
import msgspec
from protocol.jobs import Decode
from protocol.settings import MediaSettings
from workers.media.engine import build

memory, *paths = sys.argv[1:]
engine = build(MediaSettings(memory_bytes=int(memory)), lambda loading: None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in paths:
    events = []
    engine.admit(Decode(path, path + ".pcm"), events.append)
    while engine.busy:
        engine.step()
    print(json.dumps(msgspec.to_builtins(events[-1])))
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def in_a_process(memory: int, *paths: str) -> tuple[list[dict[str, object]], int, str]:
    """Each file's last event, the growth of resident memory in KiB, and what was printed besides."""
    ended = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, str(memory), *paths],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    *events, growth = [json.loads(line) for line in ended.stdout.splitlines()]
    return events, growth, ended.stderr
