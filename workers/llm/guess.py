"""What a row may say next, guessed from what was said before: where its last words stood already, what followed them.

Knows ids. A guess changes no text, only how fast it comes; one that does not pay is not made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from workers.llm.cache import Ids

NGRAM = 3
"""Tokens that must stand elsewhere in the same order."""
LONGEST = 15
"""Tokens of one guess: with the one before them they fill the step that is cheapest by the token."""
START = 0.4
"""The probability of a guessed token before any was tried."""
WEIGHT = 0.25
"""Of a guess's outcome in that."""
CREDIT = 0.6
"""Tokens' time that a row may lose with guesses at first, about two wrong ones."""
INTEREST = 0.01
"""What it may lose in addition, of all its time."""
MOST_CREDIT = 4.0
WORTH_TRYING = 0.07
"""Probability below which a further guessed token costs more than it brings."""


class Guesser:
    """For one row."""

    def __init__(self, prompt: Ids) -> None:
        self._ids = np.empty(len(prompt) + 256, np.int32)
        self._ids[: len(prompt)] = prompt
        self._length = len(prompt)
        self.hope = START
        self._credit = CREDIT
        self._awaited: list[int] = []
        """What the last guess still leaves to come, whether it was tried or not."""

    def chose(self, token: int) -> None:
        """What the model says next, before it is `said`: that teaches hope, also where no guess was tried."""
        if self._awaited:
            self.hope += WEIGHT * ((token == self._awaited[0]) - self.hope)

    def said(self, tokens: Sequence[int]) -> None:
        """They come after all that was there."""
        for token in tokens:
            self._awaited = self._awaited[1:] if self._awaited[:1] == [token] else []
        end = self._length + len(tokens)
        if end > len(self._ids):
            self._ids = np.concatenate([self._ids[: self._length], np.empty(end, np.int32)])
        self._ids[self._length : end] = tokens
        self._length = end

    def guess(self) -> list[int]:
        """The tokens that followed the last time; none where that is unknown or has not paid."""
        self._awaited = self._followed()
        return self._awaited[: self._most()] if self._credit > 0 else []

    def _followed(self) -> list[int]:
        if self._length <= NGRAM:
            return []
        ids = self._ids[: self._length]
        found = ids[NGRAM - 1 : -1] == ids[-1]
        for back in range(1, NGRAM):
            found &= ids[NGRAM - 1 - back : -1 - back] == ids[-1 - back]
        places = np.flatnonzero(found)
        if not len(places):
            return []
        place = int(places[-1]) + NGRAM
        return [int(each) for each in ids[place : place + LONGEST]]

    def _most(self) -> int:
        if self.hope >= 1:
            return LONGEST
        return min(LONGEST, max(int(np.log(WORTH_TRYING) / np.log(max(self.hope, 1e-3))), 1))

    def took(self, tried: int, right: int, price: float) -> None:
        """After a step. price: tokens' time that guessing took, here and in the rows beside."""
        self._credit += INTEREST
        if tried:
            self._credit += right - price
        self._credit = min(self._credit, MOST_CREDIT)
