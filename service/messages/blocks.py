"""A conversation as Anthropic writes it, in blocks, and the same as messages of a chat.

Knows roles and blocks; knows no sampling. Turns of one role that follow on each other are one turn, as with Anthropic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.errors import InvalidValue, MissingField, UnsupportedContent, UnsupportedValue
from service import forms
from service.chat.messages import Function, Message, ToolCall

SEAM = "\n"
"""Between blocks of a system prompt, a user's turn or a tool's result. What the assistant said goes on as it was."""


class TextPart(msgspec.Struct, frozen=True):
    """One entry of a system prompt or a tool's result. What is no text is refused by its type."""

    type: str
    text: str | None = None
    source: Any = None
    cache_control: Any = None
    citations: Any = None


Texts = Annotated[str | tuple[TextPart, ...] | None, Meta(description="a string or a list of text blocks")]


class Block(msgspec.Struct, frozen=True):
    """One block of a turn: of its members those that belong to its type count."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Texts = None
    is_error: bool | None = None
    source: Any = None
    data: Any = None
    title: Any = None
    context: Any = None
    caller: Any = None
    cache_control: Any = None
    citations: Any = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: Annotated[str | tuple[Block, ...], Meta(description="a string or a list of blocks")]


def conversation(system: Texts, turns: tuple[Turn, ...]) -> tuple[Message, ...]:
    """As messages of a chat. Raises MissingField, InvalidValue, UnsupportedContent or UnsupportedValue by place."""
    found: list[Message] = []
    if system:
        found.append(Message(role="system", content=_texts(system, "system")))
    called: set[str] = set()
    for index, turn in enumerate(turns):
        for message in _messages(turn, f"messages[{index}]", called):
            before = found[-1] if found else None
            if before is not None and before.role == message.role in ("user", "assistant"):
                found[-1] = _joined(before, message)
            else:
                found.append(message)
    if turns[-1].role == "assistant":
        raise UnsupportedValue(
            "messages must end with a turn of the user: the beginning of an answer cannot be given", param="messages"
        )
    return tuple(found)


def _messages(turn: Turn, place: str, called: set[str]) -> Iterator[Message]:
    """called: ids of the tools' uses so far; those of the turn are added."""
    blocks = (Block("text", text=turn.content),) if isinstance(turn.content, str) else turn.content
    places = [f"{place}.content[{index}]" for index in range(len(blocks))]
    for block, where in zip(blocks, places, strict=True):
        _check(block, turn.role, where)
    if turn.role == "assistant":
        calls = tuple(_call(block) for block in blocks if block.type == "tool_use")
        called.update(call.id for call in calls)
        thoughts = [block.thinking or "" for block in blocks if block.type == "thinking"]
        text = "".join(block.text or "" for block in blocks if block.type == "text")
        yield Message(
            role=turn.role, content=text, tool_calls=calls or None, reasoning_content="".join(thoughts) or None
        )
        return
    texts: list[str] = []
    for block, where in zip(blocks, places, strict=True):
        if block.type == "text":
            texts.append(block.text or "")
            continue
        if texts:
            yield Message(role=turn.role, content=SEAM.join(texts))
            texts = []
        yield _result(block, where, called)
    if texts or not blocks:
        yield Message(role=turn.role, content=SEAM.join(texts))


_MEMBERS = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
"""What a block of each type must have."""
_MEDIA = ("image", "document", "search_result", "container_upload")
_SPEAKERS = {"thinking": "assistant", "redacted_thinking": "assistant", "tool_use": "assistant", "tool_result": "user"}


def _check(block: Block, role: str, place: str) -> None:
    if block.type in _MEDIA:
        raise _unreadable(block.type, place)
    if block.type not in _MEMBERS:
        raise forms.wrong(f"{place}.type", block.type, "one of text, thinking, tool_use, tool_result")
    if _SPEAKERS.get(block.type, role) != role:
        raise InvalidValue(f"{place}: {block.type} blocks cannot be in a turn of the {role}", param=place)
    for name in _MEMBERS[block.type]:
        if getattr(block, name) is None:
            raise MissingField(f"{place}.{name} is missing", param=f"{place}.{name}")


def _call(block: Block) -> ToolCall:
    arguments = msgspec.json.encode(block.input).decode()
    return ToolCall(Function(block.name or "", arguments), id=block.id or "")


def _result(block: Block, place: str, called: Collection[str]) -> Message:
    if (block.tool_use_id or "") not in called:
        raise InvalidValue(
            f"{place}.tool_use_id: no tool_use block before it has the id {str(block.tool_use_id)[: forms.SHOWN]!r}",
            param=f"{place}.tool_use_id",
        )
    text = _texts(block.content, f"{place}.content")
    told = f"Error: {text}" if block.is_error else text
    return Message(role="tool", content=told, tool_call_id=block.tool_use_id)


def _joined(before: Message, after: Message) -> Message:
    seam = SEAM if before.role == "user" else ""
    return msgspec.structs.replace(
        after,
        content=f"{_said(before.content)}{seam}{_said(after.content)}",
        tool_calls=((before.tool_calls or ()) + (after.tool_calls or ())) or None,
        reasoning_content=((before.reasoning_content or "") + (after.reasoning_content or "")) or None,
    )


def _said(content: object) -> str:
    assert isinstance(content, str), "messages are made of strings here"
    return content


def _texts(content: Texts, place: str) -> str:
    if not isinstance(content, tuple):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        if part.type != "text":
            raise _unreadable(part.type, f"{place}[{index}]")
        if part.text is None:
            raise MissingField(f"{place}[{index}].text is missing", param=f"{place}[{index}].text")
        texts.append(part.text)
    return SEAM.join(texts)


def _unreadable(kind: str, place: str) -> UnsupportedContent:
    return UnsupportedContent(
        f"{place} is of type {kind[: forms.SHOWN]}; this server's language models read text only", param=place
    )
