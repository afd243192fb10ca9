"""Anthropic's requests as the chats that they are; what is refused has Anthropic's names for the fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.errors import Failure, InvalidValue, MissingField, UnsupportedContent, UnsupportedValue
from protocol.jobs import Chat, ChatMessage
from service.messages.request import read_count, read_messages

HI = [{"role": "user", "content": "Hi"}]
USE = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Graz"}}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object", "properties": {}}}
CALL = {"function": {"name": "weather", "arguments": '{"city":"Graz"}'}, "id": "call_1", "type": "function"}


def job(messages: Any = HI, **fields: Any) -> Chat:
    request, _ = read_messages({"max_tokens": 16, "messages": messages, **fields})
    return request.job("me", trace=False)


def said(*messages: Any, **fields: Any) -> list[tuple[str, str]]:
    return [(each.role, each.content) for each in job(list(messages), **fields).messages]


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}


def result(content: Any = "rain", id: str = "call_1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def test_the_system_prompt_comes_first_as_text_or_as_blocks() -> None:
    assert said(*HI, system="Be brief.") == [("system", "Be brief."), ("user", "Hi")]
    assert said(*HI, system=[text("Be brief."), text("Be kind.")])[0] == ("system", "Be brief.\nBe kind.")
    assert said(*HI, system="") == said(*HI, system=None) == said(*HI, system=[]) == [("user", "Hi")]


def test_turns_of_one_role_are_one_turn() -> None:
    assert said(user(text("a"), text("b")), *HI) == [("user", "a\nb\nHi")]
    found = said(*HI, assistant(text("On"), text("e")), {"role": "assistant", "content": "."}, *HI)
    assert found == [("user", "Hi"), ("assistant", "One."), ("user", "Hi")]


def test_uses_and_results_of_tools_are_calls_and_answers() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    (_, asked, answered, more) = job(
        [*HI, assistant(thought, text("Let me see."), USE), user(result(), text("And?"))]
    ).messages
    assert asked == ChatMessage(role="assistant", content="Let me see.", tool_calls=(CALL,), reasoning_content="Hm.")
    assert answered == ChatMessage(role="tool", content="rain", tool_call_id="call_1")
    assert (more.role, more.content) == ("user", "And?")


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (result([text("rain"), text("wind")]), "rain\nwind"),
        (result(None), ""),
        ({"type": "tool_result", "tool_use_id": "call_1"}, ""),
        (result("no such city", is_error=True), "Error: no such city"),
        (result("fine", is_error=False), "fine"),
    ],
)
def test_a_result_is_text(block: Any, content: str) -> None:
    assert said(*HI, assistant(USE), user(block))[-1] == ("tool", content)


@pytest.mark.parametrize(
    ("given", "choice", "names", "parallel"),
    [
        (None, "auto", (), True),
        ({"type": "auto"}, "auto", (), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", (), False),
        ({"type": "any"}, "required", (), True),
        ({"type": "none"}, "none", (), True),
        ({"type": "tool", "name": "weather"}, "required", ("weather",), False),
    ],
)
def test_tools_and_choices_are_the_chat_s(given: Any, choice: str, names: Any, parallel: bool) -> None:
    tools = job(tools=[TOOL, {**TOOL, "name": "time", "type": "custom"}], tool_choice=given).tools
    assert [tool.name for tool in tools.offered] == ["weather", "time"]
    assert tools.offered[0].description == "The weather."
    assert (tools.choice, tools.names, tools.parallel) == (choice, names, parallel)


def test_a_tool_s_name_may_be_as_long_as_anthropic_s() -> None:
    name = "mcp__" + "x" * 123
    chosen = {"type": "tool", "name": name}
    body = {"max_tokens": 9, "messages": HI, "tools": [{**TOOL, "name": name}], "tool_choice": chosen}
    assert read_messages(body)[0].job("", trace=False).tools.allowed[0].name == name


def test_sampling_and_limits_reach_the_worker() -> None:
    generation = job(
        temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["a", "b", "c", "d", "e"], session_id="s"
    ).generation
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (generation.max_tokens, generation.stop, generation.pin) == (16, ("a", "b", "c", "d", "e"), "s")
    assert (generation.client, generation.n) == ("me", 1)


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"output_config": {"effort": "low"}}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"chat_template_kwargs": {"a": 1}}, {"a": 1}),
    ],
)
def test_thinking_is_the_template_s_affair(fields: Any, kwargs: Any) -> None:
    assert job(**fields).template_kwargs == kwargs


def test_an_output_format_is_the_answer_s_shape() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    shape = job(output_config={"format": {"type": "json_schema", "schema": schema}}).generation.shape
    assert shape is not None
    assert (shape.kind, msgspec.json.decode(shape.text)) == ("json", schema)
    assert job(output_config={}).generation.shape is None


@pytest.mark.parametrize(
    ("body", "failure", "param"),
    [
        ({"messages": HI}, MissingField, "max_tokens"),
        ({"max_tokens": 0, "messages": HI}, InvalidValue, "max_tokens"),
        ({"max_tokens": 9}, MissingField, "messages"),
        ({"max_tokens": 9, "messages": []}, InvalidValue, "messages"),
        ({"temperature": 1.1}, InvalidValue, "temperature"),
        ({"messages": [{"role": "tool", "content": "x"}]}, InvalidValue, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, MissingField, "messages[0].content"),
        ({"messages": [user({"type": "text"})]}, MissingField, "messages[0].content[0].text"),
        ({"messages": [user({"type": "image", "source": {}})]}, UnsupportedContent, "messages[0].content[0]"),
        ({"messages": [user({"type": "poem"})]}, InvalidValue, "messages[0].content[0].type"),
        ({"messages": [user(USE)]}, InvalidValue, "messages[0].content[0]"),
        ({"messages": [user(result())]}, InvalidValue, "messages[0].content[0].tool_use_id"),
        (
            {"messages": [*HI, assistant(USE), user(result([{"type": "image"}]))]},
            UnsupportedContent,
            "messages[2].content[0].content[0]",
        ),
        ({"messages": [*HI, assistant({**USE, "input": None})]}, MissingField, "messages[1].content[0].input"),
        ({"messages": [*HI, assistant(text("{"))]}, UnsupportedValue, "messages"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, UnsupportedValue, "tools[0].type"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, InvalidValue, "tools[0].name"),
        ({"tools": [{"name": "a" * 129, "input_schema": {}}]}, InvalidValue, "tools[0].name"),
        ({"tools": [{"name": "a"}]}, MissingField, "tools[0].input_schema"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, InvalidValue, "tools[0].input_schema.type"),
        ({"tools": [TOOL, TOOL]}, InvalidValue, "tools[1].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, MissingField, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, InvalidValue, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, InvalidValue, "tool_choice"),
        ({"thinking": {"type": "perhaps"}}, InvalidValue, "thinking.type"),
        ({"adapter": 1}, InvalidValue, "adapter"),
    ],
)
def test_what_is_wrong_is_named_as_anthropic_names_it(body: Any, failure: type[Failure], param: str) -> None:
    whole = body if {"max_tokens", "messages"} & body.keys() else {"max_tokens": 9, "messages": HI, **body}
    if "messages" in body and body != {"messages": HI}:
        whole = {"max_tokens": 9, **body}
    with pytest.raises(failure) as raised:
        read_messages(whole)[0].job("", trace=False)
    assert type(raised.value) is failure
    assert raised.value.param == param
    assert ".function" not in raised.value.message


def test_fields_that_steer_a_hosted_service_have_no_effect_and_unknown_ones_are_named() -> None:
    given = {
        "max_tokens": 9,
        "messages": HI,
        "metadata": {"user_id": "x"},
        "cache_control": {"type": "ephemeral"},
        "mood": "good",
    }
    assert read_messages(given)[1] == ["mood"]
    assert read_count({**given, "stream": True, "stop_sequences": []})[1] == ["mood"]


def test_a_count_needs_no_limit_and_asks_about_the_same_prompt() -> None:
    body = {"messages": HI, "system": "Be brief.", "tools": [TOOL]}
    counted = read_count(body)[0].job("me", trace=False)
    asked = job(**body)
    assert (counted.messages, counted.tools, counted.template_kwargs) == (
        asked.messages,
        asked.tools,
        asked.template_kwargs,
    )
