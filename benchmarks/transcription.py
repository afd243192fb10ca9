"""Seconds from a file to its text, ours and the peers', every engine's turn in every round.

Knows how to ask and to compare; what is asked runs in processes of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx
import msgspec

from tests.e2e.server import ROOT, Server

Transcribe = Callable[[Path], tuple[str, float]]
"""A file to its text and the seconds that this took."""


class Timed(msgspec.Struct, frozen=True):
    """One engine on one clip: every counted round's seconds, and the text of the last."""

    seconds: tuple[float, ...]
    text: str

    @property
    def median(self) -> float:
        return median(self.seconds)

    def ratio(self, other: Timed) -> float:
        """This one's time for each second of the other's: the median over the rounds, each within itself."""
        return median(mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True))


@contextmanager
def peer(name: str, *arguments: str) -> Iterator[Transcribe]:
    """A process of benchmarks/peers that has loaded its model."""
    command = [sys.executable, "-m", f"benchmarks.peers.{name}", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def transcribe(clip: Path) -> tuple[str, float]:
            asks.write(f"{clip}\n")
            asks.flush()
            answer = json.loads(answers.readline())
            return answer["text"], answer["seconds"]

        json.loads(answers.readline())
        try:
            yield transcribe
        finally:
            process.terminate()


def through_http(server: Server, **fields: str) -> Transcribe:
    """A running service; the clock is the client's. As an app does, it keeps its client: a new one takes 20 ms."""
    client = httpx.Client(base_url=server.url, timeout=1200)

    def transcribe(clip: Path) -> tuple[str, float]:
        started = time.perf_counter()
        with clip.open("rb") as file:
            answer = client.post("/v1/audio/transcriptions", files={"file": file}, data=fields)
        answer.raise_for_status()
        return answer.json()["text"], time.perf_counter() - started

    return transcribe


def compare(engines: Mapping[str, Transcribe], clip: Path, rounds: int) -> dict[str, Timed]:
    """One uncounted round, then `rounds` counted ones, all engines in turn in each."""
    texts = {name: transcribe(clip)[0] for name, transcribe in engines.items()}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, transcribe in engines.items():
            texts[name], taken = transcribe(clip)
            seconds[name].append(taken)
    return {name: Timed(tuple(seconds[name]), texts[name]) for name in engines}


def together(transcribe: Transcribe, clips: Sequence[Path], rounds: int) -> tuple[Timed, Timed, bool]:
    """(one after another, all at once, whether every text was the same), whole sets of clips."""
    apart: list[float] = []
    at_once: list[float] = []
    same = True
    with ThreadPoolExecutor(len(clips)) as pool:
        for _ in range(rounds):
            started = time.perf_counter()
            alone = [transcribe(clip)[0] for clip in clips]
            apart.append(time.perf_counter() - started)
            started = time.perf_counter()
            crowded = [text for text, _ in pool.map(transcribe, clips)]
            at_once.append(time.perf_counter() - started)
            same = same and alone == crowded
    return Timed(tuple(apart), ""), Timed(tuple(at_once), ""), same
