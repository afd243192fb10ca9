"""A real `starling serve` in a process of its own, on a port the system chose.

Knows how to start, look at and end it; knows nothing of what is asked of it.
"""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
START_S = 120.0
"""Seconds; a first start converts the starter model."""


@dataclass
class Server:
    """A running service. `log` is its stderr so far."""

    url: str
    process: subprocess.Popen[str]
    command: list[str]
    data_dir: Path
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def workers(self, name: str = "") -> list[psutil.Process]:
        """The worker processes whose name in /stats contains `name`."""
        stats = httpx.get(f"{self.url}/stats").json()
        pids = [line["pid"] for line in stats["workers"] if name in line["name"] and line["pid"]]
        return [psutil.Process(pid) for pid in pids]

    def stats(self, name: str) -> dict[str, int | str]:
        """The /stats line of the first worker whose name contains `name`."""
        lines: list[dict[str, int | str]] = httpx.get(f"{self.url}/stats").json()["workers"]
        return next(line for line in lines if name in str(line["name"]))

    def spooled(self) -> list[str]:
        """Files of requests in this instance's spool, locks left out."""
        return sorted(
            str(path.relative_to(self.data_dir))
            for path in (self.data_dir / "spool").rglob("*")
            if path.is_file() and "lock" not in path.name
        )

    def recorded(self) -> list[str]:
        """Files of sessions, locks left out."""
        return sorted(
            str(path.relative_to(self.data_dir))
            for path in (self.data_dir / "sessions").rglob("*")
            if not (path.is_file() and "lock" in path.name)
        )

    def kill_and_restart(self) -> None:
        """kill -9 of the front end, and the same command again at once. Needs a port of its own (`serving(port=…)`)."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = _spawn(self.command, self.log_path)
        assert _address(self.process) == self.url
        left = psutil.wait_procs(family, timeout=20)[1]
        assert not left, f"outlived the service: {left}"

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if httpx.get(f"{self.url}/ready").status_code == 200:
                return
            time.sleep(0.1)
        raise AssertionError(f"not ready in {START_S} s:\n{self.log}")


def until(happened: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def unused_port() -> int:
    """A free port that no outgoing connection takes meanwhile: it lies below the ones that systems give to those."""
    candidates = random.sample(range(20_000, 30_000), 100)
    for port in candidates:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError(f"none of these is free: {candidates}")


@contextmanager
def serving(models: Path, *arguments: str, ready: bool = True, port: int = 0) -> Iterator[Server]:
    """Serve with the models under `models` and a data directory of its own; at the end nothing is left.

    `models` is a data directory whose starters are converted already or will be; the spool is apart from it.
    No language model, unless `arguments` name one.
    """
    if "--llm-model" not in arguments:
        arguments = ("--llm-model", "", *arguments)
    with tempfile.TemporaryDirectory(prefix="starling-e2e-") as folder:
        data_dir = Path(folder)
        for shared in ("models", "blas"):
            (models / shared).mkdir(parents=True, exist_ok=True)
            (data_dir / shared).symlink_to(models / shared)
        log_path = data_dir / "log"
        command = [sys.executable, "-m", "service", "serve", "--port", str(port), "--data-dir", folder, *arguments]
        process = _spawn(command, log_path)
        server = None
        try:
            server = Server(_address(process), process, command, data_dir, log_path)
            if ready:
                server.wait_ready()
            yield server
        finally:
            _end(server.process if server else process)


def _spawn(command: list[str], log_path: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STARLING_")}
    with log_path.open("a") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env=environment,
        )


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://[\w.:\[\]]+:\d+", line):
            # What it prints later must not fill the pipe and stop it.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return found.group()
    raise AssertionError(f"the service ended with {process.wait()} before it printed its address")


def _end(process: subprocess.Popen[str]) -> None:
    """SIGTERM, and a check that the service takes its workers with it."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
        left = psutil.wait_procs(family, timeout=20)[1]
        for child in left:
            child.kill()
    assert not left, f"outlived the service: {left}"
