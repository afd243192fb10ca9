"""The typed request of /v1/responses: its fields, limits and defaults; and the chat that it is.

Knows what a client may ask; knows neither how it was sent nor who does the work. What the store has is given to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.errors import InvalidValue, MissingField, UnsupportedValue
from protocol.jobs import Chat, Sampling
from service import forms
from service.chat.request import MOST_METADATA, ChatRequest, Pin, decoded, job_of, same
from service.chat.shapes import JsonSchema, ResponseFormat, SchemaName
from service.chat.tools import (
    MOST_TOOLS,
    AllowedTools,
    Choice,
    Chosen,
    GivenFunction,
    GivenTool,
    Name,
    Named,
    NamedFunction,
)
from service.responses.items import Input, Item, conversation


class StreamOptions(msgspec.Struct, frozen=True):
    include_obfuscation: bool | None = None


class Unheeded(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that only steer a hosted service, or the tools that run there."""

    access_programs: Any = None
    background_options: Any = None
    context_management: Any = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    moderation: Any = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None


NOT_HERE = {
    "background": "an answer is only made while its client waits for it",
    "conversation": "use previous_response_id",
    "prompt": "prompt templates are kept at OpenAI; send instructions and input",
}
"""Fields that are refused, and why."""

MetadataName = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]

Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""Of these only the first has an effect: nothing here makes the others."""


class ToolGiven(msgspec.Struct, frozen=True):
    """A function. Tools that OpenAI runs are refused by their type."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Allowed(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None


class ChoiceGiven(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: tuple[Allowed, ...] = ()


class Format(msgspec.Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"]
    name: SchemaName | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Without effect."""


class Reasoning(msgspec.Struct, frozen=True):
    """`summary`: what was thought is told as it is, never summed up."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Any = None


class ResponsesRequest(Sampling, frozen=True, kw_only=True):
    """POST /v1/responses, and /v1/responses/input_tokens. What Sampling has goes beyond OpenAI's fields."""

    model: str = ""
    input: Input = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    stream: bool = False
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: Annotated[tuple[ToolGiven, ...], Meta(max_length=MOST_TOOLS)] = ()
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ChoiceGiven,
        Meta(description="one of none, auto, required, or an object that names a function or allowed_tools"),
    ] = "auto"
    parallel_tool_calls: bool = True
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: tuple[Included, ...] = ()
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: dict[MetadataName, MetadataValue] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    background: bool = False
    conversation: Any = None
    prompt: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    adapter: str = ""
    session_id: Pin = ""
    prompt_cache_key: Pin = ""

    @property
    def items(self) -> tuple[Item, ...]:
        """Of the input."""
        if isinstance(self.input, str):
            return (Item(role="user", content=self.input),)
        return self.input or ()

    @property
    def logprobs(self) -> bool:
        return "message.output_text.logprobs" in self.include or bool(self.top_logprobs)

    def job(self, client: str, before: Iterable[Item], items: Iterable[Item], *, trace: bool) -> Chat:
        """before: of the earlier turns. items: of this one, references resolved.

        Raises what is wrong with an item or a tool, or cannot be had.
        """
        asked = ChatRequest(
            **same(self),
            messages=conversation(before, self.instructions, items),
            max_tokens=self.max_output_tokens,
            tools=tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(self.tools)),
            tool_choice=_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            response_format=_format(self.text.format if self.text else None),
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs if self.logprobs else None,
            chat_template_kwargs=self.chat_template_kwargs,
        )
        if not asked.messages:
            raise MissingField("input is missing: there is nothing to answer", param="input")
        return job_of(asked, NAMES, client, trace=trace)


def read(members: Mapping[str, Any]) -> tuple[ResponsesRequest, list[str]]:
    """The checked request, and the names of unknown fields.

    Raises MissingField or InvalidValue for what is wrong, then UnsupportedValue for what is right but cannot be had.
    """
    request, ignored = decoded(ResponsesRequest, members, Unheeded)
    if request.metadata and len(request.metadata) > MOST_METADATA:
        raise InvalidValue(f"metadata must have at most {MOST_METADATA} entries", param="metadata")
    for name, why in NOT_HERE.items():
        if getattr(request, name):
            raise UnsupportedValue(f"{name} is not supported: {why}", param=name)
    if request.truncation == "auto":
        raise UnsupportedValue(
            "truncation auto is not supported: what does not fit the context is refused", param="truncation"
        )
    return request, ignored


NAMES = (
    (".function", ""),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("messages", "input"),
)
"""A chat's names for fields, and those of the Responses API."""


def _tool(tool: ToolGiven, place: str) -> GivenTool:
    if tool.type != "function":
        raise UnsupportedValue(
            f"{place}.type: tools of type {tool.type[: forms.SHOWN]!r} are not supported; functions are",
            param=f"{place}.type",
        )
    if tool.name is None:
        raise MissingField(f"{place}.name is missing", param=f"{place}.name")
    return GivenTool("function", GivenFunction(tool.name, tool.description, tool.parameters, tool.strict))


def _choice(choice: Literal["none", "auto", "required"] | ChoiceGiven) -> Choice:
    if isinstance(choice, str):
        return choice
    match choice:
        case ChoiceGiven(type="function", name=str(name)):
            return Chosen("function", NamedFunction(name))
        case ChoiceGiven(type="function"):
            raise MissingField("tool_choice.name is missing", param="tool_choice.name")
        case ChoiceGiven(type="allowed_tools", tools=(_, *_)):
            named = tuple(Named(NamedFunction(each.name or "")) for each in choice.tools)
            return Chosen("allowed_tools", allowed_tools=AllowedTools(choice.mode, named))
        case ChoiceGiven(type="allowed_tools"):
            raise MissingField("tool_choice.tools is missing", param="tool_choice.tools")
    raise UnsupportedValue(
        f"tool_choice.type: {choice.type[: forms.SHOWN]!r} is not supported; function and allowed_tools are",
        param="tool_choice.type",
    )


def _format(given: Format | None) -> ResponseFormat | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return ResponseFormat("json_object")
    if given.name is None:
        raise MissingField("text.format.name is missing", param="text.format.name")
    if given.schema is None:
        raise MissingField("text.format.schema is missing", param="text.format.schema")
    schema = JsonSchema(name=given.name, schema=given.schema, description=given.description, strict=given.strict)
    return ResponseFormat("json_schema", schema)
