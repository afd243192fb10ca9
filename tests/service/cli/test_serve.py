"""`starling serve` as a process: its first words, its ends, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypercorn.asyncio import serve

from service.__main__ import main
from service.cli.listening import opened
from service.cli.serve import _hypercorn
from service.config import Config

pytestmark = pytest.mark.port

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("STARLING_")}


class Started:
    def __init__(self, folder: Path) -> None:
        # A model that is not there: this is about the process, and nothing has to be loaded.
        flags = [
            "--port",
            "0",
            "--whisper-model",
            "no/such",
            "--llm-model",
            "",
            "--offline",
            "--exit-with-parent",
            "--grace",
            "0.5",
        ]
        self.log = folder.with_name("log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "service", "serve", "--data-dir", str(folder), *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()

    @property
    def url(self) -> str:
        found = re.search(r"http://\S+", self.first)
        assert found
        return found[0]

    def rest(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    service = Started(tmp_path / "data")
    yield service
    service.process.kill()
    service.process.wait()
    for pipe in (service.process.stdin, service.process.stdout):
        assert pipe is not None
        pipe.close()


def test_it_prints_its_real_address_and_answers_there(started: Started, tmp_path: Path) -> None:
    assert re.fullmatch(r"Starling [\d.]+ on http://127\.0\.0\.1:[1-9]\d+ \(Ctrl-C stops it\)\n", started.first)
    with urllib.request.urlopen(f"{started.url}/health") as answer:
        assert answer.read() == b'{"status":"ok"}'
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(started: Started, number: signal.Signals) -> None:
    urllib.request.urlopen(f"{started.url}/health").close()
    started.process.send_signal(number)
    assert "stopping; once more stops it at once\n" in started.rest()
    assert started.process.wait() == 0


def test_a_client_that_stopped_sending_does_not_keep_it(started: Started) -> None:
    port = int(started.url.rpartition(":")[2])
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n"
    with socket.create_connection(("127.0.0.1", port)) as stuck:
        stuck.sendall(head + b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n")
        urllib.request.urlopen(f"{started.url}/health").close()
        started.process.terminate()
        assert started.process.wait(5) == 0


def test_the_end_of_its_input_ends_it(started: Started) -> None:
    urllib.request.urlopen(f"{started.url}/health").close()
    assert started.process.stdin is not None
    started.process.stdin.close()
    assert started.process.wait() == 0


def test_a_port_in_use_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("service.cli.address.PROBE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port), "--data-dir", str(tmp_path)]) == 1
    message = f"starling: 127.0.0.1:{port} is in use by another program: choose another port (--port 9000,"
    assert capsys.readouterr().err.startswith(message)


def test_a_data_directory_that_cannot_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["serve", "--port", "0", "--data-dir", str(tmp_path / "file" / "x")]) == 1
    assert "cannot be made (Not a directory): see --data-dir" in capsys.readouterr().err


def exchange(url: str, request: bytes) -> bytes:
    """What comes back until the server closes the connection or is silent for ten seconds."""
    host, _, port = url.removeprefix("http://").partition(":")
    said = b""
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        try:
            while chunk := connection.recv(65536):
                said += chunk
        except TimeoutError:
            pass
    return said


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/audio/transcriptions", "/health"])
def test_an_upgrade_to_a_websocket_is_refused_like_any_unknown_path(started: Started, path: str) -> None:
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\nx-request-id: r-1\r\n"
    upgrade = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n{key}"
    head, _, body = exchange(started.url, f"{upgrade}\r\n".encode()).partition(b"\r\n\r\n")
    assert head.splitlines()[0].startswith(b"HTTP/1.1 404")
    assert b"x-request-id: r-1" in head.splitlines()
    assert json.loads(body)["error"] == {
        "message": f"there is no WebSocket at {path}; GET /v1 lists what there is",
        "type": "not_found_error",
        "param": None,
        "code": "not_found",
    }


def test_a_form_that_is_none_is_one_line_of_the_log(started: Started) -> None:
    head = "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nx-request-id: r-2\r\n"
    request = f"{head}content-type: multipart/form-data; boundary=b\r\ncontent-length: 9\r\n\r\nno form\r\n"
    assert exchange(started.url, request.encode()).startswith(b"HTTP/1.1 400")
    started.process.terminate()
    started.process.wait()
    lines = started.log.read_text().splitlines()
    assert [line for line in lines if "multipart" in line or "boundary" in line] == []
    assert [line.rpartition(" ")[2] for line in lines if "transcriptions" in line] == ["r-2"]


def test_headers_over_their_limit_are_refused(started: Started) -> None:
    """Ours where they came at once, Hypercorn's own where they go on and on."""
    begins = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nx-long: "
    told = exchange(started.url, begins + b"x" * 20_000 + b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 400") and b"bytes; 16384 are allowed" in told
    assert exchange(started.url, begins + b"x" * 200_000).startswith(b"HTTP/1.1 431")


def test_headers_that_do_not_come_to_an_end_close_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow-loris: a byte now and then does not gain time."""
    monkeypatch.setattr("service.cli.serve.KEEP_ALIVE_S", 0.3)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no request came")

    async def main() -> None:
        listening, stop = opened(Config(port=0)), asyncio.Event()
        host, port = listening.url.removeprefix("http://").split(":")
        serving = asyncio.create_task(serve(app, _hypercorn(Config(), listening), shutdown_trigger=stop.wait))
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(5):
            for byte in b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-name: and so on and so on, for ever and ever":
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)
                if reader.at_eof():
                    break
            assert await reader.read() == b""
        writer.close()
        stop.set()
        await serving

    asyncio.run(main())
