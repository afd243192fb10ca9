"""One answer's place in its grammar: which tokens it may say next, and which it must.

Knows a grammar and tokens; knows neither rows nor logits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from protocol.errors import UnsupportedSchema
from workers.llm.grammar import Grammar, refused
from workers.llm.names import Writing

Allowed = npt.NDArray[np.bool_]
"""(vocabulary,): True for a token that may come next."""


class Guide:
    """From the first token of an answer on, or, behind a trigger, from each time that it is said."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._words = np.zeros(-(-grammar.tokenizer.vocab_size // 32), np.int32)
        trigger = grammar.shape.trigger
        self._trigger = b"" if trigger is None else trigger.encode()
        self._matcher: LLMatcher | None = None if self._trigger else grammar.matcher.deep_copy()
        self._recent: list[int] = []
        """Tokens that the trigger may begin in."""
        self._writing = None if grammar.spellings is None else Writing(grammar.spellings)
        self._opened = not self._trigger
        """The trigger has been said, or there is none."""
        self.over = False
        """The shape is complete and nothing may follow, not even an end of text."""

    @property
    def free(self) -> bool:
        """Any token may come next."""
        return self._matcher is None

    def allowed(self) -> Allowed | None:
        """None: any token. An end of text is among them where the shape may end. Raises UnsupportedSchema when the
        grammar turns out to be more than llguidance can follow."""
        if self._matcher is None:
            return None
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check()
        if not self._words.any():
            raise self._lost("no token fits")
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        allowed: Allowed = bits[: self._grammar.tokenizer.vocab_size].view(np.bool_)
        if self._writing is not None:
            self._writing.narrow(allowed)
            if not allowed.any():
                raise self._lost("no token fits")
        return allowed if self._opened else self._outside(allowed)

    def may(self, token: int) -> bool:
        """Whether it is certain, without a mask, that this token, no end of text, may come next."""
        if self._matcher is None or not self._opened or self.over:
            return False
        fits = self._matcher.validate_tokens([token]) == 1
        self._check()
        return fits and self._written([token]) == 1

    def forced(self) -> list[int]:
        """Tokens that come next whatever the model would say; they are to be taken too."""
        if self._matcher is None or not self._opened or self.over:
            return []
        found = self._matcher.compute_ff_tokens()
        self._check()
        return found

    def fits(self, tokens: list[int]) -> int:
        """How many of these tokens could be said now, one after the other."""
        if self._matcher is None or not self._opened:
            return len(tokens)
        return 0 if self.over else self._written(tokens[: self._matcher.validate_tokens(tokens)])

    def take(self, token: int) -> None:
        """The answer says this token, no end of text. Raises UnsupportedSchema where the shape has no place for it."""
        if not self._opened:
            self._look_for_trigger(token)
            return
        if self._matcher is None:
            return
        if not self._matcher.consume_token(token):
            self._check()
        if self._writing is not None:
            self._writing.take(token)
        self._settle()

    def _written(self, tokens: list[int]) -> int:
        """How many of these tokens write no name otherwise than usual."""
        return len(tokens) if self._writing is None else self._writing.fits(tokens)

    def _settle(self) -> None:
        assert self._matcher is not None
        if self._matcher.is_error():
            self._check()
        if not self._matcher.is_stopped():
            return
        if self._trigger and self._grammar.shape.again:
            self._matcher, self._opened = None, False
            self._recent.clear()
        else:
            self.over = True

    def _look_for_trigger(self, token: int) -> None:
        """The grammar is entered with the tokens that the trigger stands in, as soon as it may have begun: so nothing
        is said with its last token that may not follow on it."""
        grammar = self._grammar
        if grammar.trigger_token is not None:
            if token == grammar.trigger_token:
                self._opened, self._matcher = True, grammar.matcher.deep_copy()
            return
        self._recent.append(token)
        while self._recent and not self._may_begin():
            del self._recent[0]
        if not self._recent:
            self._matcher = None
            return
        matcher = grammar.matcher.deep_copy()
        if matcher.try_consume_tokens(self._recent) < len(self._recent):
            # All of the trigger came with something that may not follow on it: this once the answer stays as it is.
            self._recent, self._matcher = [], None
            return
        self._matcher = matcher
        if self._trigger in self._said():
            self._opened = True
            self._settle()

    def _may_begin(self) -> bool:
        """Whether the trigger is in the recent tokens, or its beginning at their end, and starts in the first."""
        said, first = self._said(), len(self._bytes(self._recent[:1]))
        for start in range(min(first, len(said))):
            rest = said[start : start + len(self._trigger)]
            if self._trigger.startswith(rest) and (len(rest) == len(self._trigger) or start + len(rest) == len(said)):
                return True
        return False

    def _said(self) -> bytes:
        return self._bytes(self._recent)

    def _bytes(self, tokens: list[int]) -> bytes:
        return self._grammar.tokenizer.decode_bytes(tokens)

    def _outside(self, allowed: Allowed) -> Allowed:
        """Before the trigger is complete a text may go on in any other way too, or end."""
        texts = self._grammar.tokenizer
        for end in texts.eos_tokens:
            allowed[end] = True
        return allowed

    def _check(self) -> None:
        """Raises what the matcher does not: it only allows nothing but an end of text any more."""
        assert self._matcher is not None
        if self._matcher.is_error():
            raise self._lost(self._matcher.get_error())

    def _lost(self, error: str) -> UnsupportedSchema:
        line = next((each for each in error.splitlines() if each.strip()), "no token fits")
        return refused(self._grammar.shape, f"within the answer, {line[:200]}")
