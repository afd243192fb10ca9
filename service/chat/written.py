"""The bodies and chunks of OpenAI's two completion protocols, as types: what service/dialects.py and completions.py
write. Knows nothing else."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Ending = Literal["stop", "length", "tool_calls"]


class PromptDetails(TypedDict):
    """`cached_tokens`: of the prompt, those that the prompt cache had."""

    cached_tokens: int
    audio_tokens: int


class CompletionDetails(TypedDict):
    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(TypedDict):
    """Milliseconds. `total` is from the end of the request's body; the others are spent in the worker."""

    queue: float
    template: float
    cache: float
    prefill: float
    first_token: float
    decode: float
    total: float


class Starling(TypedDict):
    """What goes beyond the official API. `grammar`: what became of the shape that was asked for. `adapter`: the one
    that it was written with."""

    model: str
    adapter: NotRequired[str]
    cached_tokens: int
    grammar: NotRequired[Literal["enforced", "hint"]]
    forced_tokens: NotRequired[int]
    guessed_tokens: NotRequired[int]
    timings: Timings


class Candidate(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class Token(Candidate):
    top_logprobs: list[Candidate]


class Logprobs(TypedDict):
    content: list[Token]
    refusal: None


class Function(TypedDict):
    """`arguments` is JSON, as the model wrote it."""

    name: str | None
    arguments: str


class Call(TypedDict):
    id: str
    type: Literal["function"]
    function: Function


class Message(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    tool_calls: NotRequired[list[Call]]
    reasoning_content: NotRequired[str]


class Choice(TypedDict):
    index: int
    message: Message
    logprobs: Logprobs | None
    finish_reason: Ending


class Head(TypedDict):
    """What stands in every body and chunk of one answer. `created`: seconds since 1970."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None


class ChatCompletion(Head):
    object: Literal["chat.completion"]
    choices: list[Choice]
    usage: Usage
    starling: Starling


class FunctionPart(TypedDict):
    name: NotRequired[str | None]
    arguments: str


class CallPart(TypedDict):
    """More of a call: its id, type and name are said once."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionPart


class ChunkDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str
    tool_calls: list[CallPart]


class ChunkChoice(TypedDict):
    index: int
    delta: ChunkDelta
    logprobs: Logprobs | None
    finish_reason: Ending | None


class ChatCompletionChunk(Head):
    """`usage`: in every chunk with stream_options.include_usage, null but in the last. The stream ends with [DONE]."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: NotRequired[Usage | None]
    starling: NotRequired[Starling]


class TextLogprobs(TypedDict):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]] | None


class TextChoice(TypedDict):
    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: Ending | None


class Completion(Head):
    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage
    starling: Starling


class CompletionChunk(Head):
    """As a chat's chunk."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: NotRequired[Usage | None]
    starling: NotRequired[Starling]
