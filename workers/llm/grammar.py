"""Shapes as llguidance understands them: what can be enforced is compiled, apart from the decode loop, and kept.

Knows grammars and a tokenizer; knows no job. What an answer may say next is guide.py's.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from protocol.errors import InternalError, UnsupportedSchema
from protocol.jobs import Shape
from workers.llm.envelopes import blamed
from workers.llm.names import Spellings
from workers.llm.schemas import has_open_names, unenforceable
from workers.llm.spelling import special_tokens, spelling

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper as ModelTokenizer

MAX_TEXT_BYTES = 256 << 10
"""Of one shape. llguidance takes a second or two for the worst of this size, in a thread of its own."""
MAX_GBNF_BYTES = 32 << 10
"""The time that llguidance's conversion takes grows with the square: half a second for these."""
STACK_BYTES = 512 << 20
"""Of the compiler's thread, and only what is used of it is memory. llguidance follows references by recursion, some
kilobytes of stack for each, and who runs out of it takes the process along: MAX_TEXT_BYTES have 30,000 at most."""
MAX_ENTRIES = 64
MAX_ENTRIES_BYTES = 2 << 20
"""Of all kept shapes' texts in UTF-8. What llguidance holds for each is bounded by its limits."""
TRIED_TOKENS = 24
"""Of some answer, before a shape is taken: what llguidance cannot follow mostly shows in the first ones."""
TRIED_S = 0.1
"""Seconds at most for that."""
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
    spellings: Spellings | None = None
    """Where names beside the declared ones are allowed, which must not be those written otherwise."""


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
        self._texts: TokenTexts | None = None
        self._limits = entries, text_bytes
        self._known: OrderedDict[Shape, tuple[Future[Grammar | str], list[int]]] = OrderedDict()
        self._compiler = _with_deep_stack("grammars")

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
        if self._texts is None:
            self._texts = token_texts(self._model_tokenizer, self._vocabulary, self._ends)
        return compiled(self._texts, shape)


def _with_deep_stack(name: str) -> ThreadPoolExecutor:
    """One thread, which has begun."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        executor = ThreadPoolExecutor(1, name)
        executor.submit(lambda: None)
    finally:
        threading.stack_size(usual)
    return executor


def compiled(texts: TokenTexts, shape: Shape) -> Grammar | str:
    """A text: why it cannot be had."""
    tokenizer = texts.tokenizer
    try:
        text, token = _grammar(texts, shape)
    except (ValueError, RecursionError) as error:
        return _reason(str(error))
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if not matcher.is_error():
        # The first mask is the dearest, and much of what cannot be had shows in it.
        matcher.compute_bitmask()
    tried = matcher if matcher.is_error() else _tried(matcher)
    if tried.is_error():
        return _reason(tried.get_error())
    return Grammar(tokenizer, matcher, shape, token, texts.spellings if _has_open_names(shape) else None)


def _has_open_names(shape: Shape) -> bool:
    return shape.kind == "json" and shape.trigger is None and has_open_names(json.loads(shape.text))


def _tried(matcher: LLMatcher) -> LLMatcher:
    """A copy that has followed the beginning of some answer, or has met what is more than llguidance can follow."""
    begun, copy = time.perf_counter(), matcher.deep_copy()
    for place in range(TRIED_TOKENS):
        copy.compute_ff_tokens()
        # What the forced tokens met may show in the mask only.
        mask = np.frombuffer(copy.compute_bitmask(), np.uint8)
        able = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if copy.is_error() or copy.is_stopped() or not len(able):
            break
        copy.consume_token(int(able[len(able) // 2]))
        # An endless run shows when it is looked for again.
        if copy.is_error() or copy.is_stopped() or (place and time.perf_counter() - begun > TRIED_S):
            break
    return copy


def refused(shape: Shape, reason: str) -> UnsupportedSchema:
    what = "the schema" if shape.kind == "json" else "the grammar"
    if shape.param == "tools" and (found := blamed(shape.text, reason)) is not None:
        what, reason = f"the parameters of {found[0]}", found[1]
    where = f"{shape.param}: " if shape.param else ""
    return UnsupportedSchema(f"{where}{what} cannot be enforced: {reason}", param=shape.param)


@dataclass(frozen=True)
class TokenTexts:
    """A tokenizer as grammars need it. `special`: tokens that are no text, by their spelling."""

    tokenizer: LLTokenizer
    special: Mapping[str, int]
    texts: Sequence[bytes]
    """Of each token."""

    @cached_property
    def spellings(self) -> Spellings:
        """Made for the first shape that needs it."""
        return Spellings(self.texts)


def token_texts(tokenizer: ModelTokenizer, vocabulary: int, ends: Collection[int]) -> TokenTexts:
    """Half a second of work, and GIL enough not to do it while rows decode twice."""
    spelt = _Spelt(tokenizer, vocabulary, ends)
    return TokenTexts(
        LLTokenizer(TokenizerWrapper(spelt), n_vocab=vocabulary, eos_token=sorted(ends)),
        {name: token for token, name in spelt.special.items()},
        spelt.tokens,
    )


class _Spelt:
    """What llguidance asks of a tokenizer. It makes one of a tokenizer.json by itself, but that takes a text that only
    looks like a special token for one, and lets nothing else be said in its place."""

    def __init__(self, tokenizer: ModelTokenizer, vocabulary: int, ends: Collection[int]) -> None:
        spelt = spelling(tokenizer, continues=True)
        self._tokenizer = tokenizer
        self._names = {token: name for name, token in special_tokens(tokenizer).items()}
        self.special = {token: name for token, name in self._names.items() if token < vocabulary}
        self.eos_token_id = min(ends)
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(self.special)
        # Logits may be wider than the tokenizer's vocabulary, or narrower.
        count = min(len(tokenizer), vocabulary)
        self.tokens = [spelt.bytes_of(token) for token in range(count)] + [b""] * (vocabulary - count)

    def __call__(self, text: str | bytes) -> list[int]:
        said = text.decode() if isinstance(text, bytes) else text
        ids = self._ids(said)
        if self._names.keys().isdisjoint(ids):
            return ids
        return [each for token in ids for each in self._spelt_out(token)]

    def _spelt_out(self, token: int) -> list[int]:
        name = self._names.get(token)
        return [token] if name is None else self._ids(name[:1]) + self._ids(name[1:])

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def _grammar(texts: TokenTexts, shape: Shape) -> tuple[str, int | None]:
    """llguidance's own form, and the trigger where that is one special token. Raises ValueError."""
    text = _body(shape)
    if shape.trigger is None:
        return text, None
    if shape.trigger in texts.special:
        return text, texts.special[shape.trigger]
    # llguidance's JSON form begins with a brace, which no grammar in Lark does.
    body = json.loads(text)["grammars"][0] if text.startswith("{") else {"lark_grammar": text}
    head = {"lark_grammar": _HEAD.format(trigger=json.dumps(shape.trigger))}
    return json.dumps({"grammars": [head, {**body, "name": "body"}]}), None


def _body(shape: Shape) -> str:
    match shape.kind:
        case "json":
            if reason := unenforceable(json.loads(shape.text)):
                raise ValueError(reason)
            return LLMatcher.grammar_from_json_schema(shape.text, overrides=OPTIONS)  # type: ignore[arg-type]
        case "regex":
            return LLMatcher.grammar_from_regex(shape.text)
        case "choice":
            choices = json.loads(shape.text)
            if not choices:
                raise ValueError("there is nothing to choose from")
            # As one terminal: of rules the parser would have to follow each by itself, and not many thousands.
            said = " | ".join(json.dumps(each) for each in choices)
            return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {said}")
        case "lark":
            if shape.text.lstrip().startswith("{"):
                raise ValueError("a grammar is written in Lark or GBNF")
            if "::=" not in shape.text:
                return LLMatcher.grammar_from_lark(shape.text)
            # GBNF: Lark has no such sign.
            if _size(shape) > MAX_GBNF_BYTES:
                raise ValueError(f"it has {_size(shape)} bytes, and {MAX_GBNF_BYTES} are the most in GBNF")
            return grammar_from("gbnf", shape.text)


def _reason(error: str) -> str:
    """What llguidance says first, in one line."""
    lines = [line.strip() for line in error.replace("<regex>", "").splitlines() if line.strip()]
    if not lines:
        raise InternalError("a grammar was refused without a reason")
    said = lines[0]
    if said == "NoExtensionBias":
        return "there is no text that has this shape"
    # The regex crate draws a picture first and says what is wrong last.
    told = [line for line in lines if line.startswith("error:")]
    return (f"{said} {told[0].removeprefix('error:').strip()}" if told else said)[:REASON]


def _size(shape: Shape) -> int:
    return len(shape.text.encode("utf-8", "surrogatepass")) + len((shape.trigger or "").encode())
