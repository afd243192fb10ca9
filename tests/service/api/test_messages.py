"""/v1/messages over HTTP: bodies, the exact grammar of events, errors in Anthropic's shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from protocol.errors import ContextLengthExceeded, Failure, ModelNotConfigured, QueueFull, RequestTimeout, WorkerCrashed
from protocol.events import ChoiceEnded, Counted, Delta, Generated, Started
from protocol.jobs import Chat, CountTokens
from protocol.tools import CallPart
from tests.asgi import FORM, JSON, Reply, ask
from tests.conversing import GENERATED, HI, READY, SAID, SPENT, Conversing, conversing, events
from tests.fakes import FakeWorker
from tests.scripted import scripted

PATH = "/v1/messages"
USAGE = {
    "input_tokens": 5,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 4,
    "output_tokens": 3,
    "output_tokens_details": {"thinking_tokens": 0},
}
CALLING = (
    Started(9, 4),
    Delta(0, reasoning="Hm"),
    Delta(0, reasoning="."),
    Delta(0, "Let me "),
    Delta(0, "see.", calls=(CallPart(0, "call_a", "weather"), CallPart(0, arguments='{"city"'))),
    Delta(0, calls=(CallPart(0, arguments=': "Graz"}'), CallPart(1, "call_b", "time"))),
    ChoiceEnded(0, "tool_calls", 20, reasoning_tokens=2),
    Generated(9, 4, 20, SPENT),
)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversing]:
    with conversing(tmp_path) as made:
        yield made


def post(talk: Conversing, **fields: Any) -> Reply:
    return talk.post(PATH, {"max_tokens": 16, "messages": HI, **fields})


def error(reply: Reply) -> tuple[int, str]:
    assert set(reply.json) == {"type", "error"} and reply.json["type"] == "error"
    assert set(reply.json["error"]) == {"type", "message"}
    return reply.status, reply.json["error"]["type"]


def test_a_message_s_body_is_anthropic_s(talk: Conversing) -> None:
    reply = post(talk)
    body = reply.json
    anthropic.types.Message.model_validate(body, strict=True)
    assert re.fullmatch(r"msg_[0-9a-f]{24}", body.pop("id"))
    assert body.pop("starling")["timings"]["decode"] == 6
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "smol",
        "content": [{"type": "text", "text": "Hello.", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    assert reply.headers["x-starling-model"] == "smol"


def test_a_stream_is_anthropic_s_grammar(talk: Conversing) -> None:
    said = events(post(talk, stream=True))
    assert [event.name for event in said] == [event.data["type"] for event in said]
    start, *middle, delta, stop = [event.data for event in said]
    assert start["message"].pop("id").startswith("msg_")
    assert start == {
        "type": "message_start",
        "message": {
            "type": "message",
            "role": "assistant",
            "model": "smol",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**USAGE, "output_tokens": 0},
        },
    }
    assert middle == [
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "citations": None}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo."}},
        {"type": "content_block_stop", "index": 0},
    ]
    assert delta.pop("starling")["cached_tokens"] == 4
    assert delta == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": USAGE,
    }
    assert stop == {"type": "message_stop"}


def test_thoughts_text_and_uses_of_tools_are_blocks_in_order(tmp_path: Path) -> None:
    with conversing(tmp_path, CALLING) as talk:
        body = post(talk).json
        said = [event.data for event in events(post(talk, stream=True))]
    anthropic.types.Message.model_validate(body, strict=True)
    thought, *others = body["content"]
    assert thought["signature"]
    assert thought == {"type": "thinking", "thinking": "Hm.", "signature": thought["signature"]}
    assert others == [
        {"type": "text", "text": "Let me see.", "citations": None},
        {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Graz"}},
        {"type": "tool_use", "id": "call_b", "name": "time", "input": {}},
    ]
    assert body["stop_reason"] == "tool_use"
    assert body["usage"]["output_tokens_details"] == {"thinking_tokens": 2}
    assert [(each["type"], each.get("index"), each.get("delta", {}).get("type")) for each in said[2:-2]] == [
        ("content_block_start", 0, None),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, None),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, None),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, None),
        ("content_block_stop", 3, None),
    ]
    started = [each["content_block"] for each in said if each["type"] == "content_block_start"]
    assert started[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert started[2] == {"type": "tool_use", "id": "call_a", "name": "weather", "input": {}}


def test_thinking_that_is_not_wanted_is_not_shown(tmp_path: Path) -> None:
    with conversing(tmp_path, CALLING) as talk:
        fields = {"thinking": {"type": "adaptive", "display": "omitted"}}
        assert post(talk, **fields).json["content"][0]["thinking"] == ""
        assert b"thinking_delta" not in post(talk, **fields, stream=True).body


@pytest.mark.parametrize(
    ("ended", "reason", "sequence"),
    [
        (ChoiceEnded(0, "stop", 3), "end_turn", None),
        (ChoiceEnded(0, "stop", 3, stop="END"), "stop_sequence", "END"),
        (ChoiceEnded(0, "length", 16), "max_tokens", None),
        (ChoiceEnded(0, "length", 15), "model_context_window_exceeded", None),
        (ChoiceEnded(0, "tool_calls", 15), "tool_use", None),
    ],
)
def test_why_it_stopped_is_said_in_anthropic_s_words(
    tmp_path: Path, ended: ChoiceEnded, reason: str, sequence: str | None
) -> None:
    with conversing(tmp_path, (Started(9, 0), Delta(0, "x"), ended, GENERATED)) as talk:
        body = post(talk).json
        streamed = events(post(talk, stream=True))[-2].data["delta"]
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)
    assert streamed == {"stop_reason": reason, "stop_sequence": sequence}


def test_an_empty_answer_has_no_blocks(tmp_path: Path) -> None:
    with conversing(tmp_path, (Started(9, 0), Delta(0), ChoiceEnded(0, "stop", 1), GENERATED)) as talk:
        assert post(talk).json["content"] == []
        names = [event.name for event in events(post(talk, stream=True))]
    assert names == ["message_start", "ping", "message_delta", "message_stop"]


def test_a_call_that_is_cut_off_has_no_input(tmp_path: Path) -> None:
    script = (Started(9, 0), Delta(0, calls=(CallPart(0, "c", "f", '{"a'),)), ChoiceEnded(0, "length", 16), GENERATED)
    with conversing(tmp_path, script) as talk:
        assert post(talk).json["content"][0]["input"] == {}


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (ContextLengthExceeded("too long"), 400, "invalid_request_error"),
        (QueueFull("full"), 429, "rate_limit_error"),
        (WorkerCrashed("crashed"), 503, "api_error"),
        (RequestTimeout("late"), 504, "timeout_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_has_anthropic_s_type_in_both_modes(
    tmp_path: Path, failure: Failure, status: int, kind: str, stream: bool
) -> None:
    with conversing(tmp_path, [failure]) as talk:
        assert error(post(talk, stream=stream)) == (status, kind)


def test_every_error_under_this_path_has_anthropic_s_shape(talk: Conversing) -> None:
    assert error(post(talk, max_tokens=None)) == (400, "invalid_request_error")
    assert error(talk.post(PATH, b"{")) == (400, "invalid_request_error")
    assert error(ask(talk.app, "POST", PATH, FORM, b"x")) == (415, "api_error")
    assert error(ask(talk.app, "GET", PATH)) == (405, "api_error")
    assert error(ask(talk.app, "GET", f"{PATH}/batches")) == (404, "not_found_error")
    assert error(ask(talk.app, "POST", "/v1/v1/messages", JSON, b"{}")) == (404, "not_found_error")


def test_too_large_a_body_is_request_too_large(tmp_path: Path) -> None:
    with conversing(tmp_path, max_json_bytes=100) as talk:
        assert error(post(talk, system="x" * 100)) == (413, "request_too_large")


def test_without_a_language_model_the_refusal_says_how_to_get_one(tmp_path: Path) -> None:
    with scripted(tmp_path) as parts:
        body = json.dumps({"max_tokens": 1, "messages": HI}).encode()
        reply = ask(parts.app, "POST", PATH, JSON, body)
    assert error(reply) == (503, "api_error")
    assert "--llm-model" in reply.json["error"]["message"]
    assert ModelNotConfigured.kind.value not in reply.json["error"]["type"]


def test_a_late_failure_is_an_error_event_that_the_sdk_raises(tmp_path: Path) -> None:
    with conversing(tmp_path, [*SAID[:2], WorkerCrashed("the worker crashed")]) as talk:
        last = events(post(talk, stream=True))[-1]
    assert (last.name, last.data) == (
        "error",
        {"type": "error", "error": {"type": "api_error", "message": "the worker crashed"}},
    )


def test_counting_asks_the_worker_about_the_same_conversation(tmp_path: Path) -> None:
    llm = FakeWorker("llm", {CountTokens: [Counted(17)], Chat: SAID}, ready=READY)
    with scripted(tmp_path, llm=llm) as parts:
        talk = Conversing(parts.app, llm)
        body = {"messages": HI, "system": "Be brief.", "model": "claude-sonnet-5"}
        reply = talk.post(f"{PATH}/count_tokens", body)
        assert reply.json == {"input_tokens": 17}
        counted = talk.job.chat
        talk.post(PATH, {**body, "max_tokens": 3})
        assert counted.messages == talk.job.messages
        assert error(talk.post(f"{PATH}/count_tokens", {})) == (400, "invalid_request_error")
