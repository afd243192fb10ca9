"""A conversation as the Responses API writes it, in items, and the same as messages of a chat.

Knows items and parts; knows no sampling and no store. What the assistant thought, said and called in a row is one
message, as it was when the model made it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.errors import InvalidValue, MissingField, UnsupportedContent, UnsupportedValue
from service import forms
from service.chat.messages import Function, Message, ToolCall

TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Types of a part, and the member that has its text."""
MEDIA = ("input_image", "input_file", "input_audio", "computer_screenshot")

PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""Of ids, by an item's type."""


class Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None
    image_url: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None
    input_audio: Any = None
    detail: Any = None


Texts = Annotated[str | tuple[Part, ...] | None, Meta(description="a string or a list of text parts")]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One item of an input: of its members those that belong to its type count."""

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Texts = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Texts = None
    summary: tuple[Part, ...] | None = None
    encrypted_content: str | None = None
    namespace: Any = None
    caller: Any = None

    @property
    def kind(self) -> str:
        """Its type, which a message and a reference may leave out."""
        return self.type or ("message" if self.role else "item_reference" if self.id else "")


Input = Annotated[str | tuple[Item, ...] | None, Meta(description="a string or a list of items")]


def listed(given: str | Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """An input as items that are complete: each has a type and an id, and a message's content is a list."""
    if isinstance(given, str):
        given = ({"role": "user", "content": given},)
    found = []
    for item in given:
        kind = item.get("type") or "message"
        id = item.get("id") or f"{PREFIXES.get(kind, 'item')}_{secrets.token_hex(12)}"
        made = {"id": id, **item, "type": kind, "status": item.get("status") or "completed"} | {"id": id}
        if isinstance(text := item.get("content"), str):
            said = item.get("role") == "assistant"
            part = (
                {"type": "output_text", "text": text, "annotations": []}
                if said
                else {"type": "input_text", "text": text}
            )
            made["content"] = [part]
        found.append(made)
    return tuple(found)


def conversation(before: Iterable[Item], instructions: str | None, items: Iterable[Item]) -> tuple[Message, ...]:
    """As messages of a chat. before: what earlier turns had. instructions: of this turn alone.

    Raises MissingField, InvalidValue, UnsupportedContent or UnsupportedValue, naming the place.
    """
    found = [Message(role="system", content=instructions)] if instructions else []
    called: set[str] = set()
    for item, place in _placed(before, items):
        message = _message(item, place, called)
        if message is None:
            continue
        last = found[-1] if found else None
        if last is not None and last.role == message.role == "assistant":
            found[-1] = _joined(last, message)
        else:
            found.append(message)
    return tuple(found)


def _placed(before: Iterable[Item], items: Iterable[Item]) -> Iterator[tuple[Item, str]]:
    for item in before:
        yield item, "previous_response_id"
    for index, item in enumerate(items):
        yield item, f"input[{index}]"


def _message(item: Item, place: str, called: set[str]) -> Message | None:
    """called: ids of the calls so far; the item's own is added."""
    match item.kind:
        case "message":
            if item.role is None:
                raise _missing(f"{place}.role")
            if item.content is None:
                raise _missing(f"{place}.content")
            role = "system" if item.role == "developer" else item.role
            return Message(role=role, content=_text(item.content, f"{place}.content"))
        case "function_call":
            call_id, name = needed(item, "call_id", place), needed(item, "name", place)
            called.add(call_id)
            call = ToolCall(Function(name, needed(item, "arguments", place)), id=call_id)
            return Message(role="assistant", content="", tool_calls=(call,))
        case "function_call_output":
            call_id = needed(item, "call_id", place)
            if call_id not in called:
                raise InvalidValue(
                    f"{place}.call_id: no function_call before it has the call_id {call_id[: forms.SHOWN]!r}",
                    param=f"{place}.call_id",
                )
            if item.output is None:
                raise _missing(f"{place}.output")
            return Message(role="tool", content=_text(item.output, f"{place}.output"), tool_call_id=call_id)
        case "reasoning":
            # A summary is not what was thought; we make none.
            thought = _text(item.content, f"{place}.content", reasoning=True)
            return Message(role="assistant", content="", reasoning_content=thought) if thought else None
        case kind:
            allowed = ", ".join((*PREFIXES, "item_reference"))
            raise UnsupportedValue(
                f"{place}.type: items of type {kind[: forms.SHOWN]!r} are not supported; {allowed} are",
                param=f"{place}.type",
            )


def needed(item: Item, name: str, place: str) -> str:
    """A member that the item's type must have. Raises MissingField."""
    value = getattr(item, name)
    if not isinstance(value, str):
        raise _missing(f"{place}.{name}")
    return value


def _joined(before: Message, after: Message) -> Message:
    assert isinstance(before.content, str) and isinstance(after.content, str), "they are made of strings here"
    return msgspec.structs.replace(
        after,
        content=before.content + after.content,
        tool_calls=((before.tool_calls or ()) + (after.tool_calls or ())) or None,
        reasoning_content=((before.reasoning_content or "") + (after.reasoning_content or "")) or None,
    )


def _text(content: Texts, place: str, *, reasoning: bool = False) -> str:
    if not isinstance(content, tuple):
        return content or ""
    texts = {"reasoning_text": "text"} if reasoning else TEXTS
    found = []
    for index, part in enumerate(content):
        where = f"{place}[{index}]"
        if part.type in MEDIA:
            raise UnsupportedContent(
                f"{where} is of type {part.type}; this server's language models read text only", param=where
            )
        if part.type not in texts:
            raise forms.wrong(f"{where}.type", part.type, f"one of {', '.join(texts)}")
        text = getattr(part, texts[part.type])
        if text is None:
            raise _missing(f"{where}.{texts[part.type]}")
        found.append(text)
    return "".join(found)


def _missing(place: str) -> MissingField:
    return MissingField(f"{place} is missing", param=place)
