"""What of an utterance is shown while it is being spoken, and which part of it will stay. Pure: guesses in, text out.

LocalAgreement-2 (Macháček, Dabre, Bojar 2023, arXiv:2307.14743): what two guesses in a row begin with stays, but for
the words at its end, where the next sound may still change a spelling or a comma.
"""

from __future__ import annotations

from itertools import takewhile

from protocol.events import Guessed, GuessedWord

HELD_BACK = 1
"""Agreed words that wait for more."""


class Partials:
    """One utterance's. `stable` only ever grows, and `text` begins with it."""

    def __init__(self, held_back: int = HELD_BACK) -> None:
        self._held_back = held_back
        self._last: tuple[GuessedWord, ...] = ()
        self._stable: tuple[GuessedWord, ...] = ()
        self.draft: tuple[int, ...] = ()
        """Tokens of the last guess, for the next one and for the utterance's transcription."""

    @property
    def said(self) -> tuple[int, ...]:
        """Tokens of the stable text: the next guess begins with them."""
        return tuple(token for word in self._stable for token in word.tokens)

    @property
    def stable(self) -> str:
        return _text(self._stable)

    def update(self, guessed: Guessed, seconds: float) -> tuple[str, str]:
        """`seconds`: of the audio that was guessed at. -> the text and its stable part, as deltas have it, with the
        space before the first word."""
        agreed = _common(self._last, guessed.words)
        kept = agreed[: max(0, len(agreed) - self._held_back)]
        if len(kept) > len(self._stable) and _text(kept).startswith(self.stable):
            self._stable = kept
        self._last = guessed.words
        self.draft = guessed.tokens
        text = _text(guessed.words)
        return (text if text.startswith(self.stable) else self.stable), self.stable


def _common(one: tuple[GuessedWord, ...], other: tuple[GuessedWord, ...]) -> tuple[GuessedWord, ...]:
    """The words that both begin with: the same letters, case and punctuation of the same tokens."""
    pairs = takewhile(lambda pair: pair[0].tokens == pair[1].tokens, zip(one, other, strict=False))
    return tuple(word for word, _ in pairs)


def _text(words: tuple[GuessedWord, ...]) -> str:
    return "".join(word.text for word in words)
