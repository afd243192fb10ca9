"""Anthropic's client, unchanged, against a real service with the starter language model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.e2e.server import Server

pytestmark = [pytest.mark.port, pytest.mark.model]

CAPITAL: list[MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def client(talker: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=talker.url, api_key="none", max_retries=0, timeout=300) as client:
        yield client


def create(
    client: anthropic.Anthropic, messages: list[MessageParam] = CAPITAL, *, temperature: float = 0, **fields: Any
) -> anthropic.types.Message:
    # The client has no argument for it any more.
    body = {"temperature": temperature}
    asked = {"model": "claude-sonnet-5", "max_tokens": 24, "messages": messages, "extra_body": body, **fields}
    made: anthropic.types.Message = client.messages.create(**asked)
    return made


def text(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_a_message_is_answered(client: anthropic.Anthropic) -> None:
    message = create(client)
    assert "Paris" in text(message)
    assert (message.type, message.role, message.model) == ("message", "assistant", "smollm2-135m-instruct")
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 0
    assert message._request_id


def test_the_stream_helper_accumulates_the_same_message(client: anthropic.Anthropic) -> None:
    whole = create(client, system=[{"type": "text", "text": "Answer in one sentence."}])
    with client.messages.stream(
        model="x",
        max_tokens=24,
        extra_body={"temperature": 0},
        system="Answer in one sentence.",
        messages=CAPITAL,
    ) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 3
    assert "".join(pieces) == text(final) == text(whole)
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_a_conversation_that_goes_on_is_read_from_the_cache(client: anthropic.Anthropic) -> None:
    first = create(client)
    turns: list[MessageParam] = [
        *CAPITAL,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "And of Italy?"},
    ]
    counted = client.messages.count_tokens(model="x", messages=turns).input_tokens
    usage = create(client, turns).usage
    assert usage.cache_read_input_tokens and usage.cache_read_input_tokens > 20
    assert usage.input_tokens + usage.cache_read_input_tokens == counted


def test_tokens_are_counted_as_they_are_used(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="x", messages=CAPITAL, system="Be brief.", tools=[WEATHER])
    usage = create(client, system="Be brief.", tools=[WEATHER]).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert client.messages.count_tokens(model="x", messages=CAPITAL).input_tokens < counted.input_tokens


def test_limits_and_stop_sequences_say_why_it_stopped(client: anthropic.Anthropic) -> None:
    cut = create(client, max_tokens=3)
    assert (cut.stop_reason, cut.stop_sequence, cut.usage.output_tokens) == ("max_tokens", None, 3)
    stopped = create(client, stop_sequences=["Paris", "?"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in text(stopped)


def test_a_tool_that_is_demanded_is_used_and_its_result_is_read(client: anthropic.Anthropic) -> None:
    asked: list[MessageParam] = [{"role": "user", "content": "What is the weather in Graz?"}]
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}}
    used = create(client, asked, max_tokens=200, **fields)
    assert used.stop_reason == "tool_use"
    (block,) = used.content
    assert block.type == "tool_use" and block.name == "get_weather"
    assert isinstance(block.input["city"], str)
    turns: list[MessageParam] = [
        *asked,
        {"role": "assistant", "content": used.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "12 degrees, rain"}]},
    ]
    told = create(client, turns, tools=[WEATHER], tool_choice={"type": "none"})
    assert told.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(
        model="x", max_tokens=200, extra_body={"temperature": 0}, messages=asked, **fields
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert "input_json" in kinds
    assert [each.input for each in final.content if each.type == "tool_use"] == [block.input]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"temperature": 2}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x " * 20_000}]}, "context length"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ],
)
def test_what_is_wrong_is_a_bad_request(client: anthropic.Anthropic, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        create(client, **fields)
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["error"]["type"] == "invalid_request_error"
    assert told in raised.value.body["error"]["message"]


def test_a_refusal_of_a_stream_is_raised_before_it_begins(client: anthropic.Anthropic) -> None:
    with (
        pytest.raises(anthropic.BadRequestError),
        client.messages.stream(model="x", max_tokens=9, messages=[{"role": "user", "content": "x " * 20_000}]),
    ):
        raise AssertionError("the stream began")


def test_a_base_url_that_ends_in_v1_is_told_its_mistake(talker: Server) -> None:
    with (
        anthropic.Anthropic(base_url=f"{talker.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.NotFoundError, match="goes without /v1"),
    ):
        create(client)


async def _together(url: str, questions: list[str]) -> list[str]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=300) as client:
        made = await asyncio.gather(
            *(
                client.messages.create(
                    model="x",
                    max_tokens=12,
                    extra_body={"temperature": 0},
                    messages=[{"role": "user", "content": question}],
                )
                for question in questions
            )
        )
    return [text(message) for message in made]


def test_several_at_once_are_each_answered_as_alone(talker: Server, client: anthropic.Anthropic) -> None:
    questions = [f"What is the capital of {country}?" for country in ("France", "Italy", "Spain")]
    together = asyncio.run(_together(talker.url, questions))
    alone = [text(create(client, [{"role": "user", "content": question}], max_tokens=12)) for question in questions]
    assert together == alone
    assert "Paris" in together[0]
