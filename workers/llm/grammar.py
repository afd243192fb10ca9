"""Shapes as llguidance understands them: what can be enforced is compiled, apart from the decode loop, and kept.

Knows grammars and a tokenizer; knows no job. What an answer may say next is guide.py's.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from protocol.errors import InternalError, UnsupportedSchema
from protocol.jobs import Shape
from workers.llm.spelling import spelling

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper as ModelTokenizer

MAX_TEXT_BYTES = 256 << 10
"""Of one shape. llguidance takes a second or two for the worst of this size, in a thread of its own."""
MAX_ENTRIES = 64
MAX_ENTRIES_BYTES = 2 << 20
"""Of all kept shapes' texts in UTF-8. What llguidance holds for each is bounded by its limits."""
REASON = 300
"""Characters of llguidance's complaint that are told."""

OPTIONS: dict[str, Any] = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}
"""No white space between JSON's tokens: a model cannot lose itself in it, and more of an answer is forced. What cannot
be enforced is refused. A schema's own "x-guidance" may choose other separators, and no more."""

_HEAD = """start: head @body
head[lazy]: TEXT {trigger}
TEXT: /(.|\\n)*/
"""


@dataclass(frozen=True)
class Grammar:
    """A compiled shape. `matcher` is at its start and never moves: each answer has a copy."""

    tokenizer: LLTokenizer
    matcher: LLMatcher
    shape: Shape
    trigger_token: int | None = None
    """Where the trigger is one special token, which no text can be: then `matcher` begins after it."""


class Asked:
    """A shape that somebody waits for."""

    def __init__(self, shape: Shape, future: Future[Grammar | str], waiting: list[int]) -> None:
        """waiting: how many wait for the same one."""
        self.shape = shape
        self._future = future
        self._waiting = waiting
        waiting[0] += 1

    @property
    def done(self) -> bool:
        return self._future.done()

    def wait(self, seconds: float) -> None:
        """Until it is done, or that long."""
        try:
            self._future.exception(seconds)
        except TimeoutError:
            return

    def grammar(self) -> Grammar:
        """Raises UnsupportedSchema for what is wrong or cannot be enforced; call it when it is done."""
        found = self._future.result(0)
        if isinstance(found, str):
            raise refused(self.shape, found)
        return found

    def leave(self) -> None:
        """Nobody waits any more; what nobody waits for is not begun."""
        self._waiting[0] -= 1
        if not self._waiting[0]:
            self._future.cancel()


class Grammars:
    """All shapes of one model. Only one thread calls it; another compiles."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        vocabulary: int,
        ends: Collection[int],
        *,
        entries: int = MAX_ENTRIES,
        text_bytes: int = MAX_ENTRIES_BYTES,
    ) -> None:
        """vocabulary: width of the logits. ends: tokens that end a text."""
        self._model_tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = sorted(ends)
        self._tokenizer: LLTokenizer | None = None
        self._limits = entries, text_bytes
        self._known: OrderedDict[Shape, tuple[Future[Grammar | str], list[int]]] = OrderedDict()
        self._compiler = ThreadPoolExecutor(1, "grammars")

    def __len__(self) -> int:
        return len(self._known)

    def ask(self, shape: Shape) -> Asked:
        """At once; the grammar is there when it is done. Raises UnsupportedSchema for one that is too long."""
        size = _size(shape)
        if size > MAX_TEXT_BYTES:
            raise refused(shape, f"it has {size} bytes, and {MAX_TEXT_BYTES} are the most that is compiled")
        found = self._known.pop(shape, None)
        if found is None or found[0].cancelled():
            found = self._compiler.submit(self._compile, shape), [0]
        self._known[shape] = found
        self._evict()
        return Asked(shape, *found)

    def _evict(self) -> None:
        entries, text_bytes = self._limits
        while len(self._known) > 1 and (len(self._known) > entries or sum(map(_size, self._known)) > text_bytes):
            self._known.popitem(last=False)

    def _compile(self, shape: Shape) -> Grammar | str:
        """In the compiler's thread. A text: why it cannot be had."""
        if self._tokenizer is None:
            self._tokenizer = token_texts(self._model_tokenizer, self._vocabulary, self._ends)
        return compiled(self._tokenizer, shape)


def compiled(tokenizer: LLTokenizer, shape: Shape) -> Grammar | str:
    """A text: why it cannot be had."""
    try:
        text, token = _grammar(tokenizer, shape)
    except (ValueError, RecursionError) as error:
        return _reason(str(error))
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if not matcher.is_error():
        # The first mask is the dearest, and what cannot be had shows in it.
        matcher.compute_bitmask()
    if matcher.is_error():
        return _reason(matcher.get_error())
    return Grammar(tokenizer, matcher, shape, token)


def refused(shape: Shape, reason: str) -> UnsupportedSchema:
    what = "the schema" if shape.kind == "json" else "the grammar"
    where = f"{shape.param}: " if shape.param else ""
    return UnsupportedSchema(f"{where}{what} cannot be enforced: {reason}", param=shape.param)


def token_texts(tokenizer: ModelTokenizer, vocabulary: int, ends: Collection[int]) -> LLTokenizer:
    """The tokenizer as llguidance needs it. A second of work, and GIL enough not to do it while rows decode twice."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return LLTokenizer(backend.to_str(), n_vocab=vocabulary, eos_token=sorted(ends))
    return LLTokenizer(TokenizerWrapper(_Spelt(tokenizer, ends)), n_vocab=vocabulary, eos_token=sorted(ends))


class _Spelt:
    """What llguidance asks of a tokenizer that is no tokenizer.json's."""

    def __init__(self, tokenizer: ModelTokenizer, ends: Collection[int]) -> None:
        spelt = spelling(tokenizer, continues=True)
        self._tokenizer = tokenizer
        self.eos_token_id = min(ends)
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = [int(each) for each in tokenizer.all_special_ids]
        self.tokens = [spelt.bytes_of(token) for token in range(len(tokenizer))]

    def __call__(self, text: str | bytes) -> list[int]:
        said = text.decode() if isinstance(text, bytes) else text
        ids: list[int] = self._tokenizer.encode(said, add_special_tokens=False)
        return ids


def _grammar(tokenizer: LLTokenizer, shape: Shape) -> tuple[str, int | None]:
    """llguidance's own form, and the trigger where that is one special token. Raises ValueError."""
    text = _body(shape)
    if shape.trigger is None:
        return text, None
    ids = tokenizer.tokenize_str(shape.trigger, parse_special=True)
    if len(ids) == 1 and tokenizer.is_special_token(ids[0]):
        return text, ids[0]
    # llguidance's JSON form begins with a brace, which no grammar in Lark does.
    body = json.loads(text)["grammars"][0] if text.startswith("{") else {"lark_grammar": text}
    head = {"lark_grammar": _HEAD.format(trigger=json.dumps(shape.trigger))}
    return json.dumps({"grammars": [head, {**body, "name": "body"}]}), None


def _body(shape: Shape) -> str:
    match shape.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(shape.text, overrides=OPTIONS)  # type: ignore[arg-type]
        case "regex":
            return LLMatcher.grammar_from_regex(shape.text)
        case "choice":
            if not json.loads(shape.text):
                raise ValueError("there is nothing to choose from")
            return grammar_from("choice", shape.text)
        case "lark":
            if shape.text.lstrip().startswith("{"):
                raise ValueError("a grammar is written in Lark or GBNF")
            return grammar_from("grammar", shape.text)


def _reason(error: str) -> str:
    """What llguidance says first, in one line."""
    lines = [line.strip() for line in error.replace("<regex>", "").splitlines() if line.strip()]
    if not lines:
        raise InternalError("a grammar was refused without a reason")
    said = lines[0]
    # The regex crate draws a picture first and says what is wrong last.
    told = [line for line in lines if line.startswith("error:")]
    return (f"{said} {told[0].removeprefix('error:').strip()}" if told else said)[:REASON]


def _size(shape: Shape) -> int:
    return len(shape.text.encode("utf-8", "surrogatepass")) + len((shape.trigger or "").encode())
