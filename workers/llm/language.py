"""One model's words: its tokenizer bound to the rules of prompts, answers and traces. Knows no rows and no MLX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from protocol.events import Spent
from protocol.jobs import Chat, ChatMessage, Complete, Generation, Shape
from workers.llm import prompt as prompts
from workers.llm import trace
from workers.llm.grammar import Asked, Grammars
from workers.llm.prompt import Prompt
from workers.llm.text import Voice

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Language(Protocol):
    """What the engine asks of a tokenizer."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""

    def render(self, job: Chat | Complete) -> Prompt:
        """Raises Failure."""

    def room(self, prompt: Prompt, tokens: int, max_tokens: int | None) -> int:
        """Tokens that an answer to a prompt of `tokens` may have. Raises ContextLengthExceeded."""

    def voice(self, generation: Generation, prompt: Prompt, calls: Sequence[str] = ()) -> Voice:
        """calls: ids of the answer's first calls, where they are told already."""

    def shape(self, shape: Shape) -> Asked:
        """What an answer of that shape may say: at once, and there when it is done. Raises UnsupportedSchema."""

    def hinted(self, job: Chat | Complete, shape: Shape) -> Chat | Complete:
        """The job with its shape in words. Raises InvalidValue."""

    def retold(self, job: Chat | Complete, prompt: Prompt, answer: ChatMessage) -> str | None:
        """How the next turn's prompt will begin, up to the end of this answer; None: that cannot be known."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def trace(self, spent: Spent, prompt_tokens: int, cached_tokens: int, voice: Voice | None) -> None: ...


class ModelLanguage:
    """The language of a loaded model."""

    def __init__(self, tokenizer: TokenizerWrapper, window: int, *, vocabulary: int, trace_text: bool) -> None:
        """window: tokens of prompt and answer together. vocabulary: width of the logits."""
        self._tokenizer = tokenizer
        self._window = window
        self._vocabulary = vocabulary
        self._trace_text = trace_text
        self.ends = frozenset(int(each) for each in tokenizer.eos_token_ids)
        self._grammars = Grammars(tokenizer, vocabulary, self.ends)

    def render(self, job: Chat | Complete) -> Prompt:
        return prompts.known(prompts.render(self._tokenizer, job, window=self._window), self._vocabulary)

    def room(self, prompt: Prompt, tokens: int, max_tokens: int | None) -> int:
        return prompts.room(tokens, self._window, max_tokens, param=prompt.param)

    def voice(self, generation: Generation, prompt: Prompt, calls: Sequence[str] = ()) -> Voice:
        return Voice(
            self._tokenizer,
            stop=generation.stop,
            thinking=prompt.thinking,
            continues=prompt.continues,
            logprobs=generation.logprobs is not None,
            calling=prompt.calling,
            call_ids=calls,
        )

    def shape(self, shape: Shape) -> Asked:
        return self._grammars.ask(shape)

    def hinted(self, job: Chat | Complete, shape: Shape) -> Chat | Complete:
        return prompts.hinted(job, shape)

    def retold(self, job: Chat | Complete, prompt: Prompt, answer: ChatMessage) -> str | None:
        return prompts.retold(self._tokenizer, job, prompt, answer, self.ends) if isinstance(job, Chat) else None

    def encode(self, text: str) -> Sequence[int]:
        return prompts.encode(self._tokenizer, text)

    def decode(self, ids: Sequence[int]) -> str:
        return prompts.decode(self._tokenizer, ids)

    def trace(self, spent: Spent, prompt_tokens: int, cached_tokens: int, voice: Voice | None) -> None:
        routes = voice.routes if voice is not None else ()
        trace.log(spent, prompt_tokens, cached_tokens, routes, show_text=self._trace_text)
