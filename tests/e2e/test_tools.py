"""OpenAI's own client and tools, against a real service with the starter: calls demanded, named, streamed, answered.

Its template knows no tools, so that all of it is ours (LLM-02, LLM-05). So small a model calls nothing by itself: calls
of a model that is left to itself are in tests/workers/llm/test_tool_calling.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from tests.e2e.server import Server

pytestmark = [pytest.mark.model, pytest.mark.port]

MODEL = "smollm2-135m-instruct"


def function(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function("get_weather", "The weather in a city", city={"type": "string", "maxLength": 20})
CLOCK = function("get_time", "The time in a zone", zone={"enum": ["UTC", "CET"]})
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "get_time"}}
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
GREETED: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(talker: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{talker.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def chat(client: openai.OpenAI, messages: list[Any] = ASKED, **fields: Any) -> Any:
    fields = {"tools": TOOLS, "max_tokens": 60, **fields}
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **fields)


def only(answer: Any) -> Any:
    (choice,) = answer.choices
    return choice


def called(choice: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]


def test_a_demanded_call_is_made(client: openai.OpenAI) -> None:
    answer = chat(client, tool_choice="required", parallel_tool_calls=False)
    choice = only(answer)
    ((name, arguments),) = called(choice)
    assert name in ("get_weather", "get_time")
    assert list(arguments) == (["city"] if name == "get_weather" else ["zone"])
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    (call,) = choice.message.tool_calls
    assert (call.type, call.id[:5]) == ("function", "call_")
    assert answer.model_extra["starling"]["forced_tokens"] > 5
    assert answer.model_extra["starling"]["grammar"] == "enforced"


def test_a_function_may_be_demanded_by_name(client: openai.OpenAI) -> None:
    choice = only(chat(client, tool_choice=NAMED))
    ((name, arguments),) = called(choice)
    assert name == "get_time"
    assert arguments["zone"] in ("UTC", "CET")
    assert choice.finish_reason == "tool_calls"


def test_only_those_that_are_allowed_are_called(client: openai.OpenAI) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    assert {name for name, _ in called(only(chat(client, tool_choice=choice, max_tokens=150)))} == {"get_time"}


def test_a_stream_tells_the_same_calls_name_first(client: openai.OpenAI) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False}
    whole = called(only(chat(client, **fields)))
    chunks = [chunk.choices[0] for chunk in chat(client, stream=True, **fields)]
    parts = [part for chunk in chunks for part in chunk.delta.tool_calls or []]
    first, *rest = parts
    assert first.id.startswith("call_")
    assert (first.index, first.type, first.function.name, first.function.arguments) == (0, "function", whole[0][0], "")
    assert all((part.index, part.id, part.type, part.function.name) == (0, None, None, None) for part in rest)
    assert json.loads("".join(part.function.arguments for part in rest)) == whole[0][1]
    assert len(rest) > 1
    assert not any(chunk.delta.content for chunk in chunks)
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]


def test_the_client_s_stream_helper_understands_it(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, tools=TOOLS, tool_choice=NAMED, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        ((name, arguments),) = called(stream.get_final_completion().choices[0])
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert (name, list(arguments)) == ("get_time", ["zone"])


class Booking(pydantic.BaseModel):
    """Books a table."""

    guests: int
    smoking: bool
    table: str = pydantic.Field(max_length=8)


def test_arguments_come_as_the_client_s_own_classes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "A table for four, please."}],
        tools=[openai.pydantic_function_tool(Booking)],
        tool_choice={"type": "function", "function": {"name": "Booking"}},
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Booking)


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_may_say_something_instead(client: openai.OpenAI, stream: bool) -> None:
    answer = chat(client, GREETED, max_tokens=12, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        text = "".join(chunk.delta.content or "" for chunk in chunks)
        assert chunks[-1].finish_reason in ("stop", "length")
        assert not any(chunk.delta.tool_calls for chunk in chunks)
    else:
        text = only(answer).message.content
        assert only(answer).message.tool_calls is None
    assert text and "tool_call" not in text


def test_tools_that_must_not_be_called_are_not_shown(client: openai.OpenAI) -> None:
    hidden = chat(client, GREETED, tool_choice="none")
    assert hidden.usage.prompt_tokens == chat(client, GREETED, tools=openai.omit).usage.prompt_tokens
    assert only(hidden).message.content == "The capital of France is Paris."


def test_the_next_turn_finds_all_of_a_call_in_the_cache(client: openai.OpenAI) -> None:
    first = chat(client, tool_choice="required", parallel_tool_calls=False)
    message = only(first).message
    answered = [*ASKED, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    second = chat(client, answered, max_tokens=5)
    # All but the closing markup, which was forced at the end and never went through the network.
    said = first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= said - 10
    for content in ("", [{"type": "text", "text": ""}], openai.omit):
        back = {"role": "assistant", "content": content, "tool_calls": message.model_dump()["tool_calls"]}
        same = [*ASKED, {key: value for key, value in back.items() if value is not openai.omit}, answered[-1]]
        assert chat(client, same, max_tokens=5).usage.prompt_tokens == second.usage.prompt_tokens


def test_an_answer_that_is_cut_off_within_a_call_says_so(client: openai.OpenAI) -> None:
    choice = only(chat(client, tool_choice=NAMED, max_tokens=8))
    assert choice.finish_reason == "length"
    assert not choice.message.content


def test_each_of_several_choices_calls(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=2, seed=1
    )
    assert [len(called(choice)) for choice in answer.choices] == [1, 1]
    assert len({choice.message.tool_calls[0].id for choice in answer.choices}) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parameters", "strict"),
    [
        ({"type": "object", "properties": {"a": {"type": "notatype"}}}, False),
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, True),
    ],
)
def test_what_cannot_be_enforced_is_refused_before_anything_runs(
    client: openai.OpenAI, parameters: Any, strict: bool, stream: bool
) -> None:
    tool = {"type": "function", "function": {"name": "odd", "parameters": parameters, "strict": strict}}
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, tools=[tool], stream=stream)
    assert (refused.value.code, refused.value.param) == ("unsupported_schema", "tools")


def test_an_answer_to_a_call_that_nobody_made_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, [*ASKED, {"role": "tool", "tool_call_id": "call_x", "content": "sunny"}])
    assert refused.value.param == "messages[1].tool_call_id"
