"""Seconds from a file to its text: ours through HTTP and mlx-whisper in its own process, in turn."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx

from tests.e2e.server import ROOT, Server


class Row(NamedTuple):
    """One clip: medians in seconds; ratio is the median of the rounds' ratios ours / peer."""

    clip: str
    ours: float
    peer: float
    ratio: float
    same_text: bool


class Peer:
    """The peer's process; one line to it and one back for each clip."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._ask, self._answers = process.stdin, process.stdout
        json.loads(self._answers.readline())

    def transcribe(self, clip: Path) -> tuple[str, float]:
        self._ask.write(f"{clip}\n")
        self._ask.flush()
        answer = json.loads(self._answers.readline())
        return answer["text"], answer["seconds"]


@contextmanager
def peer(model: str, data_dir: Path) -> Iterator[Peer]:
    command = [sys.executable, "-m", "benchmarks.mlx_whisper_peer", model, str(data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield Peer(process)
        process.terminate()


def ours(server: Server, clip: Path) -> tuple[str, float]:
    started = time.perf_counter()
    with clip.open("rb") as file:
        answer = httpx.post(f"{server.url}/v1/audio/transcriptions", files={"file": file}, timeout=600)
    answer.raise_for_status()
    return answer.json()["text"], time.perf_counter() - started


def compare(server: Server, other: Peer, clips: list[Path], rounds: int) -> Iterator[Row]:
    """One warm-up of both on each clip, then `rounds` counted ones in turn."""
    for clip in clips:
        mine, theirs = ours(server, clip), other.transcribe(clip)
        pairs = [(ours(server, clip)[1], other.transcribe(clip)[1]) for _ in range(rounds)]
        yield Row(
            clip.name,
            median(a for a, _ in pairs),
            median(b for _, b in pairs),
            median(a / b for a, b in pairs),
            mine[0] == theirs[0],
        )
