"""What the model said, as the object and the events of the Responses API. Pure functions of events of one choice."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from protocol.errors import Failure
from protocol.events import ChoiceEnded, Delta, GenDefaults, Generated, Started
from protocol.tools import CallPart
from service import errors
from service.completions import Usage
from service.dialects import Body, spelt
from service.responses.items import PREFIXES
from service.responses.request import ResponsesRequest

Message = Mapping[str, Any]


def head(
    request: ResponsesRequest, members: Mapping[str, Any], id: str, created: int, model: str, defaults: GenDefaults
) -> Body:
    """What a response says of its request. members: as the client sent them. created: seconds since 1970."""
    effort, summary = (request.reasoning.effort, request.reasoning.summary) if request.reasoning else (None, None)
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": members.get("max_tool_calls"),
        "metadata": request.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key or None,
        "reasoning": {"effort": effort, "summary": summary},
        "safety_identifier": members.get("safety_identifier"),
        "service_tier": "default",
        "store": request.store,
        "temperature": defaults.temperature if request.temperature is None else request.temperature,
        "text": {"format": {"type": "text"}, **(members.get("text") or {})},
        "tool_choice": members.get("tool_choice") or "auto",
        "tools": members.get("tools") or [],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": defaults.top_p if request.top_p is None else request.top_p,
        "truncation": request.truncation,
        "usage": None,
        "user": members.get("user"),
    }


class Answer:
    """Events of a request to the events of its stream; `body` is the response so far."""

    def __init__(self, head: Body, *, logprobs: bool) -> None:
        self.body = head
        self._output: list[Body] = head["output"]
        self._logprobs = logprobs
        self._open: object = None
        """What the last item goes on with: its type, or the index of its call. None: it is closed."""
        self._sequence = 0
        self._usage = Usage()
        self._ended: ChoiceEnded | None = None

    def take(self, event: Started | Delta | ChoiceEnded | Generated) -> Iterator[Message]:
        match event:
            case Started():
                yield self._event("response.created", response=self._snapshot())
                yield self._event("response.in_progress", response=self._snapshot())
            case Delta():
                yield from self._take(event)
            case ChoiceEnded():
                self._usage = self._usage.plus(event)
                self._ended = event
                if not self._output:
                    yield from self._begin("message")
                yield from self._close("incomplete" if event.reason == "length" else "completed")
            case Generated():
                self._usage = self._usage.plus(event)

    def finish(self, now: int, total_s: float) -> None:
        """After all events: the response is whole. now: seconds since 1970."""
        assert self._ended is not None, "the answer has not ended"
        cut = self._ended.reason == "length"
        self.body |= {
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else now,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": _usage(self._usage),
            "starling": self._usage.meta(self.body["model"], total_s),
        }

    def end(self) -> Message:
        """The stream's last event, once it is finished."""
        return self._event(f"response.{self.body['status']}", response=self.body)

    def failed(self, failure: Failure) -> Message:
        """The event before the error that ends a stream."""
        error = {"code": "server_error", "message": failure.message}
        return self._event("response.failed", response=self.body | {"status": "failed", "error": error})

    def error(self, failure: Failure) -> Message:
        """The last event of a stream that failed: as the API has it, and under `error` as all streams here end."""
        told = errors.body(failure)
        flat = {name: told[name] for name in ("code", "message", "param")}
        return self._event("error", **flat, error=told)

    def _take(self, delta: Delta) -> Iterator[Message]:
        if delta.reasoning:
            yield from self._begin("reasoning")
            self._part()["text"] += delta.reasoning
            yield self._of_part("response.reasoning_text.delta", delta=delta.reasoning)
        if delta.text:
            yield from self._begin("message")
            part, logprobs = self._part(), spelt(delta.said) if self._logprobs else []
            part["text"] += delta.text
            part["logprobs"] += logprobs
            yield self._of_part("response.output_text.delta", delta=delta.text, logprobs=logprobs)
        for call in delta.calls:
            yield from self._call(call)

    def _call(self, part: CallPart) -> Iterator[Message]:
        if part.id is not None:
            yield from self._begin("function_call", part.index, call_id=part.id, name=part.name, arguments="")
        if part.arguments:
            self._output[-1]["arguments"] += part.arguments
            yield self._of_item("response.function_call_arguments.delta", delta=part.arguments)

    def _begin(self, kind: str, key: object = None, **members: Any) -> Iterator[Message]:
        """A new item, unless the last one goes on."""
        key = kind if key is None else key
        if key == self._open:
            return
        yield from self._close("completed")
        self._open = key
        item = {"id": f"{PREFIXES[kind]}_{secrets.token_hex(12)}", "type": kind, "status": "in_progress", **members}
        if kind == "message":
            item |= {"role": "assistant", "content": []}
        elif kind == "reasoning":
            item |= {"summary": [], "content": []}
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=self._index, item=_copy(item))
        if kind == "message":
            item["content"].append({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        elif kind == "reasoning":
            item["content"].append({"type": "reasoning_text", "text": ""})
        if "content" in item:
            yield self._of_part("response.content_part.added", part=_copy(self._part()))

    def _close(self, status: str) -> Iterator[Message]:
        """Ends the last item, if one is open."""
        if self._open is None:
            return
        item = self._output[-1]
        # A call that is whole is one even if the answer was cut behind it.
        item["status"] = "completed" if _is_object(item.get("arguments")) else status
        match item["type"]:
            case "message":
                part = self._part()
                yield self._of_part("response.output_text.done", text=part["text"], logprobs=part["logprobs"])
                yield self._of_part("response.content_part.done", part=part)
            case "reasoning":
                yield self._of_part("response.reasoning_text.done", text=self._part()["text"])
                yield self._of_part("response.content_part.done", part=self._part())
            case _:
                told = {"name": item["name"], "arguments": item["arguments"]}
                yield self._of_item("response.function_call_arguments.done", **told)
        self._open = None
        yield self._event("response.output_item.done", output_index=self._index, item=item)

    @property
    def _index(self) -> int:
        return len(self._output) - 1

    def _part(self) -> Body:
        part: Body = self._output[-1]["content"][0]
        return part

    def _of_part(self, kind: str, **members: Any) -> Message:
        return self._of_item(kind, content_index=0, **members)

    def _of_item(self, kind: str, **members: Any) -> Message:
        return self._event(kind, item_id=self._output[-1]["id"], output_index=self._index, **members)

    def _event(self, kind: str, **members: Any) -> Message:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence - 1, **members}

    def _snapshot(self) -> Body:
        return self.body | {"output": []}


def _copy(item: Body) -> Body:
    """What goes on to grow, as it is now."""
    return {name: list(value) if isinstance(value, list) else value for name, value in item.items()}


def _is_object(arguments: str | None) -> bool:
    """Whether a call's arguments are whole."""
    try:
        msgspec.json.decode(arguments or "", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _usage(usage: Usage) -> Body:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
