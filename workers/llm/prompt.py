"""What a model reads: a conversation through its chat template, a text, or ids; and how much room is left.

Knows templates and tokenizers. A template is the model's own, runs in transformers' sandbox, and sees no more messages
than the context has tokens; a text is not tokenized much further than the context reaches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from jinja2 import TemplateError

from protocol.errors import ContextLengthExceeded, InvalidValue
from protocol.jobs import Chat, ChatMessage, Complete, Shape
from workers.llm import literal, spelling
from workers.llm.calls import Calling
from workers.llm.envelopes import shape_of
from workers.llm.formats import Format, format_of
from workers.llm.messages import messages_for

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

RESERVED: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""What a client may not hand to a template: arguments of `apply_chat_template` and of what it calls. A template of the
client's own would run here for as long as it liked."""

LONG = 8
"""Characters for each token of the context: a longer text is counted before it is tokenized as a whole."""
SEAM = 8
"""Tokens that cutting a text in two may add."""
REASON = 300
"""Characters of a template's complaint that are told."""

_TEMPLATES_RAISE = (TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
"""They raise what they like, and jinja runs what they do as Python."""


@dataclass(frozen=True)
class Prompt:
    """What is to be read before the answer."""

    ids: tuple[int, ...]
    """Never empty."""
    text: str | None
    """`ids` as text, special tokens spelt out; None where the client gave ids."""
    thinking: bool = False
    """It ends inside a block of reasoning."""
    echo: str = ""
    """What the answer begins with."""
    continues: bool = False
    """The answer goes on with this very text, instead of replying to it."""
    literal: bool = False
    """Special tokens are spelt out in it and read as letters: other ids have the same text."""
    calling: Calling | None = None
    """The tools that the answer may call."""
    shape: Shape | None = None
    """What the tools demand of the answer, in the way that the model writes calls; it goes before the request's own."""

    @property
    def param(self) -> str:
        """The request's field that it came from."""
        return "prompt" if self.continues else "messages"


def render(tokenizer: TokenizerWrapper, job: Chat | Complete, *, window: int) -> Prompt:
    """Raises InvalidValue, and ContextLengthExceeded where a prompt is over `window` tokens by far."""
    if isinstance(job, Chat):
        return _chat(tokenizer, job, window)
    if isinstance(job.prompt, str):
        text = _begun(tokenizer, job.prompt)
        ids = _bounded(tokenizer, text, window, "prompt")
    else:
        text = None
        ids = _known(tokenizer, job.prompt)
    if not ids:
        raise InvalidValue("prompt must not be empty: there is nothing to go on from", param="prompt")
    echo = "" if not job.echo else job.prompt if isinstance(job.prompt, str) else decode(tokenizer, ids)
    return Prompt(ids, text, echo=echo, continues=True)


_HINTS = {
    "json": "Answer with a JSON value that follows this JSON schema, and with nothing else:\n{}",
    "regex": "Answer with a text that all of this regular expression matches, and with nothing else:\n{}",
    "choice": "Answer with one of the strings in this JSON list, and with nothing else:\n{}",
    "lark": "Answer with a text that this grammar allows, and with nothing else:\n{}",
}


def hinted(job: Chat | Complete, shape: Shape) -> Chat | Complete:
    """The job with its shape in words, which nobody enforces. Raises InvalidValue where there are no words."""
    hint = _HINTS[shape.kind].format(shape.text)
    if isinstance(job, Complete):
        if not isinstance(job.prompt, str):
            raise InvalidValue("a schema cannot be put into a prompt of tokens", param=shape.param)
        return msgspec.structs.replace(job, prompt=f"{hint}\n\n{job.prompt}")
    first = job.messages[0]
    if first.role == "system":
        said = msgspec.structs.replace(first, content=f"{first.content}\n\n{hint}")
        return msgspec.structs.replace(job, messages=(said, *job.messages[1:]))
    return msgspec.structs.replace(job, messages=(ChatMessage(role="system", content=hint), *job.messages))


def room(prompt_tokens: int, window: int, max_tokens: int | None, *, param: str | None = None) -> int:
    """Tokens that one answer may have. Raises ContextLengthExceeded."""
    left = window - prompt_tokens
    if left < 1:
        raise _too_long(window, str(prompt_tokens), param)
    return left if max_tokens is None else min(max_tokens, left)


def encode(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    """The ids of `text` and nothing around it."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def decode(tokenizer: TokenizerWrapper, ids: Sequence[int]) -> str:
    """The text of `ids`, special tokens spelt out."""
    return spelling.decode(tokenizer, list(ids))


# Conversations.


def _chat(tokenizer: TokenizerWrapper, job: Chat, window: int) -> Prompt:
    if not tokenizer.has_chat_template:
        raise InvalidValue("the model has no chat template, so it can only complete a prompt", param="messages")
    reserved = sorted(RESERVED & job.template_kwargs.keys())
    if reserved:
        raise InvalidValue(f"chat_template_kwargs must not set {reserved[0]}", param="chat_template_kwargs")
    if len(job.messages) > window:
        # Each takes a token at least, so that the template need not be run to know.
        raise _too_long(window, f"more than {window}", "messages")
    form = format_of(tokenizer)
    text = _render(tokenizer, job, form)
    ids = _bounded(tokenizer, text, window, "messages")
    words = literal.ids_of(tokenizer, job, text, lambda mark: _render(tokenizer, job, form, mark=mark))
    ids = words or ids
    if not ids:
        raise InvalidValue("the model's chat template makes nothing of these messages", param="messages")
    opens: str | None = tokenizer.think_start
    thinking = opens is not None and text.rstrip().endswith(opens)
    if not job.tools.allowed:
        return Prompt(ids, text, thinking, literal=words is not None)
    special = spelling.special_tokens(tokenizer)
    shape = shape_of(form, job.tools, special, job.generation.shape, thinks=tokenizer.has_thinking)
    calling = Calling(
        form,
        job.tools.allowed,
        job.tools.parallel,
        guaranteed=shape is not None,
        demanded=job.tools.choice == "required",
    )
    return Prompt(ids, text, thinking, literal=words is not None, calling=calling, shape=shape)


def retold(
    tokenizer: TokenizerWrapper, job: Chat, prompt: Prompt, answer: ChatMessage, ends: Collection[int]
) -> str | None:
    """How the next turn's rendering will begin, up to the end of this `answer`; None where that cannot be known."""
    try:
        text = _render(
            tokenizer,
            msgspec.structs.replace(job, messages=(*job.messages, answer)),
            format_of(tokenizer),
            goes_on=False,
        )
    except InvalidValue:
        return None
    if prompt.text is None or not text.startswith(prompt.text):
        return None
    end = max(text.rfind(decode(tokenizer, [each])) for each in ends)
    return text[:end] if end >= len(prompt.text) else None


def _render(
    tokenizer: TokenizerWrapper,
    job: Chat,
    form: Format,
    *,
    goes_on: bool = True,
    mark: literal.Mark = lambda value: value,
) -> str:
    """goes_on: up to where the assistant's next message begins. mark: what the template is given goes through it."""
    native = {"tools": mark([tool.shown for tool in job.tools.offered])} if form.native and job.tools.allowed else {}
    refused: Exception | None = None
    for messages in messages_for(tokenizer, job, form):
        try:
            text: Any = tokenizer.apply_chat_template(  # type: ignore[no-untyped-call]
                mark(messages), tokenize=False, add_generation_prompt=goes_on, **native, **job.template_kwargs
            )
        except _TEMPLATES_RAISE as error:
            refused = refused or error
            continue
        assert isinstance(text, str)
        return text
    assert refused is not None
    raise InvalidValue(
        f"the model's chat template refuses these messages: {_reason(refused)}", param="messages"
    ) from refused


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:REASON]


# Texts and ids.


def _begun(tokenizer: TokenizerWrapper, text: str) -> str:
    """With the token in front that the tokenizer begins every text with, if it does and the text does not yet."""
    begin: str | None = tokenizer.bos_token
    around: list[int] = tokenizer.encode("")
    wanted = begin is not None and around[:1] == [tokenizer.bos_token_id]
    return f"{begin}{text}" if wanted and not text.startswith(str(begin)) else text


def _known(tokenizer: TokenizerWrapper, ids: tuple[int, ...]) -> tuple[int, ...]:
    for token in ids:
        if not 0 <= token < len(tokenizer):
            raise InvalidValue(
                f"prompt: the model has no token {token}; its tokens are 0 to {len(tokenizer) - 1}", param="prompt"
            )
    return ids


def known(prompt: Prompt, vocabulary: int) -> Prompt:
    """The prompt. Raises InvalidValue for a token that the network does not have: a tokenizer may have some more."""
    if max(prompt.ids) >= vocabulary:
        raise InvalidValue(
            f"{prompt.param}: the model has no token {max(prompt.ids)}; its tokens are 0 to {vocabulary - 1}",
            param=prompt.param,
        )
    return prompt


def _bounded(tokenizer: TokenizerWrapper, text: str, window: int, param: str) -> tuple[int, ...]:
    """The ids of `text`. One that cannot fit is found out without tokenizing all of it."""
    if len(text) > LONG * window:
        counted = 0
        for start in range(0, len(text), LONG * window):
            counted += len(encode(tokenizer, text[start : start + LONG * window])) - SEAM
            if counted > window:
                raise _too_long(window, f"at least {counted}", param)
    return tuple(encode(tokenizer, text))


def _too_long(window: int, tokens: str, param: str | None) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {window} tokens, but the prompt has {tokens}", param=param
    )
