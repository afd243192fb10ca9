"""What a departure or a crowd costs: nothing that stays behind."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import soundfile

from tests.e2e.server import ROOT, Server, serving, until
from tests.speech import speak

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Seven ships sailed into the harbor this morning.",
    "Please open the window and close the door.",
    "My brother bought a new blue bicycle yesterday.",
]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("clips")
    paths = []
    for number, sentence in enumerate(SENTENCES):
        samples, rate = speak(sentence)
        paths.append(folder / f"{number}.wav")
        soundfile.write(paths[-1], samples, rate)
    return paths


@pytest.fixture(scope="module")
def long_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About two minutes of speech: work enough to be interrupted."""
    pieces = [speak(sentence) for sentence in SENTENCES * 10]
    path = tmp_path_factory.mktemp("long") / "long.wav"
    soundfile.write(path, np.concatenate([samples for samples, _ in pieces]), pieces[0][1])
    return path


def transcribe(server: Server, path: Path) -> httpx.Response:
    with path.open("rb") as file:
        return httpx.post(f"{server.url}/v1/audio/transcriptions", files={"file": file}, timeout=110)


def running(server: Server) -> bool:
    return server.stats("whisper")["running"] == 1


def test_a_client_that_leaves_frees_the_worker(tiny: Server, clips: list[Path], long_clip: Path) -> None:
    """STR-01: its socket closes while the worker transcribes; the worker does not go on for nobody."""
    host, port = tiny.url.removeprefix("http://").split(":")
    body = long_clip.read_bytes()
    head = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    payload = head + body + b"\r\n--B--\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: multipart/form-data; boundary=B\r\n"
            + f"Content-Length: {len(payload)}\r\n\r\n".encode()
            + payload
        )
        until(lambda: running(tiny), "the job reached the worker")
    until(lambda: tiny.stats("whisper")["running"] == 0, "the job left the worker", seconds=2)
    until(lambda: tiny.spooled() == [], "the spool is empty", seconds=20)
    assert "fox" in transcribe(tiny, clips[0]).json()["text"]
    assert "Traceback" not in tiny.log


@pytest.mark.parametrize("chunked", [False, True])
def test_uploads_that_break_off_leave_nothing(tiny: Server, chunked: bool) -> None:
    """REQ-05"""
    host, port = tiny.url.removeprefix("http://").split(":")
    front = psutil.Process(tiny.process.pid)
    descriptors = front.num_fds()
    body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + bytes(500_000)
    # In the midst of a chunk, or of what the length promised.
    length = "Content-Length: 20000000"
    if chunked:
        length, body = "Transfer-Encoding: chunked", b"%x\r\n" % 20_000_000 + body
    for _ in range(25):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Type: multipart/form-data; boundary=B\r\n" + f"{length}\r\n\r\n".encode() + body
            )
    until(lambda: tiny.spooled() == [], "the spool is empty")
    until(lambda: front.num_fds() <= descriptors, "the descriptors are closed")
    assert "Traceback" not in tiny.log


def test_several_at_once_each_get_their_own_text(tiny: Server, clips: list[Path]) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda path: transcribe(tiny, path), clips * 2))
    words = ["fox", "harbor", "window", "bicycle"] * 2
    assert [answer.status_code for answer in answers] == [200] * 8
    for word, answer in zip(words, answers, strict=True):
        assert word in answer.json()["text"]


def test_a_model_that_cannot_be_had_is_explained_and_the_service_serves_on(model_data_dir: Path) -> None:
    with serving(model_data_dir, "--whisper-model", "no-such/model", "--offline", ready=False) as server:
        until(lambda: "no-such/model" in httpx.get(f"{server.url}/ready").text, "the reason is known", seconds=60)
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        with (ROOT / "service" / "sample.flac").open("rb") as file:
            answer = httpx.post(f"{server.url}/v1/audio/transcriptions", files={"file": file}, timeout=100)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_configured")
    assert answer.headers["x-should-retry"] == "false"
    assert "starling get no-such/model" in answer.json()["error"]["message"]


def test_requests_during_the_start_wait_for_it(model_data_dir: Path, clips: list[Path]) -> None:
    with serving(model_data_dir, "--whisper-model", "whisper-tiny.en", ready=False) as server:
        answer = transcribe(server, clips[0])
    assert "fox" in answer.json()["text"]


def test_health_answers_while_an_upload_passes_through(tiny: Server) -> None:
    """150 MB of noise: the front end neither holds it nor stops answering."""
    front = psutil.Process(tiny.process.pid)
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            httpx.get(f"{tiny.url}/health", timeout=5).raise_for_status()
            seen.append(front.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answer = httpx.post(
            f"{tiny.url}/v1/audio/transcriptions", files={"file": ("noise.bin", bytes(150 << 20))}, timeout=100
        )
    finally:
        done.set()
        watcher.join()
    assert answer.status_code == 400
    assert len(seen) > 3
    assert max(seen) < 120 << 20


def first_line(server: Server, sent: bytes) -> bytes:
    """Of the answer."""
    host, port = server.url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=30)) as connection:
        connection.sendall(sent)
        return connection.makefile("rb").readline()


def test_http2_is_not_spoken_and_an_upgrade_to_it_is_passed_over(tiny: Server) -> None:
    """A client that closed its window and left would keep its requests' places for ever."""
    assert first_line(tiny, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    asked = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + upgrade + b"\r\n"
    assert first_line(tiny, asked).startswith(b"HTTP/1.1 200 ")
