"""Calls of tools over HTTP, whole and streamed: the same calls both ways, in OpenAI's form (LLM-05)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.events import ChoiceEnded, Delta, Generated, Said, Started
from protocol.tools import CallPart
from tests.conversing import Conversing, chunks, conversing

CALLS = (
    Delta(0, calls=(CallPart(0, "call_a", "weather"), CallPart(0, arguments='{"city"'))),
    Delta(0, calls=(CallPart(0, arguments=': "Graz"}'), CallPart(1, "call_b", "time", "{}"))),
)
END = (ChoiceEnded(0, "tool_calls", 20), Generated(9, 4, 20))
WHOLE = [
    {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Graz"}'}},
    {"id": "call_b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
]


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Conversing]:
    """Calls and says nothing."""
    with conversing(tmp_path, (Started(9, 4), *CALLS, *END)) as made:
        yield made


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[Conversing]:
    """Says something first."""
    with conversing(
        tmp_path, (Started(9, 4), Delta(0, "Let me "), Delta(0, "see.", calls=CALLS[0].calls), *END)
    ) as made:
        yield made


def deltas(reply: Any) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(reply)]


def test_a_whole_answer_lists_its_calls_and_has_no_content(silent: Conversing) -> None:
    (choice,) = silent.chat().json["choices"]
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == WHOLE
    assert choice["finish_reason"] == "tool_calls"


def test_text_before_a_call_is_the_content(talking: Conversing) -> None:
    (choice,) = talking.chat().json["choices"]
    assert choice["message"]["content"] == "Let me see."
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_a"]


def test_a_stream_says_each_call_s_id_type_and_name_first(silent: Conversing) -> None:
    said = silent.chat(stream=True)
    assert deltas(said) == [
        {"role": "assistant", "content": None, "refusal": None},
        {
            "tool_calls": [
                {"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ': "Graz"}'}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_b", "type": "function", "function": {"name": "time", "arguments": "{}"}}
            ]
        },
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks(said)] == [None] * 5 + ["tool_calls"]


def test_text_streams_before_a_call_in_chunks_of_its_own(talking: Conversing) -> None:
    said = deltas(talking.chat(stream=True))
    assert said[:3] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Let me "},
        {"content": "see."},
    ]
    assert [part["index"] for delta in said[3:-1] for part in delta["tool_calls"]] == [0, 0]


def test_an_answer_without_calls_has_no_such_key(tmp_path: Path) -> None:
    with conversing(tmp_path) as talk:
        assert "tool_calls" not in talk.chat().json["choices"][0]["message"]


def test_log_probabilities_are_the_text_s(tmp_path: Path) -> None:
    script = (Started(9, 4), Delta(0, "Hm", said=(Said("Hm", b"Hm", -0.5),)), *CALLS, *END)
    with conversing(tmp_path, script) as talk:
        (choice,) = talk.chat(logprobs=True).json["choices"]
        assert [each["token"] for each in choice["logprobs"]["content"]] == ["Hm"]


def test_the_tools_reach_the_worker(silent: Conversing) -> None:
    silent.chat(tools=[{"type": "function", "function": {"name": "weather"}}], tool_choice="required")
    assert [tool.name for tool in silent.job.tools.allowed] == ["weather"]
    assert silent.job.tools.choice == "required"
