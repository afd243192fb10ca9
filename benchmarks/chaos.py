"""`python -m benchmarks --chaos`: sixteen clients ask for everything while workers are killed at random, over and over.

Every answer is compared with the undisturbed one. Exits with 1 if one was wrong or missing, or anything leaked.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from rich.console import Console

from benchmarks.faults import FAULTS, possible
from benchmarks.mix import Request, catalogue
from service.config import Config
from tests.e2e.server import Server, serving

CLIENTS = ("upload",) * 5 + ("stream",) * 3 + ("dictation",) * 3 + ("chat",) * 5
VICTIMS = ("whisper", "llm", "media", "live")
UNSUITABLE = {("starve", "media"), ("starve", "live"), ("stop", "whisper")}
"""Decoders have a limit of memory for each file, and say so when it is reached. Whisper may be silent for two minutes
before it counts as hung: so long is a step of the largest model, and too long here (see --stop-whisper)."""
STALL_S = 10.0
SETTLED_S = 60.0
ARGUMENTS = (
    *("--whisper-model", "whisper-tiny.en", "--llm-model", "smollm2-135m-instruct"),
    *("--stall-seconds", str(STALL_S), "--start-wait", "600", "--session-keep", "600"),
)


@dataclass
class Seen:
    """What happened. Clients and the one who kills write to it."""

    answered: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, request: Request, seconds: float, failed: str = "", wrong: str = "") -> None:
        with self._lock:
            self.answered[request.kind] += 1
            self.longest_s = max(self.longest_s, seconds)
            self.failed += [failed] if failed else []
            self.wrong += [wrong] if wrong else []


@dataclass(frozen=True)
class Holdings:
    """What the service has at a moment of rest."""

    processes: int
    descriptors: int
    files: int
    rss_mib: float

    @classmethod
    def of(cls, server: Server) -> Holdings:
        front = psutil.Process(server.process.pid)
        files = len(server.spooled()) + len(server.recorded())
        # Hypercorn keeps the socket of a client that has left for as long as that of one that might ask again: 75 s.
        left = sum(each.status == psutil.CONN_CLOSE_WAIT for each in front.net_connections("tcp"))
        descriptors = front.num_fds() - left
        return cls(len(front.children(recursive=True)), descriptors, files, front.memory_info().rss / (1 << 20))

    def __str__(self) -> str:
        what = f"{self.processes} workers, {self.descriptors} descriptors, {self.files} temporary files"
        return f"{what}, front end {self.rss_mib:.0f} MiB"


@dataclass(frozen=True)
class Outcome:
    seen: Seen
    before: Holdings
    after: Holdings
    restarts: int

    @property
    def leaks(self) -> list[str]:
        found = [
            f"{name}: {getattr(self.before, name)} before, {getattr(self.after, name)} after"
            for name in ("processes", "descriptors", "files")
            if getattr(self.after, name) > getattr(self.before, name)
        ]
        growth = self.after.rss_mib - self.before.rss_mib
        return [*found, f"front end: {growth:.0f} MiB more"] if growth > 32 else found

    @property
    def fine(self) -> bool:
        return not (self.seen.failed or self.seen.wrong or self.leaks)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks --chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of faults (600)")
    parser.add_argument("--every", type=float, default=4, help="seconds between two faults, on average (4)")
    parser.add_argument("--seed", type=int, default=1, help="of what is asked and what befalls whom (1)")
    parser.add_argument("--stop-whisper", action="store_true", help="stop the speech worker too: two minutes each time")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    options = parser.parse_args(arguments)
    unsuitable = UNSUITABLE - ({("stop", "whisper")} if options.stop_whisper else set())
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder, serving(options.data_dir, *ARGUMENTS) as server:
        console.print("every request once, undisturbed")
        asked = [each.undisturbed() for each in catalogue(server, Path(folder))]
        console.print(f"{len(asked)} answers; {options.seconds:g} s of faults, one every {options.every:g} s or so")
        outcome = run(server, asked, options.seconds, options.every, options.seed, unsuitable)
        report(console, outcome)
    # Leaving the block has shown that no process outlived the service.
    raise SystemExit(0 if outcome.fine else 1)


def run(
    server: Server,
    asked: Sequence[Request],
    seconds: float,
    every: float,
    seed: int,
    unsuitable: set[tuple[str, str]] | None = None,
) -> Outcome:
    """Clients ask for `seconds`, each to the end of its last answer, while faults befall workers."""
    before, seen = _settled(server), Seen()
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        clients = [
            pool.submit(
                _client, [each for each in asked if each.kind == kind], until, random.Random(seed + place), seen
            )
            for place, kind in enumerate(CLIENTS, 1)
        ]
        _afflict(server, until, every, random.Random(seed), seen, UNSUITABLE if unsuitable is None else unsuitable)
        for each in clients:
            each.result()
    server.wait_ready()
    restarts = sum(int(line["restarts"]) for line in httpx.get(f"{server.url}/stats").json()["workers"])
    return Outcome(seen, before, _settled(server), restarts)


def report(console: Console, outcome: Outcome) -> None:
    seen = outcome.seen
    answered = ", ".join(f"{number} {kind}" for kind, number in sorted(seen.answered.items()))
    faults = ", ".join(f"{number} {what}" for what, number in sorted(seen.faults.items()))
    lost = [each for each in seen.failed if "acknowledged audio" in each]
    console.print(f"{sum(seen.faults.values())} faults: {faults}; {outcome.restarts} restarts")
    console.print(f"{sum(seen.answered.values())} requests: {answered}; the longest took {seen.longest_s:.0f} s")
    console.print(
        f"{len(seen.failed)} failed requests, {len(lost)} lost acknowledged audio, {len(seen.wrong)} wrong answers"
    )
    console.print(f"before: {outcome.before}\nafter: {outcome.after}")
    console.print(f"{len(outcome.leaks)} leaks")
    for line in (*seen.failed, *seen.wrong, *outcome.leaks):
        console.print(line, markup=False)


def _client(mine: list[Request], until: float, chance: random.Random, seen: Seen) -> None:
    while time.monotonic() < until:
        request = chance.choice(mine)
        began, failed, wrong = time.monotonic(), "", ""
        try:
            answer = request.ask()
        except Exception as error:
            # Whatever it is: the client did not get its answer.
            failed = f"failed: {request.kind} {request.name}: {type(error).__name__} {error}"
        else:
            if answer != request.expected:
                wrong = f"wrong: {request.kind} {request.name}: {answer!r:.500} instead of {request.expected!r:.500}"
        seen.add(request, time.monotonic() - began, failed, wrong)


def _afflict(
    server: Server, until: float, every: float, chance: random.Random, seen: Seen, unsuitable: set[tuple[str, str]]
) -> None:
    able = [(what, name) for what in possible() for name in VICTIMS if (what, name) not in unsuitable]
    while time.monotonic() < until:
        time.sleep(min(chance.uniform(0.5, 1.5) * every, max(0.0, until - time.monotonic())))
        what, name = chance.choice(able)
        # One that is starting is spared: three of those in a row, and the service rightly gives up.
        victims = [each for each in server.workers(name) if server.stats(name)["state"] == "ready"]
        if not victims:
            continue
        try:
            FAULTS[what](chance.choice(victims))
        except (psutil.NoSuchProcess, ProcessLookupError, OSError):
            continue  # It has just died of the last one.
        seen.faults[what] += 1


def _settled(server: Server) -> Holdings:
    """When no more is being closed or started."""
    deadline = time.monotonic() + SETTLED_S
    last = Holdings.of(server)
    while time.monotonic() < deadline:
        time.sleep(2)
        now = Holdings.of(server)
        if (now.processes, now.descriptors, now.files) == (last.processes, last.descriptors, last.files):
            return now
        last = now
    return last
