"""`starling serve` as another program's part: where it listens, what it says of it, when it ends. Real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.config import PREFIX
from tests.e2e.server import ROOT, until

pytestmark = pytest.mark.port

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
QUIET = ("--whisper-model", "no/such", "--llm-model", "", "--offline", "--grace", "0.5", "--exit-with-parent")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a socket's has a limit."""
    with tempfile.TemporaryDirectory(prefix="sl-") as made:
        yield Path(made)


@contextmanager
def sidecar(folder: Path, *flags: str, **environ: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """The process, and what its ready file says."""
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "service", "serve", *QUIET, "--data-dir", str(folder / "data")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready), *flags],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**ENVIRONMENT, **environ},
        )
    try:
        until(lambda: ready.exists() or process.poll() is not None, "the ready file is there")
        assert stat.S_IMODE(ready.stat().st_mode) == 0o600
        yield process, json.loads(ready.read_bytes())
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.kill()
        process.wait()


def test_a_sidecar_on_a_socket_is_its_parent_s_alone_and_ends_with_it(folder: Path) -> None:
    path = folder / "s.sock"
    with sidecar(folder, "--uds", str(path), "--api-key", "generate") as (process, told):
        assert set(told) == {"url", "uds", "pid", "api_key"}
        assert (told["uds"], told["pid"]) == (str(path), process.pid)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        transport = httpx.HTTPTransport(uds=told["uds"])
        with httpx.Client(transport=transport, base_url="http://starling") as client:
            assert client.get("/health").json() == {"status": "ok"}
            assert client.get("/v1").status_code == 401
            assert client.get("/v1", headers={"authorization": f"Bearer {told['api_key']}"}).status_code == 200
        family = psutil.Process(process.pid).children(recursive=True)
        assert not any(told["api_key"] in " ".join(each.cmdline()) for each in family)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
        assert psutil.wait_procs(family, timeout=10)[1] == []
    assert sorted(each.name for each in folder.iterdir()) == ["data", "log"]
    assert told["api_key"] not in (folder / "log").read_text()


def test_a_key_of_the_command_line_or_the_environment_is_soon_seen_by_nobody(folder: Path) -> None:
    with sidecar(folder, "--port", "0", "--api-key", "from-flag", STARLING_API_KEY="from-environ") as (process, told):
        assert set(told) == {"url", "pid"}
        headers = {"x-api-key": "from-flag"}
        until(lambda: httpx.get(f"{told['url']}/stats", headers=headers).is_success, "it serves")
        front = psutil.Process(process.pid)
        if sys.platform == "linux":
            soft, hard = front.rlimit(psutil.RLIMIT_NOFILE)
            assert soft >= min(8192, hard)
        assert " ".join(front.cmdline()).strip() == f"starling serve on {told['url']}"
        assert not any("STARLING_API_KEY" in child.environ() for child in front.children())


def test_a_second_signal_ends_it_at_once_and_leaves_no_file(folder: Path) -> None:
    flags = ("--uds", str(folder / "s.sock"), "--grace", "60")
    with sidecar(folder, *flags) as (process, told), socket.socket(socket.AF_UNIX) as stuck:
        stuck.connect(told["uds"])
        head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n"
        stuck.sendall(head + b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n")
        with httpx.Client(transport=httpx.HTTPTransport(uds=told["uds"]), base_url="http://starling") as client:
            until(lambda: client.get("/stats").json()["spool"]["files"] == 1, "the upload has begun")
        process.send_signal(signal.SIGTERM)
        until(lambda: "stopping; once more" in (folder / "log").read_text(), "the first signal is heard")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(2) == 130
    assert sorted(each.name for each in folder.iterdir()) == ["data", "log"]
