"""How /v1/chat/completions and /v1/completions write a choice, whole and in chunks: what differs between the two.

Pure functions of events. Knows choices; what stands around them is service/completions.py's.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from protocol.events import Candidate, ChoiceEnded, Delta, Said
from protocol.tools import CallPart

LEAST_LOGPROB = -9999.0
"""OpenAI's number for what is out of the question; JSON has no infinity."""

Body = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """One complete answer."""

    index: int
    text: str
    reasoning: str
    said: tuple[Said, ...]
    ended: ChoiceEnded
    calls: tuple[CallPart, ...] = ()
    """Whole ones, in order."""


class Dialect(Protocol):
    """How one of the protocols writes a choice."""

    prefix: str
    """Of ids."""
    object: str
    chunk: str

    def whole(self, choice: Choice) -> Body: ...

    def begins(self, index: int, delta: Delta | None) -> Body | None:
        """The choice of the first chunk, where that is one of its own. delta: what comes after it."""

    def goes_on(self, delta: Delta) -> Body | None:
        """None: there is nothing that a client would see."""

    def ends(self, ended: ChoiceEnded) -> Body: ...


class Chat:
    """/v1/chat/completions. `logprobs`: they were asked for."""

    prefix = "chatcmpl-"
    object = "chat.completion"
    chunk = "chat.completion.chunk"

    def __init__(self, *, logprobs: bool) -> None:
        self._logprobs = logprobs

    def whole(self, choice: Choice) -> Body:
        content = choice.text if choice.text or not choice.calls else None
        message: Body = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
        if choice.calls:
            message["tool_calls"] = [_call(call) for call in choice.calls]
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs_of(choice.said) if self._logprobs else None,
            "finish_reason": choice.ended.reason,
        }

    def begins(self, index: int, delta: Delta | None) -> Body | None:
        silent = delta is not None and delta.calls and not (delta.text or delta.reasoning)
        return _part(index, {"role": "assistant", "content": None if silent else "", "refusal": None})

    def goes_on(self, delta: Delta) -> Body | None:
        silent = delta.reasoning or delta.calls
        said: Body = {"content": delta.text} if delta.text or (delta.said and not silent) else {}
        if delta.reasoning:
            said["reasoning_content"] = delta.reasoning
        if delta.calls:
            said["tool_calls"] = [{"index": part.index, **_call(part)} for part in delta.calls]
        return _part(delta.choice, said, self._logprobs_of(delta.said) if delta.said else None) if said else None

    def ends(self, ended: ChoiceEnded) -> Body:
        return _part(ended.choice, {}, None, ended.reason)

    def _logprobs_of(self, said: Iterable[Said]) -> Body:
        return {"content": spelt(said), "refusal": None}


class Text:
    """/v1/completions, of one request: it counts its tokens' places. `logprobs`: how many likelier tokens; or None."""

    prefix = "cmpl-"
    object = chunk = "text_completion"

    def __init__(self, *, logprobs: int | None) -> None:
        self._logprobs = logprobs
        self._places: dict[int, _Places] = {}

    def whole(self, choice: Choice) -> Body:
        return self._choice(choice.index, choice.reasoning + choice.text, choice.said, choice.ended.reason)

    def begins(self, index: int, delta: Delta | None) -> Body | None:
        return None

    def goes_on(self, delta: Delta) -> Body | None:
        if not (delta.text or delta.reasoning or delta.said):
            return None
        return self._choice(delta.choice, delta.reasoning + delta.text, delta.said, None)

    def ends(self, ended: ChoiceEnded) -> Body:
        return self._choice(ended.choice, "", (), ended.reason)

    def _choice(self, index: int, text: str, said: Sequence[Said], reason: str | None) -> Body:
        # A chunk that says nothing has no list of tokens; an answer of nothing but an end has none either.
        logprobs = self._logprobs_of(index, said) if self._logprobs is not None and (said or text) else None
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs_of(self, index: int, said: Sequence[Said]) -> Body:
        places = self._places.setdefault(index, _Places())
        likeliest = [
            {_legacy(other.bytes): finite(other.logprob) for other in each.likeliest}
            | {_legacy(each.bytes): finite(each.logprob)}
            for each in said
        ]
        return {
            "text_offset": [places.take(each.bytes) for each in said],
            "token_logprobs": [finite(each.logprob) for each in said],
            "tokens": [_legacy(each.bytes) for each in said],
            "top_logprobs": likeliest if self._logprobs else None,
        }


class _Places:
    """Where in the text of one choice each token begins."""

    def __init__(self) -> None:
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, token: bytes) -> int:
        """Characters that are complete before this token."""
        begins = self._characters
        self._characters += len(self._decoder.decode(token))
        return begins


def _part(index: int, delta: Body, logprobs: Body | None = None, reason: str | None = None) -> Body:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _call(part: CallPart) -> Body:
    """A whole call, or more of one: its id, type and name are said once."""
    if part.id is None:
        return {"function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"id": part.id, "type": "function", "function": function}


def joined(parts: Iterable[CallPart]) -> tuple[CallPart, ...]:
    """Whole calls."""
    calls: dict[int, CallPart] = {}
    for part in parts:
        before = calls.get(part.index)
        calls[part.index] = part if before is None else replace(before, arguments=before.arguments + part.arguments)
    return tuple(calls.values())


def spelt(said: Iterable[Said]) -> list[Body]:
    """Tokens and their likelier ones, with log-probabilities, as OpenAI's newer protocols have them."""
    return [{**_token(each), "top_logprobs": [_token(other) for other in each.likeliest]} for each in said]


def _token(said: Said | Candidate) -> Body:
    text = said.bytes.decode(errors="backslashreplace")
    return {"token": text, "logprob": finite(said.logprob), "bytes": list(said.bytes)}


def _legacy(token: bytes) -> str:
    """As OpenAI's older protocol writes what is no whole character: bytes:\\xf0\\x9f."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + token.decode(errors="backslashreplace")


def finite(logprob: float) -> float:
    """Not below what OpenAI says; NaN too."""
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB
