"""The messages of a conversation as OpenAI writes them, and what the model's template is given of them.

Knows roles and forms of content; knows no sampling.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from protocol.errors import InvalidValue, MissingField, UnsupportedContent
from protocol.jobs import ChatMessage
from service import forms

TEXTS = ("text", "refusal")
"""Types of a part whose text is under the type's own name."""

MEDIA = ("image_url", "input_audio", "audio", "video_url", "file", "image")
"""Types of a part that no text model can read."""


class Part(msgspec.Struct, frozen=True):
    """One part of a content. What no text model can take is refused by its type, not by its members."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None


class Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class ToolCall(msgspec.Struct, frozen=True):
    function: Function
    id: str = ""
    type: Literal["function"] = "function"


Content = Annotated[str | tuple[Part, ...] | None, Meta(description="a string, null or a list of text parts")]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`refusal`, `annotations`, `audio` and `function_call` are in answers that clients send back as they came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | UnsetType = UNSET
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None


def told(messages: tuple[Message, ...]) -> tuple[ChatMessage, ...]:
    """As the job has them. Raises MissingField, InvalidValue or UnsupportedContent, naming the place."""
    called: set[str] = set()
    found = []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        found.append(_told(message, place))
        called.update(call.id for call in message.tool_calls or ())
        if message.role == "tool" and message.tool_call_id not in called:
            raise InvalidValue(
                f"{place}.tool_call_id: no assistant message before it has a tool call "
                f"{str(message.tool_call_id)[: forms.SHOWN]!r}",
                param=f"{place}.tool_call_id",
            )
    return tuple(found)


def _told(message: Message, place: str) -> ChatMessage:
    # The assistant may have said nothing but tool calls; whoever else speaks says something, be it null.
    if message.content is UNSET and message.role != "assistant":
        raise MissingField(f"{place}.content is missing", param=f"{place}.content")
    if message.role == "tool" and not message.tool_call_id:
        raise MissingField(f"{place}.tool_call_id is missing", param=f"{place}.tool_call_id")
    if message.tool_calls and message.role != "assistant":
        allowed = "absent: only the assistant calls tools"
        raise InvalidValue(f"{place}.tool_calls must be {allowed}", param=f"{place}.tool_calls")
    content = None if message.content is UNSET else message.content
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content=_text(content, f"{place}.content"),
        name=message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=tuple(msgspec.to_builtins(call) for call in message.tool_calls or ()),
        reasoning_content=message.reasoning_content,
    )


def _text(content: str | tuple[Part, ...] | UnsetType | None, place: str) -> str:
    if isinstance(content, tuple):
        return "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content))
    return content or ""


def _part(part: Part, place: str) -> str:
    if part.type in MEDIA:
        raise UnsupportedContent(
            f"{place} is of type {part.type}; this server's language models read text only", param=place
        )
    if part.type not in TEXTS:
        raise forms.wrong(f"{place}.type", part.type, "text")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise MissingField(f"{place}.{part.type} is missing", param=f"{place}.{part.type}")
    return text
