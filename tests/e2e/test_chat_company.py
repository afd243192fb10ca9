"""Chats whose connections end in every way, and characters that come in parts."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import httpx
import openai
import pytest

from tests.asgi import told
from tests.e2e.chats import NEVER_ENDS, PARIS, PATH, body, long, post, running
from tests.e2e.server import Server, until

pytestmark = [pytest.mark.model, pytest.mark.port]

SOON_S = 10.0
"""On a busy machine; 2000 tokens of an answer, or 6000 of a prompt, take several times as long on an idle one."""


@contextmanager
def connected(server: Server, fields: dict[str, Any], version: str = "1.1") -> Iterator[socket.socket]:
    """A connection on which a request was sent."""
    host, port = server.url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        sent = json.dumps(fields).encode()
        connection.sendall(
            f"POST {PATH} HTTP/{version}\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(sent)}\r\n\r\n".encode()
            + sent
        )
        yield connection


def idle(server: Server) -> bool:
    line = server.stats("llm")
    return line["running"] == line["queued"] == 0


def test_characters_over_several_tokens_come_whole(talker: Server) -> None:
    """STR-04: every length of an answer that spells emoji, Hangul and kana, streamed and whole."""
    asked = [{"role": "user", "content": "Repeat exactly: 😀🎉👩‍👩‍👧 안녕하세요 こんにちは"}]
    for tokens in (1, 2, 3, 5, 18, 24):
        fields = body(messages=asked, max_tokens=tokens, logit_bias=NEVER_ENDS)
        whole = post(talker, fields).json()["choices"][0]["message"]["content"]
        events, _ = told(post(talker, {**fields, "stream": True}).content)
        streamed = "".join(event.data["choices"][0]["delta"].get("content", "") for event in events[:-1])
        assert streamed == whole
        assert "\ufffd" not in whole
    assert any(ord(char) > 0x2000 for char in whole)


# Connections.


def test_an_old_client_reads_to_the_end_of_the_connection(talker: Server) -> None:
    """STR-09"""
    with connected(talker, body(stream=True), "1.0") as connection:
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert told(rest)[0][-1].data == "[DONE]"


def test_a_kept_connection_serves_the_next_request(talker: Server) -> None:
    """STR-09"""
    with httpx.Client(timeout=300) as client:
        lines = []
        for stream in (True, True, False):
            answer = client.post(talker.url + PATH, json=body(stream=stream))
            lines.append(answer.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(set(lines)) == 1


@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_a_client_that_leaves_in_mid_stream_frees_its_row(talker: Server, how: str) -> None:
    """STR-01"""
    with connected(talker, body(stream=True, max_tokens=2000, logit_bias=NEVER_ENDS)) as connection:
        seen = b""
        while seen.count(b"data: ") < 5:
            seen += connection.recv(65536)
        assert running(talker) == 1
        if how == "RST":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: idle(talker), "the row is free", seconds=SOON_S)
    assert post(talker, body()).json()["choices"][0]["message"]["content"] == PARIS
    assert "Traceback" not in talker.log


def test_a_client_that_leaves_while_its_prompt_is_read_frees_the_worker(talker: Server) -> None:
    """STR-01"""
    with connected(talker, long(6000, begin="Leaving:", stream=True)):
        until(lambda: running(talker) == 1, "the prompt is being read")
    until(lambda: idle(talker), "nobody is at work", seconds=SOON_S)
    assert post(talker, body()).json()["choices"][0]["message"]["content"] == PARIS
    assert "Traceback" not in talker.log


def test_the_official_client_frees_its_row_by_closing(talker: Server) -> None:
    """STR-01"""
    with openai.OpenAI(base_url=f"{talker.url}/v1", api_key="x", max_retries=0) as client:
        stream: Any = client.chat.completions.create(
            model="any", stream=True, **body(max_tokens=2000, logit_bias=NEVER_ENDS)
        )
        for _ in range(5):
            next(stream)
        stream.close()
        until(lambda: idle(talker), "the row is free", seconds=SOON_S)


def test_clients_that_never_read_cost_nobody_else(talker: Server) -> None:
    """STR-09"""
    with ThreadPoolExecutor(20) as pool:
        done = threading.Event()

        def open_and_wait(_: int) -> None:
            with connected(talker, body(stream=True, max_tokens=40, logit_bias=NEVER_ENDS)):
                done.wait(300)

        waiting = [pool.submit(open_and_wait, number) for number in range(20)]
        try:
            until(lambda: running(talker) >= 10, "they are at work", seconds=100)
            answer = post(talker, body(), **{"x-starling-client": "a reader"})
            assert answer.json()["choices"][0]["message"]["content"] == PARIS
            until(lambda: idle(talker), "all have been answered", seconds=300)
        finally:
            done.set()
        for each in waiting:
            each.result()
