"""What the front end costs: seconds until it listens, and its memory while a large upload passes through."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from statistics import median

import httpx
import psutil

from tests.e2e.server import Server, serving

UPLOAD_BYTES = 150 << 20
MIB = 1 << 20


def seconds_to_listen(models: Path, runs: int) -> float:
    """Median over `runs` starts, from spawning the process to its first answered /health."""
    return median(_one_start(models) for _ in range(runs))


def _one_start(models: Path) -> float:
    started = time.perf_counter()
    with serving(models, ready=False) as server:
        httpx.get(f"{server.url}/health").raise_for_status()
        return time.perf_counter() - started


def resident_mib(server: Server) -> tuple[float, float]:
    """(at rest, at the peak of a 150 MB upload), of the front end's process alone."""
    front = psutil.Process(server.process.pid)
    rest, peaks, done = front.memory_info().rss, [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peaks.append(front.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        httpx.post(
            f"{server.url}/v1/audio/transcriptions", files={"file": ("noise.bin", bytes(UPLOAD_BYTES))}, timeout=120
        )
    finally:
        done.set()
        watcher.join()
    return rest / MIB, max(peaks) / MIB
