"""Streams through a real service: the official client, readers of all kinds, clients that leave, a shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import psutil
import pytest
import soundfile

from tests.asgi import Told, told
from tests.e2e.server import Server, serving, until
from tests.speech import speak

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Seven ships sailed into the harbor this morning.",
    "Please open the window and close the door.",
    "My brother bought a new blue bicycle yesterday.",
]
PATH = "/v1/audio/transcriptions"


def stored(path: Path, sentences: list[str]) -> Path:
    samples = [speak(sentence)[0] for sentence in sentences]
    soundfile.write(path, np.concatenate(samples), 16_000)
    return path


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("clip") / "a.flac", SENTENCES[:1])


@pytest.fixture(scope="module")
def minute(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Over a minute of speech: three windows."""
    return stored(tmp_path_factory.mktemp("minute") / "a.flac", SENTENCES * 6)


@pytest.fixture(scope="module")
def ten_minutes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("long") / "a.flac", SENTENCES * 55)


def fields(**more: str) -> dict[str, str]:
    return {"stream": "true", "audio_ctx": "auto", **more}


def streamed(server: Server, path: Path, **more: str) -> list[Told]:
    with path.open("rb") as file:
        answer = httpx.post(server.url + PATH, files={"file": file}, data=fields(**more), timeout=300)
    assert answer.headers["content-type"].startswith("text/event-stream")
    return told(answer.content)[0]


def running(server: Server) -> int:
    return int(server.stats("whisper")["running"])


def request(path: Path, version: str = "1.1") -> bytes:
    parts = [
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields().items()
    ]
    head = '--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    body = "".join([*parts, head]).encode() + path.read_bytes() + b"\r\n--B--\r\n"
    return (
        f"POST {PATH} HTTP/{version}\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=B\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def connected(server: Server, *, receive_buffer: int = 0) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(300)
    connection.connect((host, int(port)))
    return connection


def test_the_official_client_gets_one_delta_for_each_segment_and_done(tiny: Server, minute: Path) -> None:
    """STR-03"""
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0) as client:
        with minute.open("rb") as file:
            events = list(client.audio.transcriptions.create(model="whisper-1", file=file, stream=True))
        with minute.open("rb") as file:
            plain = client.audio.transcriptions.create(model="whisper-1", file=file, response_format="verbose_json")
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    (done,) = [event for event in events if event.type == "transcript.text.done"]
    assert done is events[-1]
    assert "".join(deltas) == done.text == plain.text
    assert plain.segments is not None
    assert len(deltas) == len(plain.segments) > 5


def test_the_official_asynchronous_client_gets_words_and_log_probabilities(tiny: Server, clip: Path) -> None:
    recording = clip.read_bytes()

    async def main() -> list[Any]:
        client = openai.AsyncOpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0)
        async with client:
            stream = await client.audio.transcriptions.create(
                model="whisper-1",
                file=("a.flac", recording),
                stream=True,
                timestamp_granularities=["word"],
                include=["logprobs"],
            )
            return [event async for event in stream]

    events = asyncio.run(main())
    delta = next(event for event in events if event.type == "transcript.text.delta")
    assert "".join(word["word"] for word in delta.segment["words"]).strip() == delta.delta
    assert "".join(token.token for token in delta.logprobs).strip() == delta.delta
    assert all(token.logprob <= 0 for token in delta.logprobs)
    assert events[-1].type == "transcript.text.done"


def test_segments_come_while_the_rest_is_still_to_be_heard(tiny: Server, minute: Path) -> None:
    came: list[tuple[str, float]] = []
    with (
        minute.open("rb") as file,
        httpx.stream("POST", tiny.url + PATH, files={"file": file}, data=fields(), timeout=300) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("event: "):
                came.append((line.removeprefix("event: "), time.monotonic()))
    first = next(at for name, at in came if name == "transcript.text.delta")
    assert came[-1][0] == "transcript.text.done"
    assert came[-1][1] - first > 0.5
    assert sum(name == "transcript.progress" for name, _ in came) >= 3


def test_a_faithful_stream_is_mlx_whisper_s_text(tiny: Server, clip: Path) -> None:
    with clip.open("rb") as file:
        answer = httpx.post(
            tiny.url + PATH, files={"file": file}, data={"stream": "true", "faithful": "true"}, timeout=300
        )
    with clip.open("rb") as file:
        plain = httpx.post(tiny.url + PATH, files={"file": file}, data={"faithful": "true"}, timeout=300)
    events = told(answer.content)[0]
    assert events[-1].data["text"] == plain.json()["text"] != ""
    assert tiny.stats("oracle")["state"] == "ready"


@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_a_client_that_leaves_after_the_first_delta_frees_the_worker(
    tiny: Server, ten_minutes: Path, clip: Path, how: str
) -> None:
    """STR-01"""
    with closing(connected(tiny)) as connection:
        connection.sendall(request(ten_minutes))
        seen = b""
        while b"transcript.text.delta" not in seen:
            seen += connection.recv(65536)
        assert running(tiny) == 1
        if how == "RST":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: running(tiny) == 0, "the job left the worker", seconds=4)
    until(lambda: tiny.spooled() == [], "the spool is empty", seconds=20)
    assert streamed(tiny, clip)[-1].name == "transcript.text.done"
    assert "Traceback" not in tiny.log


def test_an_old_client_reads_to_the_end_of_the_connection(tiny: Server, clip: Path) -> None:
    """STR-09"""
    with closing(connected(tiny)) as connection:
        connection.sendall(request(clip, "1.0"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head
    assert b"chunked" not in head.lower()
    assert told(body)[0][-1].name == "transcript.text.done"


def test_a_connection_that_is_kept_serves_the_next_request(tiny: Server, clip: Path) -> None:
    """STR-09"""
    with httpx.Client(timeout=300) as client:
        for _ in range(2):
            with clip.open("rb") as file:
                answer = client.post(tiny.url + PATH, files={"file": file}, data=fields())
            assert told(answer.content)[0][-1].name == "transcript.text.done"
        # The very same connection: the stream's end was the end of a message and not of the line.
        streams = [answer.extensions["network_stream"].get_extra_info("client_addr")]
        with clip.open("rb") as file:
            answer = client.post(tiny.url + PATH, files={"file": file}, data=fields())
        assert streams == [answer.extensions["network_stream"].get_extra_info("client_addr")]


def test_twenty_clients_that_never_read_cost_nobody_else(tiny: Server, clip: Path) -> None:
    """STR-09"""
    front = psutil.Process(tiny.process.pid)
    before = front.memory_info().rss
    connections = [connected(tiny, receive_buffer=1024) for _ in range(20)]
    try:
        for connection in connections:
            connection.sendall(request(clip))
        assert streamed(tiny, clip)[-1].name == "transcript.text.done"
        until(lambda: running(tiny) == 0, "all jobs have left the worker", seconds=120)
        assert front.memory_info().rss - before < 32 << 20
    finally:
        for connection in connections:
            connection.close()
    until(lambda: tiny.spooled() == [], "the spool is empty")
    assert "Traceback" not in tiny.log


@pytest.fixture
def ending(model_data_dir: Path) -> Iterator[Server]:
    with serving(model_data_dir, "--whisper-model", "whisper-tiny.en", "--grace", "0.5") as server:
        yield server


def test_a_shutdown_tells_a_stream_that_does_not_end_in_time(ending: Server, ten_minutes: Path) -> None:
    seen: list[bytes] = []
    begun = threading.Event()

    def read() -> None:
        with (
            ten_minutes.open("rb") as file,
            httpx.stream("POST", ending.url + PATH, files={"file": file}, data=fields(), timeout=300) as answer,
        ):
            for chunk in answer.iter_bytes():
                seen.append(chunk)
                if b"transcript.text.delta" in chunk:
                    begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(120)
    ending.process.terminate()
    reader.join(20)
    assert ending.process.wait(10) == 0
    last = told(b"".join(seen))[0][-1]
    assert (last.name, last.data["error"]["code"]) == ("error", "shutting_down")
    assert json.dumps(last.data).count("shutting_down") == 1
