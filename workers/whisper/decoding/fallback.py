"""One encoded window through the ladder of temperatures, and the tests that send it up. Knows no other window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from protocol.jobs import Decoding
from workers.whisper.decoding.attempt import Limits, Proposal, Result, Strategy, begin, probability
from workers.whisper.decoding.filters import Filters
from workers.whisper.needs import Dims, Prefill, Step, Steps
from workers.whisper.tokenizer import Tokenizer

if TYPE_CHECKING:
    from workers.whisper.model import Encoded

NOTHING = Proposal()
LOOPS = 2.4
"""A compression ratio above this is a loop (openai/whisper's default threshold)."""


class Kit:
    """What all jobs of one model share. Immutable."""

    def __init__(self, dims: Dims, *, ascending: bool = True) -> None:
        """`ascending`: see Filters."""
        self.dims = dims
        self.tokenizer = Tokenizer(dims.n_vocab)
        self._timed = Filters(self.tokenizer, dims.n_vocab, ascending=ascending)
        self._untimed = Filters(self.tokenizer, dims.n_vocab, timestamps=False)
        self.limits = Limits(sampled=dims.n_text_ctx // 2, context=dims.n_text_ctx)
        self.prompt_budget = dims.n_text_ctx // 2 - 1
        """Tokens before the start of the transcript, the mark of a prompt not counted: 223."""

    def filters(self, *, timestamps: bool) -> Filters:
        return self._timed if timestamps else self._untimed


@dataclass(frozen=True)
class Prompt:
    """The tokens that a window's decoding starts from."""

    tokens: tuple[int, ...]
    sot: int
    """Where the start of the transcript stands; the no-speech probability is read behind it."""
    past: tuple[int, ...] = ()
    """The end of `tokens` that is the window's text already: the rules count it, results do not have it."""


def failed(result: Result, decoding: Decoding) -> bool:
    """Whether a higher temperature should try; not where there probably is no speech at all."""
    silent = decoding.no_speech_threshold is not None and result.no_speech_prob > decoding.no_speech_threshold
    return (repetitive(result, decoding) or improbable(result, decoding)) and not silent


def repetitive(result: Result, decoding: Decoding) -> bool:
    limit = decoding.compression_ratio_threshold
    return limit is not None and result.compression_ratio > limit


def improbable(result: Result, decoding: Decoding) -> bool:
    return decoding.logprob_threshold is not None and result.avg_logprob < decoding.logprob_threshold


def is_silence(result: Result, decoding: Decoding) -> bool:
    """The reference's rule: no speech is likely and the text is not."""
    if decoding.no_speech_threshold is None or result.no_speech_prob <= decoding.no_speech_threshold:
        return False
    return decoding.logprob_threshold is None or result.avg_logprob <= decoding.logprob_threshold


def is_doubtful(result: Result, decoding: Decoding) -> bool:
    """The silence rule's question is asked for these (API.md)."""
    unheard = decoding.no_speech_threshold is not None and result.no_speech_prob > decoding.no_speech_threshold
    return unheard or repetitive(result, decoding) or improbable(result, decoding)


def decode_window(
    kit: Kit,
    decoding: Decoding,
    encoded: Encoded,
    prompt: Prompt,
    key: tuple[int, ...],
    proposal: Proposal = NOTHING,
    *,
    guard: bool,
    limits: Limits | None = None,
) -> Steps[Result | None]:
    """The first result that passes, or the last. `guard`: None as soon as the first attempt loops; the caller then
    comes again with the full context. The proposal is for the first attempt. `limits`: the kit's, if none."""
    result: Result | None = None
    for temperature in decoding.temperature:
        strategy = strategy_of(decoding, temperature)
        following = proposal if temperature == 0 and is_single(strategy) else NOTHING
        result = yield from attempt(
            kit, decoding, encoded, prompt, strategy, key, following, limits=limits, loops=not guard
        )
        proposal = NOTHING
        if guard and result.compression_ratio > LOOPS:
            return None
        guard = False
        if not failed(result, decoding):
            break
    assert result is not None
    return result


def is_single(strategy: Strategy) -> bool:
    """Whether one row tries alone; only that can follow a proposal."""
    return (strategy.beam_size if strategy.temperature == 0 else strategy.best_of) == 1


def strategy_of(decoding: Decoding, temperature: float) -> Strategy:
    return Strategy(temperature, decoding.beam_size, decoding.patience, decoding.best_of, decoding.length_penalty)


def attempt(
    kit: Kit,
    decoding: Decoding,
    encoded: Encoded,
    prompt: Prompt,
    strategy: Strategy,
    key: tuple[int, ...],
    proposal: Proposal = NOTHING,
    *,
    limits: Limits | None = None,
    loops: bool = True,
) -> Steps[Result]:
    """One temperature, from the prompt to the end of text. A proposal is for a single row. `limits`: the kit's, if
    none; `loops`: whether to go on in one."""
    limits = limits or kit.limits
    length = len(prompt.tokens)
    filters = kit.filters(timestamps=not decoding.without_timestamps)
    if not proposal.tokens and is_single(strategy) and (first := filters.next_start(())) is not None:
        proposal = Proposal((first,))
    proposal = proposal.within(limits, length, kit.dims.n_vocab, kit.tokenizer.eot)
    at = (prompt.sot, *range(length - 1, length + len(proposal.tokens)))
    rows, logits = yield Prefill(encoded, (*prompt.tokens, *proposal.tokens), at)
    no_speech = probability(logits[0], kit.tokenizer.no_speech)
    tried = begin(
        rows,
        tokenizer=kit.tokenizer,
        filters=filters,
        limits=limits,
        prompt=prompt.tokens,
        how=strategy,
        key=key,
        past=prompt.past,
    )
    rows.truncate(length + tried.follow(logits[1:], proposal))
    while (tokens := tried.wants()) is not None and (loops or tried.ratio(kit.tokenizer) <= LOOPS):
        if draft := tried.draft():
            logits = yield Step(rows, np.array([[*tokens, *draft]]))
            rows.truncate(rows.position - len(draft) + tried.follow(logits, Proposal(draft)))
        else:
            tried.feed((yield Step(rows, tokens)))
    return tried.result(kit.tokenizer, strategy.temperature, no_speech)
