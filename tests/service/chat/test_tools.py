"""The tools of a chat: what may be asked, which place an error names, and what the worker is told."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import Failure
from protocol.tools import Tool, Tools
from service.chat.request import read_chat
from service.chat.tools import MAX_SCHEMA_BYTES
from tests.conversing import HI

EMPTY = {"type": "object", "properties": {}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def tools(*given: dict[str, Any], **fields: Any) -> Tools:
    request, ignored = read_chat({"messages": HI, "tools": list(given), **fields})
    assert ignored == []
    return request.job("me", trace=False).tools


def wrong(**fields: Any) -> tuple[str, str | None]:
    with pytest.raises(Failure) as caught:
        read_chat({"messages": HI, **fields})[0].job("me", trace=False)
    return caught.value.kind.value, caught.value.param


def test_a_tool_arrives_with_all_that_is_said_of_it() -> None:
    assert tools(function(description="Tells it", parameters=CITY, strict=True)) == Tools(
        offered=(Tool(name="weather", description="Tells it", parameters=CITY, strict=True),)
    )


@pytest.mark.parametrize("fields", [{}, {"description": None, "parameters": None, "strict": None}, {"parameters": {}}])
def test_a_tool_needs_no_more_than_a_name(fields: dict[str, Any]) -> None:
    assert tools(function(**fields)).offered == (Tool(name="weather", parameters=EMPTY),)


def test_templates_are_shown_openai_s_form() -> None:
    (tool,) = tools(function(description="Tells it", parameters=CITY, strict=True)).offered
    assert tool.shown == function(description="Tells it", parameters=CITY)
    assert list(tool.shown["function"]) == ["name", "description", "parameters"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", (), True)),
        ("auto", ("auto", (), True)),
        ("none", ("none", (), True)),
        ("required", ("required", (), True)),
        ({"type": "function", "function": {"name": "b"}}, ("required", ("b",), False)),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [function("b"), function("c"), function("b")]},
            },
            ("auto", ("b", "c"), True),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("a")]}},
            ("required", ("a",), True),
        ),
    ],
)
def test_a_choice_says_what_may_be_called_and_what_must(choice: Any, expected: Any) -> None:
    found = tools(function("a"), function("b"), function("c"), tool_choice=choice)
    assert (found.choice, found.names, found.parallel) == expected
    assert [tool.name for tool in found.offered] == ["a", "b", "c"]
    allowed = [] if choice == "none" else list(found.names) or ["a", "b", "c"]
    assert [tool.name for tool in found.allowed] == allowed


def test_calls_may_be_kept_to_one() -> None:
    assert not tools(function(), parallel_tool_calls=False).parallel


def test_no_tools_are_no_tools() -> None:
    assert tools() == tools(tool_choice="none") == tools(tool_choice="auto", parallel_tool_calls=False) == Tools()


NAMED = {"type": "function", "function": {"name": "other"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**function(), "type": "custom"}]}, "tools[0].type"),
        ({"tools": [function("")]}, "tools[0].function.name"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("x" * 65)]}, "tools[0].function.name"),
        ({"tools": [function("wéather")]}, "tools[0].function.name"),
        ({"tools": [function("a\n")]}, "tools[0].function.name"),
        ({"tools": [function("a"), function("b"), function("a")]}, "tools[2].function.name"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function(parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
        ({"tools": [function(parameters={"properties": []})]}, "tools[0].function.parameters.properties"),
        ({"tools": [function(strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [function(description=1)]}, "tools[0].function.description"),
        (
            {"tools": [function(parameters={"description": "x" * MAX_SCHEMA_BYTES})]},
            "tools[0].function.parameters",
        ),
        ({"tools": [function(f"f{index}") for index in range(129)]}, "tools"),
        ({"tools": [function()], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [function()], "tool_choice": {"type": "tool"}}, "tool_choice.type"),
        ({"tools": [function()], "tool_choice": 1}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        (
            {
                "tools": [function()],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "must", "tools": [NAMED]}},
            },
            "tool_choice.allowed_tools.mode",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_place(fields: dict[str, Any], param: str) -> None:
    assert wrong(**fields) == ("invalid_value", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "a"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [function()], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [function()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ],
)
def test_what_is_missing_is_named_by_its_place(fields: dict[str, Any], param: str) -> None:
    assert wrong(**fields) == ("missing_field", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"functions": [{"name": "f"}]}, "functions"), ({"function_call": {"name": "f"}}, "function_call")],
)
def test_the_old_form_of_tools_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert wrong(**fields) == ("unsupported_value", param)
