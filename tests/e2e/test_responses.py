"""OpenAI's client for the Responses API, unchanged, against a real service with the starter; and a restart of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam, Response
from pydantic import BaseModel, Field

from tests.e2e.server import Server, serving, unused_port

pytestmark = [pytest.mark.port, pytest.mark.model]

CAPITAL = "What is the capital of France?"
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def connected(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def client(talker: Server) -> Iterator[openai.OpenAI]:
    with connected(talker) as client:
        yield client


def create(client: openai.OpenAI, given: Any = CAPITAL, **fields: Any) -> Response:
    asked = {"model": "gpt-5", "input": given, "max_output_tokens": 24, "temperature": 0, **fields}
    made: Response = client.responses.create(**asked)
    return made


def test_a_response_is_answered_kept_and_deleted(client: openai.OpenAI) -> None:
    response = create(client, metadata={"topic": "cities"})
    assert "Paris" in response.output_text
    assert (response.status, response.model, response.metadata) == (
        "completed",
        "smollm2-135m-instruct",
        {"topic": "cities"},
    )
    assert client.responses.retrieve(response.id) == response
    (item,) = client.responses.input_items.list(response.id).data
    assert item.type == "message" and item.content[0].to_dict() == {"type": "input_text", "text": CAPITAL}
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError) as raised:
        client.responses.retrieve(response.id)
    assert raised.value.code == "unknown_response"


def test_the_stream_helper_accumulates_the_same_response(client: openai.OpenAI) -> None:
    whole = create(client)
    with client.responses.stream(model="gpt-5", input=CAPITAL, max_output_tokens=24, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.usage and whole.usage and final.usage.output_tokens == whole.usage.output_tokens


def test_a_conversation_goes_on_by_its_last_response_and_from_the_cache(client: openai.OpenAI) -> None:
    first = create(client)
    second = create(client, "And of Italy?", previous_response_id=first.id)
    assert second.usage and first.usage
    assert second.usage.input_tokens > first.usage.total_tokens - 2
    assert second.usage.input_tokens_details.cached_tokens > 20
    spelt = [
        {"role": "user", "content": CAPITAL},
        *[item.to_dict() for item in first.output],
        {"role": "user", "content": "And of Italy?"},
    ]
    assert create(client, spelt, store=False).output_text == second.output_text
    counted = client.responses.input_tokens.count(model="gpt-5", input="And of Italy?", previous_response_id=first.id)
    assert counted.input_tokens == second.usage.input_tokens


def test_an_answer_that_reaches_its_limit_is_incomplete(client: openai.OpenAI) -> None:
    response = create(client, max_output_tokens=3)
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"
    assert response.usage and response.usage.output_tokens == 3


def test_a_tool_that_is_demanded_is_called_and_its_result_is_read(client: openai.OpenAI) -> None:
    asked = "What is the weather in Graz?"
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}}
    called = create(client, asked, max_output_tokens=200, **fields)
    (call,) = called.output
    assert call.type == "function_call" and call.name == "get_weather"
    told = create(
        client,
        [{"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees, rain"}],
        previous_response_id=called.id,
    )
    assert told.output_text
    with client.responses.stream(model="x", input=asked, max_output_tokens=200, temperature=0, **fields) as stream:
        stream.until_done()
        final = stream.get_final_response()
    assert [item.arguments for item in final.output if item.type == "function_call"] == [call.arguments]


def test_an_answer_has_the_shape_that_was_asked_for(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model="x", input="Invent a person.", max_output_tokens=100, temperature=0, text_format=Person
    ) as stream:
        stream.until_done()
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Person)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"background": True}, "background"),
        ({"input": "x " * 20_000}, "input"),
    ],
)
def test_what_is_wrong_is_a_bad_request(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        create(client, **fields)
    assert raised.value.param == param


def test_a_conversation_outlives_a_kill_of_the_service(model_data_dir: Path) -> None:
    models = ("--whisper-model", "whisper-tiny.en", "--llm-model", "smollm2-135m-instruct")
    patience = ("--stall-seconds", "600", "--start-wait", "300")
    with serving(model_data_dir, *models, *patience, port=unused_port()) as server:
        with connected(server) as client:
            first = create(client)
        server.kill_and_restart()
        server.wait_ready()
        with connected(server) as client:
            assert client.responses.retrieve(first.id) == first
            second = create(client, "And of Italy?", previous_response_id=first.id)
    assert second.usage and first.usage and second.usage.input_tokens > first.usage.input_tokens
