"""What the model said, as the body and the events of Anthropic's Messages. Pure functions of events of one choice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from protocol.events import ChoiceEnded, Delta, Generated, Started
from protocol.tools import CallPart
from service.completions import Usage
from service.dialects import Body

Message = Mapping[str, Any]


class Answer:
    """Events of a request to the events of its stream; at the end `body` is the same, whole.

    max_tokens: as asked. shows_thinking: else reasoning is there, but empty.
    """

    def __init__(self, id: str, model: str, *, max_tokens: int, shows_thinking: bool = True) -> None:
        self._id = id
        self._model = model
        self._max_tokens = max_tokens
        self._shows_thinking = shows_thinking
        self._content: list[Body] = []
        self._open: object = None
        """What the last block goes on with: its type, or the index of its call. None: it is closed."""
        self._written = ""
        """All of the open block: its text, or its call's arguments."""
        self._usage = Usage()
        self._ended: ChoiceEnded | None = None

    def take(self, event: Started | Delta | ChoiceEnded | Generated) -> Iterator[Message]:
        match event:
            case Started():
                usage = _usage(Usage(prompt=event.prompt_tokens, cached=event.cached_tokens))
                message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
                yield {"type": "message_start", "message": message}
                yield {"type": "ping"}
            case Delta():
                yield from self._take(event)
            case ChoiceEnded():
                self._usage = self._usage.plus(event)
                self._ended = event
                yield from self._close()
            case Generated():
                self._usage = self._usage.plus(event)

    def end(self, total_s: float) -> Iterator[Message]:
        """After all events."""
        yield {
            "type": "message_delta",
            "delta": self._stop(),
            "usage": _usage(self._usage),
            "starling": self._usage.meta(self._model, total_s),
        }
        yield {"type": "message_stop"}

    def body(self, total_s: float) -> Body:
        """After all events."""
        return {
            **self._head(),
            "content": self._content,
            **self._stop(),
            "usage": _usage(self._usage),
            "starling": self._usage.meta(self._model, total_s),
        }

    def _take(self, delta: Delta) -> Iterator[Message]:
        if delta.reasoning:
            yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._written += delta.reasoning
            if self._shows_thinking:
                yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.text:
            yield from self._begin("text", {"type": "text", "text": "", "citations": None})
            self._written += delta.text
            yield self._delta({"type": "text_delta", "text": delta.text})
        for part in delta.calls:
            yield from self._call(part)

    def _call(self, part: CallPart) -> Iterator[Message]:
        if part.id is not None:
            yield from self._begin(part.index, {"type": "tool_use", "id": part.id, "name": part.name, "input": {}})
        if part.arguments:
            self._written += part.arguments
            yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})

    def _begin(self, kind: object, block: Body) -> Iterator[Message]:
        """A new block, unless the last one goes on."""
        if kind == self._open:
            return
        yield from self._close()
        self._open, self._written = kind, ""
        self._content.append(block)
        yield {"type": "content_block_start", "index": len(self._content) - 1, "content_block": dict(block)}

    def _close(self) -> Iterator[Message]:
        """Ends the last block, if one is open, and fills it in."""
        if self._open is None:
            return
        block = self._content[-1]
        match block["type"]:
            case "thinking":
                block["thinking"] = self._written if self._shows_thinking else ""
                block["signature"] = hashlib.blake2s(self._written.encode()).hexdigest()
                yield self._delta({"type": "signature_delta", "signature": block["signature"]})
            case "text":
                block["text"] = self._written
            case _:
                block["input"] = _object(self._written)
        self._open = None
        yield {"type": "content_block_stop", "index": len(self._content) - 1}

    def _delta(self, delta: Body) -> Message:
        return {"type": "content_block_delta", "index": len(self._content) - 1, "delta": delta}

    def _head(self) -> Body:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}

    def _stop(self) -> Body:
        assert self._ended is not None, "the answer has not ended"
        reason, sequence = _reason(self._ended, self._max_tokens), self._ended.stop
        return {"stop_reason": reason, "stop_sequence": sequence if reason == "stop_sequence" else None}


def _reason(ended: ChoiceEnded, max_tokens: int) -> str:
    if ended.reason == "tool_calls":
        return "tool_use"
    if ended.reason == "length":
        return "max_tokens" if ended.tokens >= max_tokens else "model_context_window_exceeded"
    return "end_turn" if ended.stop is None else "stop_sequence"


def _object(arguments: str) -> Body:
    """A call's input; of a call that was cut off nothing can be said."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _usage(usage: Usage) -> Body:
    """Anthropic counts what came from the cache apart. Nothing is written for a fee, so nothing is created."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
