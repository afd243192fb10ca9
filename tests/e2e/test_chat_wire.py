"""Chats over bare HTTP: the bytes that the clients hide."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.asgi import told
from tests.e2e.server import Server

pytestmark = [pytest.mark.model, pytest.mark.port]

PATH = "/v1/chat/completions"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": CAPITAL, "temperature": 0, **fields}


def post(server: Server, fields: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(server.url + PATH, json=fields, headers=headers, timeout=300)


def test_a_stream_is_lines_of_data_and_ends_with_done(talker: Server) -> None:
    """STR-07"""
    answer = post(talker, body(stream=True), **{"x-request-id": "mine-1"})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert (answer.headers["x-request-id"], answer.headers["x-starling-model"]) == ("mine-1", "smollm2-135m-instruct")
    *events, end = answer.content.split(b"\n\n")
    assert end == b""
    assert events[-1] == b"data: [DONE]"
    assert all(re.fullmatch(rb"data: \{[^\r\n]*\}", event) for event in events[:-1])
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    assert chunks[0]["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert chunks[-1]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == PARIS
    assert not any("usage" in chunk for chunk in chunks)


def test_line_ends_of_every_kind_stay_in_their_line(talker: Server) -> None:
    r"""STR-07: an echoed text with \n\n, \r\n, a lone \r, U+2028 and U+0085, and with 100 kB."""
    prompt = "a\n\nb\r\nc\rd\u2028e\x85f"
    for text in (prompt, "x" * 100_000):
        fields = {"prompt": text, "echo": True, "stream": True, "max_tokens": 1, "temperature": 0}
        answer = httpx.post(f"{talker.url}/v1/completions", json=fields, timeout=300)
        if answer.status_code == 400:
            # So many letters may be over the context.
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            continue
        events, _ = told(answer.content)
        said = "".join(event.data["choices"][0]["text"] for event in events[:-1])
        assert said.startswith(text)
        assert len(answer.content.decode().splitlines()) == 2 * len(events)


def test_a_whole_answer_has_its_headers_and_every_key(talker: Server) -> None:
    answer = post(talker, body(mood="good"))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-starling-ignored"] == "mood"
    told_of = answer.json()
    assert set(told_of) == {
        "id",
        "object",
        "created",
        "model",
        "system_fingerprint",
        "choices",
        "usage",
        "starling",
    }
    assert told_of["usage"]["prompt_tokens_details"].keys() == {"cached_tokens", "audio_tokens"}
    assert told_of["starling"]["timings"]["total"] > 0


def test_null_is_absent_for_every_optional_field(talker: Server) -> None:
    """REQ-12"""
    names = "max_tokens max_completion_tokens top_p seed stop n logprobs top_logprobs logit_bias presence_penalty"
    more = "frequency_penalty tools tool_choice response_format stream stream_options reasoning_effort model user"
    nulls = dict.fromkeys([*names.split(), *more.split()])
    assert post(talker, body(**nulls)).json()["choices"][0]["message"]["content"] == PARIS


@pytest.mark.parametrize("value", [0, -1, 1.5, "16", True])
def test_no_number_of_tokens_is_refused_in_either_mode(talker: Server, value: Any) -> None:
    """REQ-12, REQ-11"""
    for stream in (False, True):
        answer = post(talker, body(max_tokens=value, stream=stream))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("sent", [b"", b"{", b"[]", b'{"messages": "\xff"}', b"null"])
def test_what_is_no_request_is_refused(talker: Server, sent: bytes) -> None:
    answer = httpx.post(talker.url + PATH, content=sent, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
