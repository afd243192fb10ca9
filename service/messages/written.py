"""The body and the events of Anthropic's Messages, as types: what rendering.py writes. Knows nothing else."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from service.chat.written import Starling
from service.contract import one_of

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class OutputDetails(TypedDict):
    thinking_tokens: int


class Usage(TypedDict):
    """`input_tokens` are those of the prompt that the prompt cache had not."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str
    citations: None


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str | None
    input: dict[str, Any]


Block = Annotated[Any, one_of(TextBlock, ThinkingBlock, ToolUseBlock)]


class Begun(TypedDict):
    """A message before its end, where nothing is known of it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage


class AnthropicMessage(Begun):
    starling: Starling


class MessageStart(TypedDict):
    type: Literal["message_start"]
    message: Begun


class Ping(TypedDict):
    type: Literal["ping"]


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: Block


class TextDelta(TypedDict):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[Any, one_of(TextDelta, ThinkingDelta, SignatureDelta, InputDelta)]


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


class Stop(TypedDict):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    type: Literal["message_delta"]
    delta: Stop
    usage: Usage
    starling: Starling


class MessageStop(TypedDict):
    type: Literal["message_stop"]


class Counted(TypedDict):
    input_tokens: int


EVENTS = (MessageStart, Ping, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop)
