"""One attempt at one window: which tokens the model says at one temperature. Greedy, sampled or by beams.

Resumable: `wants` names the tokens to feed, `feed` takes the logits. Knows rows, filters and the tokenizer;
runs no model and knows no other window.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workers.whisper.decoding.filters import Filters, log_normaliser
from workers.whisper.decoding.sampling import Sampler
from workers.whisper.needs import Floats, Ints
from workers.whisper.tokenizer import Tokenizer

if TYPE_CHECKING:
    from workers.whisper.model import Rows


LONGEST_PROPOSAL = 128
"""Tokens: each brings a row of logits, 0.2 MB."""


@dataclass
class Hypothesis:
    """A row: what was sampled after the prompt, and each token's log-probability under the filtered distribution."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sum_logprob: float = 0.0

    def extended(self, token: int, logprob: float) -> Hypothesis:
        return Hypothesis([*self.tokens, token], [*self.logprobs, logprob], self.sum_logprob + logprob)

    def append(self, token: int, logprob: float) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.sum_logprob += logprob


@dataclass(frozen=True)
class Result:
    """What an attempt came to. `tokens` are without the end of text; `logprobs` has one for each of them."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float
    avg_logprob: float
    """Over the tokens and the end of text."""
    no_speech_prob: float
    compression_ratio: float


@dataclass(frozen=True)
class Strategy:
    """How one attempt chooses: beams at temperature 0, best_of samples above it."""

    temperature: float = 0.0
    beam_size: int = 1
    patience: float = 1.0
    best_of: int = 1
    length_penalty: float | None = None


@dataclass(frozen=True)
class Proposal:
    """Tokens that one row will probably say: read in a single pass and then checked, instead of fed one by one."""

    tokens: tuple[int, ...] = ()
    forced: int = 0
    """So many of them are said in any case."""

    def within(self, limits: Limits, prompt_tokens: int, vocabulary: int, eot: int) -> Proposal:
        """The part that an attempt can say; `vocabulary`: how many tokens the model has."""
        tokens = tuple(takewhile(lambda token: 0 <= token < vocabulary and token != eot, self.tokens))
        room = max(0, limits.after(prompt_tokens) - 1)
        tokens = tokens[: min(room, max(self.forced, LONGEST_PROPOSAL))]
        return Proposal(tokens, min(self.forced, len(tokens)))


@dataclass(frozen=True)
class Limits:
    """Where an attempt must stop: sampled tokens, and tokens in all, of which the last is not fed."""

    sampled: int
    context: int

    def after(self, prompt_tokens: int) -> int:
        """Tokens to sample at most. mlx-whisper and openai/whisper sample once more after the context is full: the
        last token is never fed."""
        return min(self.sampled, self.context + 1 - prompt_tokens)


class Search:
    """The way from logits to the next rows. Subclasses choose; this holds what they share."""

    follows_drafts = False
    """Whether it is a single row, which can be ahead of its choices and go back."""

    def __init__(self, rows: Rows, eot: int) -> None:
        self.rows = rows
        self.eot = eot
        self.live: list[Hypothesis] = [Hypothesis()]
        """One for each of `rows`, in order; `rows` may still have a single row for all of them at the start."""
        self.ended: list[Hypothesis] = []

    def advance(self, logits: Floats, normaliser: npt.NDArray[np.float64]) -> None:
        """logits: (live rows, vocab), filtered. Extends the rows and sorts out those that ended."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        return not self.live

    def candidates(self) -> list[Hypothesis]:
        """What to choose the result from. Tokens may end with eot."""
        return self.ended + self.live


class Independent(Search):
    """`n` rows that know nothing of each other: one, greedy, or best_of samples. A row that ends leaves at once."""

    def __init__(self, rows: Rows, eot: int, n: int, sampler: Sampler) -> None:
        super().__init__(rows, eot)
        self._sampler = sampler
        self._numbers = list(range(n))
        """Which sample each live row is: its random numbers depend on that, not on its place."""
        self.live = [Hypothesis() for _ in range(n)]
        self._ended: dict[int, Hypothesis] = {}
        self.follows_drafts = n == 1

    def advance(self, logits: Floats, normaliser: npt.NDArray[np.float64]) -> None:
        expanded = len(logits) == len(self.live)
        keep: list[int] = []
        for place, (number, row) in enumerate(zip(self._numbers, self.live, strict=True)):
            source = place if expanded else 0  # At first all samples share the prompt's row.
            token = self._sampler.choose(logits[source], number, len(row.tokens))
            row.append(token, float(logits[source, token] - normaliser[source]))
            if token == self.eot:
                self._ended[number] = row
            else:
                keep.append(place)
        sources = keep if expanded else [0] * len(keep)
        if keep and sources != list(range(self.rows.n)):
            self.rows.select(sources)
        self.live = [self.live[place] for place in keep]
        self._numbers = [self._numbers[place] for place in keep]

    def candidates(self) -> list[Hypothesis]:
        found = self._ended | dict(zip(self._numbers, self.live, strict=True))
        return [found[number] for number in sorted(found)]


class Beams(Search):
    """openai/whisper's beam search: the `size` best unfinished rows go on until size * patience have ended."""

    def __init__(self, rows: Rows, eot: int, size: int, patience: float) -> None:
        super().__init__(rows, eot)
        self._size = size
        self._wanted = round(size * patience)

    def advance(self, logits: Floats, normaliser: npt.NDArray[np.float64]) -> None:
        ranked = self._rank(logits, normaliser)
        live: list[tuple[int, Hypothesis]] = []
        for source, token, logprob in ranked:
            longer = self.live[source].extended(token, logprob)
            if token != self.eot:
                live.append((source, longer))
                if len(live) == self._size:
                    break
            elif len(self.ended) < self._wanted:
                self.ended.append(longer)
        if len(self.ended) >= self._wanted:
            live = []
        self.live = [row for _, row in live]
        sources = [source for source, _ in live]
        if sources and sources != list(range(self.rows.n)):
            self.rows.select(sources)

    def _rank(self, logits: Floats, normaliser: npt.NDArray[np.float64]) -> list[tuple[int, int, float]]:
        """Each row's size + 1 best continuations, all rows' together by total score: (row, token, logprob)."""
        found: list[tuple[float, int, int, float]] = []
        width = min(self._size + 1, logits.shape[1])
        for source, (row, line) in enumerate(zip(self.live, logits, strict=True)):
            best = np.argpartition(line, -width)[-width:]
            for token in best[np.lexsort((best, -line[best]))].tolist():
                logprob = float(line[token] - normaliser[source])
                if logprob > -np.inf:
                    found.append((row.sum_logprob + logprob, source, token, logprob))
        found.sort(key=lambda item: -item[0])
        return [(source, token, logprob) for _, source, token, logprob in found]

    def candidates(self) -> list[Hypothesis]:
        """Those that ended, filled up with the best that did not."""
        spare = sorted(self.live, key=lambda row: -row.sum_logprob)
        return self.ended + spare[: max(0, self._size - len(self.ended))]


class Attempt:
    """Drives a search to its end. `prompt` is the whole prefix, fed before; its logits are the first `feed`."""

    def __init__(
        self,
        search: Search,
        filters: Filters,
        limits: Limits,
        prompt_tokens: int,
        length_penalty: float | None = None,
        past: tuple[int, ...] = (),
    ) -> None:
        """`past`: the end of the prompt, where the filters count it as said."""
        self.search = search
        self._filters = filters
        self._past = past
        self._most = limits.after(prompt_tokens)
        self._length_penalty = length_penalty
        self._sampled = 0

    def wants(self) -> Ints | None:
        """One token for each of the search's rows; None when the attempt is over."""
        if self.search.complete or self._sampled >= self._most:
            return None
        return np.array([row.tokens[-1] for row in self.search.live], np.int64)

    def draft(self) -> tuple[int, ...]:
        """What the row will probably say behind the token it wants fed: where a segment ends, the next one begins.
        To be fed with that token and answered by `follow`: two tokens at once cost little more than one."""
        if not self.search.follows_drafts or self._sampled + 1 >= self._most:
            return ()
        next_start = self._filters.next_start(self.search.live[0].tokens)
        return () if next_start is None else (next_start,)

    def feed(self, logits: Floats) -> None:
        """logits: (rows, vocab), raw; with the prompt's, (1, vocab) whatever the number of rows."""
        said = [(*self._past, *row.tokens) if self._past else row.tokens for row in self.search.live[: len(logits)]]
        filtered = self._filters.apply(logits, said)
        self.search.advance(filtered, log_normaliser(filtered))
        self._sampled += 1

    def follow(self, logits: Floats, proposal: Proposal) -> int:
        """logits: (1 + proposed, vocab), behind the prompt and behind each proposed token, of a single row. Says what
        they say, and of the proposal what agrees. -> how many of its tokens were said; what it says next is not fed.
        """
        for i, token in enumerate(proposal.tokens):
            if i < proposal.forced:
                self._say(token, logits[i])
                continue
            self.feed(logits[i : i + 1])
            if self.wants() is None or self.search.live[0].tokens[-1] != token:
                return i
        self.feed(logits[-1:])
        return len(proposal.tokens)

    def _say(self, token: int, logits: Floats) -> None:
        """A token that is not the row's choice; no rule forbids it."""
        self.search.live[0].append(token, float(logits[token] - log_normaliser(logits[None])[0]))
        self._sampled += 1

    def best(self) -> Hypothesis:
        """The likeliest candidate for its length, its end of text cut off (but still in sum_logprob)."""
        found = [_without_end(row, self.search.eot) for row in self.search.candidates()]
        return max(found, key=lambda row: row.sum_logprob / self._penalty(len(row.tokens)))

    def _penalty(self, length: int) -> float:
        """Google's GNMT length penalty (arXiv:1609.08144), or the plain length."""
        if self._length_penalty is None:
            return max(1, length)
        return float(((5 + length) / 6) ** self._length_penalty)

    def ratio(self, tokenizer: Tokenizer) -> float:
        """The compression ratio of the best candidate so far."""
        return compression_ratio(tokenizer.decode(self.best().tokens).strip())

    def result(self, tokenizer: Tokenizer, temperature: float, no_speech_prob: float) -> Result:
        row = self.best()
        return Result(
            tokens=tuple(row.tokens),
            logprobs=tuple(row.logprobs),
            temperature=temperature,
            avg_logprob=row.sum_logprob / (len(row.tokens) + 1),
            no_speech_prob=no_speech_prob,
            compression_ratio=self.ratio(tokenizer),
        )


def compression_ratio(text: str) -> float:
    """Bytes of the text for each byte of it compressed; loops compress well."""
    data = text.encode(errors="replace")
    return len(data) / len(zlib.compress(data))


def probability(logits: Floats, token: int) -> float:
    """Softmax of one row of raw logits, (vocab,), at `token`."""
    return float(np.exp(logits[token] - log_normaliser(logits[None])[0]))


def _without_end(row: Hypothesis, eot: int) -> Hypothesis:
    if row.tokens and row.tokens[-1] == eot:
        return Hypothesis(row.tokens[:-1], row.logprobs[:-1], row.sum_logprob)
    return row


def begin(
    rows: Rows,
    *,
    tokenizer: Tokenizer,
    filters: Filters,
    limits: Limits,
    prompt: Sequence[int],
    how: Strategy,
    key: tuple[int, ...],
    past: tuple[int, ...] = (),
) -> Attempt:
    """An attempt over `rows`, one row prefilled with `prompt`; `past`: the end of it that counts as said. `key`: what
    its random numbers depend on."""
    search: Search
    if how.temperature == 0 and how.beam_size > 1:
        search = Beams(rows, tokenizer.eot, how.beam_size, how.patience)
    else:
        n = how.best_of if how.temperature > 0 else 1
        search = Independent(rows, tokenizer.eot, n, Sampler(how.temperature, key))
    return Attempt(search, filters, limits, len(prompt), how.length_penalty, past)
