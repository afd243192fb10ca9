"""Requests of the Responses API as the chats that they are; what is refused has that API's names for the fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.errors import Failure, InvalidValue, MissingField, UnsupportedContent, UnsupportedValue
from protocol.jobs import Chat, ChatMessage
from service.responses.items import Item, listed
from service.responses.request import read

TOOL = {"type": "function", "name": "weather", "description": "The weather.", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
HI = {"role": "user", "content": "Hi"}


def job(given: Any = "Hi", before: tuple[Item, ...] = (), **fields: Any) -> Chat:
    request, _ = read({"input": given, **fields})
    return request.job("me", before, request.items, trace=False)


def said(*items: Any, **fields: Any) -> list[tuple[str, str]]:
    return [(each.role, each.content) for each in job(list(items), **fields).messages]


def message(role: str, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(parts), **fields}


def test_an_input_is_a_text_or_items_under_the_instructions() -> None:
    assert job("Hi").messages == (ChatMessage(role="user", content="Hi"),)
    part = {"type": "input_text", "text": "Hi"}
    assert said(HI, message("user", part, part), instructions="Be brief.") == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("user", "HiHi"),
    ]
    assert said({"role": "developer", "content": "Be kind."}, HI)[0] == ("system", "Be kind.")


def test_what_the_assistant_thought_said_and_called_is_one_message() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    text = {"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}
    spoken = message("assistant", text, id="msg_1", status="completed")
    (_, asked, answered) = job([HI, thought, spoken, CALL, OUTPUT]).messages
    call = {"function": {"name": "weather", "arguments": "{}"}, "id": "call_1", "type": "function"}
    assert asked == ChatMessage(role="assistant", content="Let me see.", tool_calls=(call,), reasoning_content="Hm.")
    assert answered == ChatMessage(role="tool", content="rain", tool_call_id="call_1")


def test_earlier_turns_come_before_and_their_instructions_do_not() -> None:
    before = (Item(role="user", content="Hi"), Item(role="assistant", content="Hello."))
    found = [(each.role, each.content) for each in job("And?", before, instructions="Be brief.").messages]
    assert found == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."), ("user", "And?")]


@pytest.mark.parametrize(
    ("given", "choice", "names", "parallel"),
    [
        (None, "auto", (), True),
        ("required", "required", (), True),
        ("none", "none", (), True),
        ({"type": "function", "name": "weather"}, "required", ("weather",), False),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            "required",
            ("weather",),
            True,
        ),
    ],
)
def test_tools_and_choices_are_the_chat_s(given: Any, choice: str, names: Any, parallel: bool) -> None:
    tools = job(tools=[TOOL, {**TOOL, "name": "time", "strict": True}], tool_choice=given).tools
    assert [(tool.name, tool.strict) for tool in tools.offered] == [("weather", False), ("time", True)]
    assert (tools.choice, tools.names, tools.parallel) == (choice, names, parallel)


def test_limits_effort_and_log_probabilities_reach_the_worker() -> None:
    asked = job(max_output_tokens=5, temperature=0, reasoning={"effort": "low"}, top_logprobs=3, prompt_cache_key="k")
    assert (asked.generation.max_tokens, asked.generation.sampling.temperature) == (5, 0)
    assert (asked.generation.logprobs, asked.generation.pin) == (3, "k")
    assert asked.template_kwargs == {"enable_thinking": True, "reasoning_effort": "low"}
    assert job(include=["message.output_text.logprobs"]).generation.logprobs == 0
    assert job().generation.logprobs is None


def test_the_text_s_format_is_the_answer_s_shape() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {"type": "json_schema", "name": "a", "schema": schema, "strict": True}
    shape = job(text={"format": asked}).generation.shape
    assert shape is not None
    assert (shape.kind, msgspec.json.decode(shape.text)) == ("json", schema)
    assert job(text={"format": {"type": "json_object"}}).generation.shape is not None
    assert job(text={"format": {"type": "text"}, "verbosity": "low"}).generation.shape is None


@pytest.mark.parametrize(
    ("fields", "failure", "param"),
    [
        ({"input": None}, MissingField, "input"),
        ({"input": []}, MissingField, "input"),
        ({"input": 3}, InvalidValue, "input"),
        ({"input": [{"role": "user"}]}, MissingField, "input[0].content"),
        ({"input": [{"type": "message", "content": "x"}]}, MissingField, "input[0].role"),
        ({"input": [{"role": "tool", "content": "x"}]}, InvalidValue, "input[0].role"),
        ({"input": [message("user", {"type": "input_image"})]}, UnsupportedContent, "input[0].content[0]"),
        ({"input": [message("user", {"type": "poem"})]}, InvalidValue, "input[0].content[0].type"),
        ({"input": [message("user", {"type": "input_text"})]}, MissingField, "input[0].content[0].text"),
        ({"input": [HI, OUTPUT]}, InvalidValue, "input[1].call_id"),
        ({"input": [{**CALL, "arguments": None}]}, MissingField, "input[0].arguments"),
        ({"input": [CALL, {**OUTPUT, "output": None}]}, MissingField, "input[1].output"),
        ({"input": [{"type": "web_search_call"}]}, UnsupportedValue, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, UnsupportedValue, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, MissingField, "tools[0].name"),
        ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, InvalidValue, "tools[0].parameters.type"),
        ({"tools": [TOOL, TOOL]}, InvalidValue, "tools[1].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, InvalidValue, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, MissingField, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, MissingField, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, UnsupportedValue, "tool_choice.type"),
        ({"tool_choice": "required"}, InvalidValue, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, MissingField, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, MissingField, "text.format.schema"),
        ({"text": {"format": {"type": "yaml"}}}, InvalidValue, "text.format.type"),
        ({"max_output_tokens": 0}, InvalidValue, "max_output_tokens"),
        ({"top_logprobs": 21}, InvalidValue, "top_logprobs"),
        ({"background": True}, UnsupportedValue, "background"),
        ({"conversation": "conv_1"}, UnsupportedValue, "conversation"),
        ({"prompt": {"id": "p"}}, UnsupportedValue, "prompt"),
        ({"truncation": "auto"}, UnsupportedValue, "truncation"),
        ({"metadata": {str(number): "" for number in range(17)}}, InvalidValue, "metadata"),
        ({"metadata": {"a": 1}}, InvalidValue, "metadata"),
        ({"metadata": {"a": "x" * 513}}, InvalidValue, "metadata"),
        ({"metadata": {"x" * 65: "a"}}, InvalidValue, "metadata"),
        ({"include": ["everything"]}, InvalidValue, "include[0]"),
        ({"adapter": 1}, InvalidValue, "adapter"),
    ],
)
def test_what_is_wrong_is_named_as_this_api_names_it(fields: Any, failure: type[Failure], param: str) -> None:
    with pytest.raises(failure) as raised:
        request, _ = read({"input": "Hi", **fields})
        request.job("", (), request.items, trace=False)
    assert type(raised.value) is failure
    assert raised.value.param == param
    assert ".function" not in raised.value.message


def test_what_is_wrong_within_metadata_is_said() -> None:
    with pytest.raises(InvalidValue, match="names are each a string of at most 64 characters and whose members are"):
        read({"input": "Hi", "metadata": {"a": 1}})


def test_fields_that_steer_a_hosted_service_have_no_effect_and_unknown_ones_are_named() -> None:
    given = {"input": "Hi", "user": "x", "service_tier": "flex", "stream_options": {"include_obfuscation": False}}
    assert read({**given, "mood": "good"})[1] == ["mood"]


def test_items_are_listed_complete_and_keep_their_own_ids() -> None:
    (text,) = listed("Hi")
    assert text.pop("id").startswith("msg_")
    assert text == {
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hi"}],
    }
    one, two, three = listed([{"role": "assistant", "content": "Hello."}, CALL, OUTPUT])
    assert one["content"] == [{"type": "output_text", "text": "Hello.", "annotations": []}]
    assert (two["id"], three["id"][:4]) == ("fc_1", "fco_")
