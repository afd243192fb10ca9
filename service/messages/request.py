"""The typed requests of /v1/messages: their fields, limits and defaults; and the chat that each of them is.

Knows what a client may ask; knows neither how it was sent nor who does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.errors import MissingField, UnsupportedValue
from protocol.jobs import Chat, Sampling
from service import forms
from service.chat.request import ChatRequest, Pin, decoded, job_of, same
from service.chat.shapes import JsonSchema, ResponseFormat
from service.chat.tools import MOST_TOOLS, Choice, Chosen, GivenFunction, GivenTool, NamedFunction
from service.messages.blocks import Texts, Turn, conversation


class CacheControl(msgspec.Struct, frozen=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Unheeded(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that only steer a hosted service. The prompt cache needs no marks: it finds the longest beginning."""

    cache_control: CacheControl | None = None
    container: str | dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    diagnostics: Any = None
    inference_geo: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class Uncounted(Unheeded, frozen=True, kw_only=True):
    """And those of a message that make its prompt no longer: so the same body may be counted."""

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop_sequences: tuple[str, ...] = ()
    stream: bool = False


ToolName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_-]{1,128}\Z",
        description="a name of 1 to 128 letters, digits, underscores and dashes",
    ),
]
"""Anthropic's names may be longer than OpenAI's."""


class ToolGiven(msgspec.Struct, frozen=True):
    """A tool of the client. Those that Anthropic runs have a type of their own and are refused by it."""

    name: ToolName
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: Any = None
    input_examples: Any = None
    allowed_callers: Any = None
    defer_loading: Any = None
    eager_input_streaming: Any = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Without effect: a model ends its reasoning by itself."""
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Sampling, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens; and what both routes have. What Sampling has goes beyond Anthropic's fields."""

    model: str = ""
    messages: Annotated[tuple[Turn, ...], Meta(min_length=1)]
    system: Texts = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    tools: Annotated[tuple[ToolGiven, ...], Meta(max_length=MOST_TOOLS)] = ()
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    adapter: str = ""
    session_id: Pin = ""
    prompt_cache_key: Pin = ""

    @property
    def chat(self) -> ChatRequest:
        """The same, asked as a chat. Raises what is wrong with a message or a tool."""
        config = self.output_config or OutputConfig()
        thinks = {"enable_thinking": self.thinking.type != "disabled"} if self.thinking else {}
        return ChatRequest(
            **same(self),
            messages=conversation(self.system, self.messages),
            tools=tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(self.tools)),
            tool_choice=_choice(self.tool_choice),
            parallel_tool_calls=not (self.tool_choice and self.tool_choice.disable_parallel_tool_use),
            reasoning_effort=config.effort,
            response_format=_format(config.format),
            chat_template_kwargs=thinks | (self.chat_template_kwargs or {}),
        )

    def job(self, client: str, *, trace: bool) -> Chat:
        """Raises what is wrong with a message or a tool, or cannot be had."""
        return job_of(self.chat, NAMES, client, trace=trace)


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Meta(ge=1)]
    """Cut to the context."""
    stop_sequences: tuple[str, ...] = ()
    stream: bool = False

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"

    def job(self, client: str, *, trace: bool) -> Chat:
        """As CountRequest's."""
        asked = msgspec.structs.replace(self.chat, max_tokens=self.max_tokens, stop=self.stop_sequences)
        return job_of(asked, NAMES, client, trace=trace)


def read_messages(members: Mapping[str, Any]) -> tuple[MessagesRequest, list[str]]:
    """The checked request, and the names of unknown fields. Raises what `job` does not: what is wrong by itself."""
    return decoded(MessagesRequest, members, Unheeded)


def read_count(members: Mapping[str, Any]) -> tuple[CountRequest, list[str]]:
    """As `read_messages`."""
    return decoded(CountRequest, members, Uncounted)


NAMES = (
    (".function.parameters", ".input_schema"),
    (".function", ""),
    ("response_format.json_schema", "output_config.format"),
    ("response_format", "output_config.format"),
)
"""A chat's names for fields, and Anthropic's."""


def _tool(tool: ToolGiven, place: str) -> GivenTool:
    if tool.type not in (None, "custom"):
        raise UnsupportedValue(
            f"{place}.type: {tool.type[: forms.SHOWN]} tools run at Anthropic and are not supported; custom tools are",
            param=f"{place}.type",
        )
    if tool.input_schema is None:
        raise MissingField(f"{place}.input_schema is missing", param=f"{place}.input_schema")
    return GivenTool("function", GivenFunction(tool.name, tool.description, tool.input_schema, tool.strict))


def _choice(choice: ToolChoice | None) -> Choice:
    match choice:
        case None | ToolChoice(type="auto"):
            return "auto"
        case ToolChoice(type="none"):
            return "none"
        case ToolChoice(type="any"):
            return "required"
        case ToolChoice(name=str(name)):
            return Chosen("function", NamedFunction(name))
    raise MissingField("tool_choice.name is missing", param="tool_choice.name")


def _format(given: OutputFormat | None) -> ResponseFormat | None:
    return ResponseFormat("json_schema", JsonSchema(name="answer", schema=given.schema)) if given else None
