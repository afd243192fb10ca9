"""The object and the events of the Responses API, as types: what rendering.py writes. Knows nothing else."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from service.chat.written import Starling, Token
from service.contract import one_of
from service.errors import Error

Status = Literal["in_progress", "completed", "incomplete"]


class InputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Token]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


Part = Annotated[Any, one_of(OutputText, ReasoningText)]


class MessageItem(TypedDict):
    id: str
    type: Literal["message"]
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(TypedDict):
    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[Any]
    content: list[ReasoningText]


class CallItem(TypedDict):
    """A function that the model wants to be called. `arguments` is JSON, as the model wrote it."""

    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str | None
    arguments: str


Output = Annotated[Any, one_of(MessageItem, ReasoningItem, CallItem)]


class Incomplete(TypedDict):
    reason: Literal["max_output_tokens"]


class ReasoningAsked(TypedDict):
    effort: str | None
    summary: str | None


class Fault(TypedDict):
    code: Literal["server_error"]
    message: str


class ResponseObject(TypedDict):
    """What was asked for, and the answer. Times in seconds since 1970."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    completed_at: int | None
    error: Fault | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: Any
    metadata: dict[str, str]
    model: str
    output: list[Output]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningAsked
    safety_identifier: Any
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: Usage | None
    user: Any
    starling: NotRequired[Starling]


class Removed(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class Counted(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Items(TypedDict):
    """What the client sent, each with an id."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Numbered(TypedDict):
    """Every event has its place in the stream."""

    sequence_number: int


class Whole(Numbered):
    """The response as it is. The stream's last event is one of these, or an error."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseObject


class OfItem(Numbered):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Output


class OfPart(Numbered):
    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: int
    content_index: int
    part: Part


class TextGrew(Numbered):
    type: Literal["response.output_text.delta"]
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[Token]


class TextEnded(Numbered):
    type: Literal["response.output_text.done"]
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[Token]


class ReasoningGrew(Numbered):
    type: Literal["response.reasoning_text.delta"]
    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningEnded(Numbered):
    type: Literal["response.reasoning_text.done"]
    item_id: str
    output_index: int
    content_index: int
    text: str


class CallGrew(Numbered):
    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str


class CallEnded(Numbered):
    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    name: str | None
    arguments: str


class Failure(Numbered):
    """As the API has it, and under `error` as all streams here end that fail."""

    type: Literal["error"]
    code: str
    message: str
    param: str | None
    error: Error


EVENTS = (
    Whole,
    OfItem,
    OfPart,
    TextGrew,
    TextEnded,
    ReasoningGrew,
    ReasoningEnded,
    CallGrew,
    CallEnded,
    Failure,
)
