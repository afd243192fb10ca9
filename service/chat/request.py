"""The typed requests for a chat and for a completion: their fields, limits and defaults, and the rules between them.

Knows what a client may ask; knows neither how it was sent nor who does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from protocol.errors import InvalidValue, MissingField, UnsupportedValue
from protocol.jobs import Chat, Complete, Generation, Sampling
from service import forms
from service.chat import typed
from service.chat.messages import Message, told
from service.chat.naming import Names, renaming
from service.chat.shapes import Shaped
from service.chat.tools import Choice, GivenTools, chosen

T = TypeVar("T", bound=Sampling)

MOST_PROMPTS = 128
MOST_TOKENS_OF_A_COMPLETION = 16
"""OpenAI's default for completions; a chat has none."""
LEAST_TOP_P = 1e-9
"""What a top_p of 0 means, which OpenAI allows: the likeliest token alone."""

MOST_METADATA = 16
"""OpenAI's limit."""

NOT_HERE = ("draft_model", "num_draft_tokens", "kv_bits", "kv_group_size", "quantized_kv_start")
"""Fields of mlx-lm's server and its kin that would change an answer, and are refused."""

Pin = Annotated[str, Meta(max_length=512)]


class Unheeded(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that only steer a hosted service: known, and without effect."""

    user: str = ""
    store: bool = False
    metadata: Annotated[dict[str, Any], Meta(max_length=MOST_METADATA)] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: str = ""
    prediction: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    moderation: Any = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Without effect: nobody between us and the client measures its tokens."""


class Asked(Shaped, frozen=True, kw_only=True):
    """What both requests have. What Sampling has, it has under the same names and limits."""

    model: str = ""
    """An id or an alias. Empty or unknown: the default."""
    stream: bool = False
    """Answer with server-sent events, token by token."""
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Of one choice; cut to the context."""
    stop: Annotated[
        str | Annotated[tuple[str, ...], Meta(max_length=4)],
        Meta(description="a string or a list of at most 4 strings"),
    ] = ()
    n: Annotated[int, Meta(ge=1, le=8)] = 1
    """Choices."""
    adapter: str = ""
    session_id: Pin = ""
    """This or the next: a conversation whose prompt cache is kept as long as possible."""
    prompt_cache_key: Pin = ""
    draft_model: Any = None
    num_draft_tokens: Any = None
    kv_bits: Any = None
    kv_group_size: Any = None
    quantized_kv_start: Any = None

    @property
    def usage_wanted(self) -> bool:
        """In a stream."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def generation(
        self, client: str, *, trace: bool, n: int, max_tokens: int | None, logprobs: int | None
    ) -> Generation:
        """What the worker is told, but the prompt."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        return Generation(
            sampling=Sampling(**{name: getattr(self, name) for name in Sampling.__struct_fields__}),
            max_tokens=max_tokens,
            stop=tuple(each for each in stop if each),
            n=n,
            logprobs=logprobs,
            client=client,
            pin=self.session_id or self.prompt_cache_key or None,
            trace=trace,
            shape=self.shape(),
            adapter=self.adapter,
        )


class ChatRequest(Asked, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[tuple[Message, ...], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Wins over max_tokens, its old name."""
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: tuple[Literal["text", "audio"], ...] = ()
    audio: Any = None
    tools: GivenTools = ()
    tool_choice: Choice = "auto"
    parallel_tool_calls: bool = True
    functions: Any = None
    function_call: Any = None

    def job(self, client: str, *, trace: bool) -> Chat:
        """Raises what is wrong with a message or a tool."""
        effort = self.reasoning_effort
        asked = {} if effort is None else {"enable_thinking": effort != "none", "reasoning_effort": effort}
        return Chat(
            messages=told(self.messages),
            generation=self.generation(
                client,
                trace=trace,
                n=self.n,
                max_tokens=self.max_completion_tokens or self.max_tokens,
                logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            ),
            template_kwargs=asked | (self.chat_template_kwargs or {}),
            tools=chosen(self.tools, self.tool_choice, parallel=self.parallel_tool_calls),
        )


Prompt = Annotated[
    str | tuple[str | int | tuple[int, ...], ...],
    Meta(description="a string, a list of strings, a list of tokens or a list of lists of tokens"),
]


class CompletionRequest(Asked, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompt = ""
    best_of: Annotated[int, Meta(ge=1, le=8)] | None = None
    echo: bool = False
    suffix: str = ""
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """Each of them by itself. Raises InvalidValue."""
        match self.prompt:
            case str():
                return (self.prompt,)
            case (int(), *_) if all(isinstance(token, int) for token in self.prompt):
                return (self.prompt,)  # type: ignore[return-value]  # The guard has looked at each.
            case (str(), *_) if all(isinstance(text, str) for text in self.prompt):
                return self.prompt  # type: ignore[return-value]
            case (tuple(), *_) if all(isinstance(tokens, tuple) and tokens for tokens in self.prompt):
                return self.prompt  # type: ignore[return-value]
        allowed = "a string, a list of strings, a list of tokens or a list of lists of tokens, none of them empty"
        raise forms.wrong("prompt", self.prompt, allowed)

    @property
    def candidates(self) -> int:
        """Choices to generate for each prompt; the best `n` of them are the answer."""
        return self.best_of or self.n

    def jobs(self, client: str, *, trace: bool) -> tuple[Complete, ...]:
        """One for each prompt. Raises InvalidValue."""
        generation = self.generation(
            client,
            trace=trace,
            n=self.candidates,
            max_tokens=self.max_tokens or MOST_TOKENS_OF_A_COMPLETION,
            logprobs=0 if self.logprobs is None and self.candidates > self.n else self.logprobs,
        )
        return tuple(Complete(prompt, generation, self.echo) for prompt in self.prompts)


def read_chat(members: Mapping[str, Any]) -> tuple[ChatRequest, list[str]]:
    """The checked request, and the names of unknown fields.

    Raises MissingField or InvalidValue for what is wrong, then UnsupportedValue for what is right but cannot be had.
    """
    request, ignored = decoded(ChatRequest, members)
    check_chat(request)
    return request, ignored


def check_chat(request: ChatRequest) -> None:
    """The rules between its fields. Raises as `read_chat`."""
    _check(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidValue("top_logprobs needs logprobs to be true", param="top_logprobs")
    if request.functions or request.function_call not in (None, "none", "auto"):
        param = "functions" if request.functions else "function_call"
        instead = "tools" if request.functions else "tool_choice"
        raise UnsupportedValue(f"{param} is not supported any more: use {instead}", param=param)
    if request.audio is not None or "audio" in request.modalities:
        raise UnsupportedValue("answers in audio are not supported", param="modalities")


SAME = (*Sampling.__struct_fields__, "model", "adapter", "session_id", "prompt_cache_key")
"""Fields that every protocol's request has under a chat's names."""


def same(request: Sampling) -> dict[str, Any]:
    """Those of them that another protocol's request has, for its chat."""
    return {name: getattr(request, name) for name in SAME}


def job_of(asked: ChatRequest, names: Names, client: str, *, trace: bool) -> Chat:
    """The job of a chat that another protocol's request was made into. Raises as `read_chat`, in that one's words."""
    with renaming(names):
        check_chat(asked)
        return asked.job(client, trace=trace)


def read_completion(members: Mapping[str, Any]) -> tuple[CompletionRequest, list[str]]:
    """As `read_chat`."""
    if "prompt" not in members:
        raise MissingField("prompt is missing", param="prompt")
    request, ignored = decoded(CompletionRequest, members)
    _check(request)
    prompts = request.prompts
    if len(prompts) > MOST_PROMPTS:
        raise InvalidValue(f"prompt must hold at most {MOST_PROMPTS} prompts, not {len(prompts)}", param="prompt")
    if request.candidates < request.n:
        raise InvalidValue(f"best_of must be at least n ({request.n}), not {request.best_of}", param="best_of")
    if request.stream and request.candidates > request.n:
        raise InvalidValue("best_of cannot be over n in a stream: the best is known at the end", param="best_of")
    if request.suffix:
        raise UnsupportedValue("suffix is not supported: no text can be filled in before it", param="suffix")
    if request.echo and request.logprobs is not None:
        raise UnsupportedValue("logprobs of an echoed prompt are not supported", param="logprobs")
    return request, ignored


def decoded(
    kind: type[T], members: Mapping[str, Any], unheeded: type[msgspec.Struct] = Unheeded
) -> tuple[T, list[str]]:
    """As `typed.decode`, with OpenAI's forms of what Sampling has."""
    values = dict(members)
    if isinstance(values.get("logit_bias"), dict):
        values["logit_bias"] = _biases(values["logit_bias"])
    elif values.get("logit_bias") is not None:
        raise forms.wrong("logit_bias", values["logit_bias"], "an object of token ids and numbers from -100 to 100")
    if values.get("top_p") == 0 and not isinstance(values["top_p"], bool):
        values["top_p"] = LEAST_TOP_P
    return typed.decode(kind, values, unheeded)


SAID_OTHERWISE: Mapping[str, Any] = {
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "description": "What is added to the logits of tokens, by their ids.",
    },
    "top_p": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}], "description": "1."},
}
"""JSON schemas of what `decoded` takes in OpenAI's forms."""


def _biases(biases: Mapping[str, Any]) -> list[tuple[int, float]]:
    """OpenAI's object as pairs. Raises InvalidValue."""
    pairs = []
    for token, bias in biases.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise forms.wrong("logit_bias", token, "an object whose names are token ids")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise forms.wrong(f"logit_bias.{token}", bias, "a number from -100 to 100")
        pairs.append((int(token), float(bias)))
    return pairs


def _check(request: Asked) -> None:
    """The rules between fields that both requests have. Raises InvalidValue, MissingField or UnsupportedValue."""
    request.shape()
    for name in NOT_HERE:
        if getattr(request, name) is not None:
            what = "draft models" if "draft" in name else "quantized key-value caches"
            raise UnsupportedValue(f"{name}: {what} are not supported", param=name)
    if request.stream_options is not None and not request.stream:
        raise InvalidValue("stream_options can only be given with stream=true", param="stream_options")
