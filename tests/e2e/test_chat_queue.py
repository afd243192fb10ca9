"""Chats that compete for the worker, and a worker that dies under one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.server import Server

pytestmark = [pytest.mark.model, pytest.mark.port]

PATH = "/v1/chat/completions"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
NEVER_ENDS = {"2": -100, "0": -100}
"""A bias against the tokens with which the starter ends a text."""


def until(happened: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": CAPITAL, "temperature": 0, **fields}


def long(words: int, **fields: Any) -> dict[str, Any]:
    """A prompt of about so many tokens."""
    content = " ".join(str(number % 10) for number in range(words // 2))
    return body(messages=[{"role": "user", "content": f"{fields.pop('begin', 'Numbers:')} {content}"}], **fields)


def post(server: Server, fields: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(server.url + PATH, json=fields, headers=headers, timeout=300)


def running(server: Server) -> int:
    return int(server.stats("llm")["running"])


# Who waits for whom.


def test_a_short_chat_does_not_wait_for_eight_long_ones(talker: Server) -> None:
    """Eight clients with 800 tokens each to read; a ninth asks a question while they are at it."""
    with ThreadPoolExecutor(8) as pool:
        fields = [long(800, begin=f"Of {number}:", max_tokens=40, logit_bias=NEVER_ENDS) for number in range(8)]
        others = [
            pool.submit(post, talker, each, **{"x-starling-client": f"long {number}"})
            for number, each in enumerate(fields)
        ]
        until(lambda: running(talker) == 8, "all eight have begun", seconds=100)
        began = time.monotonic()
        answer = post(talker, body(max_tokens=4), **{"x-starling-client": "short"})
        short = time.monotonic() - began
        assert not any(each.done() for each in others)
        answers = [each.result() for each in others]
        whole = time.monotonic() - began
    assert answer.json()["choices"][0]["message"]["content"] == "The capital of France"
    assert [each.json()["usage"]["completion_tokens"] for each in answers] == [40] * 8
    assert short < whole / 4


# The worker's end. Last, because the others need a worker that is warm.


def test_a_worker_that_dies_in_mid_stream_is_an_error_of_the_stream(talker: Server) -> None:
    with openai.OpenAI(base_url=f"{talker.url}/v1", api_key="x", max_retries=0, timeout=300) as client:
        stream: Any = client.chat.completions.create(
            model="any", stream=True, **body(max_tokens=2000, logit_bias=NEVER_ENDS)
        )
        for _ in range(5):
            next(stream)
        (victim,) = talker.workers("llm")
        victim.kill()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "worker_crashed"
        again: Any = client.chat.completions.create(model="any", **body())
        assert again.choices[0].message.content == PARIS
