"""The tools of a chat as OpenAI writes them, and what the worker is told of them.

Knows the rules between tools and choices; knows no template and no schema's meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from protocol.errors import InvalidValue, MissingField
from protocol.tools import Tool, Tools
from service import forms

T = TypeVar("T")

MOST_TOOLS = 128
"""OpenAI's limit."""
MAX_SCHEMA_BYTES = 64 << 10
"""Of one function's parameters, as JSON."""

Name = Annotated[
    str,
    Meta(pattern="^[A-Za-z0-9_-]{1,64}\\Z", description="a name of 1 to 64 letters, digits, underscores and dashes"),
]


class GivenFunction(msgspec.Struct, frozen=True):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class GivenTool(msgspec.Struct, frozen=True):
    type: Literal["function"]
    function: GivenFunction


class NamedFunction(msgspec.Struct, frozen=True):
    name: str


class Named(msgspec.Struct, frozen=True):
    """One entry of a choice's list."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: Annotated[tuple[Named, ...], Meta(min_length=1)]


class Chosen(msgspec.Struct, frozen=True):
    """A choice that names functions."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


GivenTools = Annotated[tuple[GivenTool, ...], Meta(max_length=MOST_TOOLS)]
Choice = Annotated[
    Literal["none", "auto", "required"] | Chosen,
    Meta(description="one of none, auto, required, or an object that names one function or allowed_tools"),
]


def chosen(given: tuple[GivenTool, ...], choice: Choice, *, parallel: bool) -> Tools:
    """As the job has them. Raises MissingField or InvalidValue, naming the place."""
    if not given:
        if choice == "required" or isinstance(choice, Chosen):
            raise InvalidValue("tool_choice can only demand a tool when tools are given", param="tool_choice")
        return Tools()
    offered = tuple(_tool(tool.function, f"tools[{index}].function") for index, tool in enumerate(given))
    seen: set[str] = set()
    for index, tool in enumerate(offered):
        if tool.name in seen:
            place = f"tools[{index}].function.name"
            raise InvalidValue(f"{place}: {tool.name} is there twice", param=place)
        seen.add(tool.name)
    if not isinstance(choice, Chosen):
        return Tools(offered=offered, choice=choice, parallel=parallel)
    if choice.type == "function":
        name = _member(choice.function, "function").name
        # A function that is demanded by name is called once.
        found = Tools(offered=offered, choice="required", names=(name,), parallel=False)
    else:
        allowed = _member(choice.allowed_tools, "allowed_tools")
        names = tuple(dict.fromkeys(each.function.name for each in allowed.tools))
        found = Tools(offered=offered, choice=allowed.mode, names=names, parallel=parallel)
    for name in found.names:
        if name not in seen:
            raise InvalidValue(
                f"tool_choice names {name[: forms.SHOWN]!r}, which is none of tools", param="tool_choice"
            )
    return found


def _member(value: T | None, name: str) -> T:
    if value is None:
        raise MissingField(f"tool_choice.{name} is missing", param=f"tool_choice.{name}")
    return value


def _tool(function: GivenFunction, place: str) -> Tool:
    parameters = function.parameters or {}
    place = f"{place}.parameters"
    if parameters.get("type", "object") != "object":
        raise forms.wrong(f"{place}.type", parameters["type"], "object: arguments are named")
    if not isinstance(parameters.get("properties", {}), dict):
        raise forms.wrong(f"{place}.properties", parameters["properties"], "an object")
    size = len(msgspec.json.encode(parameters))
    if size > MAX_SCHEMA_BYTES:
        raise InvalidValue(f"{place} must be at most {MAX_SCHEMA_BYTES} bytes of JSON, not {size}", param=place)
    return Tool(
        name=function.name,
        description=function.description,
        parameters={"type": "object", "properties": {}} | parameters,
        strict=bool(function.strict),
    )
