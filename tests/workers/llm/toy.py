"""A language model of two random layers, a language in which a token is a character, and a driver without a process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from protocol.errors import Failure, InvalidRequest
from protocol.events import ChoiceEnded, Delta, Event, Failed, Generated, Mounted, Ready, Said, Spent, Started
from protocol.jobs import Chat, ChatMessage, Complete, Generation, Job, Sampling, Shape
from protocol.tools import CallPart
from workers.llm.engine import Handle, LlmEngine

VOCABULARY = 80
END = 1
WINDOW = 400
FIRST = 48
"""The character of token 0."""


def network(seed: int = 0, *, layers: int = 2, vocabulary: int = VOCABULARY) -> Any:
    """mlx-lm's Llama with random weights, always the same ones, sharp enough that greedy texts have no ties."""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path
    from mlx_lm.models.llama import Model, ModelArgs

    mx.random.seed(seed)
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=32,
            num_hidden_layers=layers,
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=vocabulary,
            tie_word_embeddings=False,
        )
    )
    model.update(tree_map_with_path(lambda name, value: value if "norm" in name else 3 * value, model.parameters()))
    mx.eval(model.parameters())
    return model


@dataclass(frozen=True)
class ToyPrompt:
    ids: tuple[int, ...]
    text: str | None
    thinking: bool = False
    echo: str = ""
    shape: Shape | None = None
    literal: bool = False
    calling: None = None


@dataclass(frozen=True)
class ToyPiece:
    text: str = ""
    reasoning: str = ""
    said: tuple[Said, ...] = ()
    calls: tuple[CallPart, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.said)


class ToyVoice:
    """One character for each token; stops at the first of `stop`."""

    reasoning_tokens = 0
    called = enough = reasoning = False
    settled = True
    opening: int | None = None
    routes: tuple[Any, ...] = ()

    def __init__(self, stop: tuple[str, ...], logprobs: bool) -> None:
        self.stopped: str | None = None
        self._stop = stop
        self._logprobs = logprobs

    def feed(self, token: int, logprob: float = 0.0, likeliest: Sequence[tuple[int, float]] = ()) -> ToyPiece:
        text = chr(FIRST + token)
        if text in self._stop:
            self.stopped = text
            return ToyPiece()
        said = (Said(token=text, bytes=text.encode(), logprob=logprob),) if self._logprobs else ()
        return ToyPiece(text=text, said=said)

    def end(self, *, cut: bool = False) -> ToyPiece:
        return ToyPiece()


class ToyLanguage:
    """Each character of a message is a token; a message ends with token 2. A "!" is refused."""

    def __init__(self, ends: frozenset[int] = frozenset({END})) -> None:
        self.ends = ends
        self.traced: list[Spent] = []
        self.explode = False
        self.shapes: Any = None
        """What `shaped` gives it."""

    def render(self, job: Chat | Complete) -> ToyPrompt:
        if self.explode:
            raise ZeroDivisionError
        if isinstance(job, Complete) and not isinstance(job.prompt, str):
            return ToyPrompt(job.prompt, None)
        text = job.prompt if isinstance(job, Complete) else "2".join(each.content for each in job.messages) + "2"
        assert isinstance(text, str)
        if "!" in text:
            raise InvalidRequest("no shouting")
        return ToyPrompt(tuple(self.encode(text)), text, echo=text if isinstance(job, Complete) and job.echo else "")

    def room(self, prompt: ToyPrompt, tokens: int, max_tokens: int | None) -> int:
        if tokens >= WINDOW:
            raise InvalidRequest("too long")
        return min(max_tokens or WINDOW, WINDOW - tokens)

    def voice(self, generation: Generation, prompt: ToyPrompt, calls: Sequence[str] = ()) -> ToyVoice:
        return ToyVoice(generation.stop, generation.logprobs is not None)

    def shape(self, shape: Shape) -> Any:
        return self.shapes.ask(shape)

    def hinted(self, job: Chat | Complete, shape: Shape) -> Chat | Complete:
        assert isinstance(job, Complete) and isinstance(job.prompt, str)
        return msgspec.structs.replace(job, prompt="hint:" + job.prompt)

    def retold(self, job: Chat | Complete, prompt: ToyPrompt, answer: ChatMessage) -> str | None:
        return None

    def encode(self, text: str) -> list[int]:
        return [ord(each) - FIRST for each in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(FIRST + each) for each in ids)

    def trace(self, spent: Spent, prompt_tokens: int, cached_tokens: int, voice: ToyVoice | None) -> None:
        self.traced.append(spent)


class ToyTokenizer:
    """As much of a tokenizer as grammars need."""

    bos_token_id = None

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        from tokenizers import AddedToken

        return {END: AddedToken(chr(FIRST + END), special=True)}

    def __len__(self) -> int:
        return VOCABULARY

    def convert_ids_to_tokens(self, token: int) -> str:
        return chr(FIRST + token)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(each) - FIRST for each in text]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(FIRST + each) for each in ids)


def shaped(language: ToyLanguage) -> ToyLanguage:
    """A language that knows shapes. Its letters are those from "0" to DEL; "1" ends a text."""
    from workers.llm.grammar import Grammars

    language.shapes = Grammars(ToyTokenizer(), VOCABULARY, [END])  # type: ignore[arg-type]
    return language


@dataclass
class Asked:
    """One job and what came of it."""

    events: list[Event] = field(default_factory=list)
    handle: Handle | None = None

    def text(self, choice: int = 0) -> str:
        return "".join(each.text for each in self.events if isinstance(each, Delta) and each.choice == choice)

    @property
    def started(self) -> Started:
        return next(each for each in self.events if isinstance(each, Started))

    @property
    def ended(self) -> list[ChoiceEnded]:
        return [each for each in self.events if isinstance(each, ChoiceEnded)]

    @property
    def over(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Generated | Mounted | Failed)

    @property
    def last(self) -> Event:
        return self.events[-1]


class Driver:
    """An engine and its jobs, stepped by hand."""

    def __init__(
        self,
        model: Any,
        language: Any = None,
        *,
        cache_bytes: int = 64 << 20,
        max_rows: int = 16,
        padding_bytes: int = 1 << 30,
        head: Any = None,
        vocabulary: int = VOCABULARY,
        default_adapter: str = "",
        **options: Any,
    ) -> None:
        from workers.llm.adapters.mounts import Mounts
        from workers.llm.cache import PromptCache
        from workers.llm.seats import Beginnings, Seats

        self.language = language or ToyLanguage()
        self.cache = PromptCache(cache_bytes)
        self.mounts = Mounts(model, default=default_adapter, gone=self.cache.forget)
        self.seats = Seats(model, head, padding_bytes=padding_bytes, serving=self.mounts.serving)
        self.engine = LlmEngine(
            self.seats,
            Beginnings(self.cache, self.seats),
            self.language,
            self.mounts,
            Ready(capacity=64),
            vocabulary=vocabulary,
            max_rows=max_rows,
            **options,
        )

    def ask(self, job: Job) -> Asked:
        asked = Asked()
        try:
            asked.handle = self.engine.admit(job, asked.events.append)
        except Failure as refusal:
            from workers.loop import failed

            asked.events.append(failed(refusal))
        return asked

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.engine.step()

    def run(self, until: Callable[[], bool] | None = None) -> None:
        for _ in range(5000):
            if not self.engine.busy or (until is not None and until()):
                return
            self.engine.step()
        raise AssertionError("the engine does not come to an end")

    def answer(self, job: Job) -> Asked:
        asked = self.ask(job)
        self.run()
        return asked


def complete(prompt: str | tuple[int, ...], *, tokens: int = 12, temperature: float = 0.0, **fields: Any) -> Complete:
    """A job at temperature 0 unless told otherwise. Fields of Sampling and Generation alike."""
    echo = bool(fields.pop("echo", False))
    return Complete(prompt, generation(tokens, temperature, fields), echo=echo)


def chat(*texts: str, tokens: int = 12, temperature: float = 0.0, **fields: Any) -> Chat:
    roles = ("user", "assistant")
    messages = tuple(ChatMessage(role=roles[place % 2], content=text) for place, text in enumerate(texts))
    return Chat(messages, generation(tokens, temperature, fields))


def generation(tokens: int, temperature: float, fields: dict[str, Any]) -> Generation:
    sampling = {name: value for name, value in fields.items() if name in Sampling.__struct_fields__}
    others = {name: value for name, value in fields.items() if name not in sampling}
    return Generation(sampling=Sampling(temperature=temperature, **sampling), max_tokens=tokens, **others)
