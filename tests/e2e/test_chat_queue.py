"""Chats that compete for the worker."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.chats import NEVER_ENDS, body, long, post, running
from tests.e2e.server import Server, until

pytestmark = [pytest.mark.model, pytest.mark.port]


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
