"""The end of a service that is busy: a signal, two workers at work, an upload, a dictation and its reader."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import soundfile

from examples.dictate import Dictation
from tests.asgi import Told, told
from tests.e2e.server import Server, serving, until
from tests.e2e.test_isolation import SENTENCES
from tests.speech import speak

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def long_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most of a minute of speech: more work than a second's."""
    pieces = [speak(sentence) for sentence in SENTENCES]
    path = tmp_path_factory.mktemp("long") / "long.wav"
    soundfile.write(path, np.tile(np.concatenate([samples for samples, _ in pieces]), 5), pieces[0][1])
    return path


class Stream(threading.Thread):
    """Reads a stream to its end. `body` is what came; None until the headers are there."""

    def __init__(self, server: Server, method: str, path: str, **request: object) -> None:
        super().__init__(daemon=True)
        self.body: bytes | None = None
        self._asked = (method, server.url + path, request)
        self.start()

    def run(self) -> None:
        method, url, request = self._asked
        with httpx.stream(method, url, timeout=100, **request) as answer:  # type: ignore[arg-type]
            self.body = b""
            for chunk in answer.iter_raw():
                self.body += chunk

    @property
    def last(self) -> Told:
        self.join(90)
        assert self.body is not None
        return told(self.body)[0][-1]


def transcribing(server: Server, clip: Path) -> Stream:
    """A stream whose first segment is there."""
    file = {"file": ("a.wav", clip.read_bytes())}
    stream = Stream(server, "POST", "/v1/audio/transcriptions", files=file, data={"stream": "true"})
    until(lambda: b"transcript.text.delta" in (stream.body or b""), "a segment has come")
    return stream


def test_everybody_is_told_and_the_dictation_goes_on_later(model_data_dir: Path, long_clip: Path) -> None:
    with serving(model_data_dir, "--whisper-model", "whisper-tiny.en", "--grace", "1") as server:
        host, port = server.url.removeprefix("http://").split(":")
        family = psutil.Process(server.process.pid).children(recursive=True)
        with Dictation(server.url) as session, socket.create_connection((host, int(port))) as upload:
            session.add(bytes(64_000))
            reader = Stream(server, "GET", f"/v1/audio/sessions/{session.session['id']}/events")
            until(lambda: b"session.created" in (reader.body or b""), "the reader is there")
            head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n"
            upload.sendall(head + b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n")
            stream = transcribing(server, long_clip)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert stream.last.data["error"]["code"] == "shutting_down"
            assert reader.last.data["error"]["code"] == "shutting_down"
            status, _, rest = upload.makefile("rb").read().partition(b"\r\n")
            assert status.startswith(b"HTTP/1.1 503")
            assert json.loads(rest.partition(b"\r\n\r\n")[2])["error"]["code"] == "shutting_down"
            assert server.process.wait(20) == 0
            assert time.monotonic() - began < 15
        assert psutil.wait_procs(family, timeout=20)[1] == []
        assert len(server.recorded()) > 0 and server.spooled() == []
        assert "Traceback" not in server.log


def test_work_that_ends_within_the_grace_is_answered(model_data_dir: Path, long_clip: Path) -> None:
    with serving(model_data_dir, "--whisper-model", "whisper-tiny.en", "--grace", "60") as server:
        stream = transcribing(server, long_clip)
        server.process.send_signal(signal.SIGTERM)
        assert b"transcript.text.done" not in (stream.body or b"")
        assert stream.last.name == "transcript.text.done"
        assert server.process.wait(20) == 0


def test_a_front_end_that_is_killed_takes_busy_workers_with_it(model_data_dir: Path, long_clip: Path) -> None:
    with serving(model_data_dir, "--whisper-model", "whisper-tiny.en") as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        assert len(family) >= 3
        file = {"file": ("a.wav", long_clip.read_bytes())}
        ignored = threading.Thread(target=lambda: _unheard(server, file), daemon=True)
        ignored.start()
        until(lambda: server.stats("whisper")["running"] == 1, "a worker computes")
        server.process.kill()
        until(lambda: all(map(ended, family)), "the workers are gone", seconds=5)
        server.process.wait()
        ignored.join(10)


def ended(process: psutil.Process) -> bool:
    """Whoever inherits it may take its time to say so."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _unheard(server: Server, file: dict[str, tuple[str, bytes]]) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{server.url}/v1/audio/transcriptions", files=file, timeout=60)
