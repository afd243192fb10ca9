"""The names in a JSON answer: none may be written in another way than it is usually written.

llguidance keeps the names that a schema declares apart from all others by their letters. `"\\u0061"` is not `"a"` to
it, but it is to whoever reads the answer, and finds a value under a declared name that its schema was not asked about.
Knows JSON's text and tokens; knows no schema and no matcher.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.bool_]
"""(vocabulary,)"""

QUOTE, BACKSLASH, COLON, COMMA = b'"\\:,'
OPENING, CLOSING = b"{[", b"}]"
OTHERWISE = b"u/"
"""What follows a backslash where a letter could stand for itself. What the other escapes stand for could not."""


class Spellings:
    """What the tokens of one model would write of a name."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        """texts: of each token, as long as the logits."""
        self.texts = texts
        self.otherwise = np.zeros(len(texts), np.bool_)
        """Tokens that must not come within a name."""
        self.escaped = np.zeros(len(texts), np.bool_)
        """The same behind a backslash there."""
        turning: list[int] = []
        for token, text in enumerate(texts):
            if BACKSLASH in text:
                self.otherwise[token] = not _within_a_name().feed(_before_the_end(text))
                if BACKSLASH in text.partition(b'"')[2]:
                    turning.append(token)
            if BACKSLASH in text or text[:1] in (b"u", b"/"):
                self.escaped[token] = not _within_a_name().feed(b"\\" + _before_the_end(text, 1))
        self.turning = np.array(turning, np.int64)
        """Tokens in which a quote comes before a backslash: they are looked at one by one, and are few."""


class Writing:
    """How far a JSON text of tokens is, in terms of its names."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._place = Place()

    def take(self, token: int) -> None:
        self._place.feed(self._spellings.texts[token])

    def fits(self, tokens: Iterable[int]) -> int:
        """How many of these tokens could come next, one after the other."""
        place, count = self._place.copy(), 0
        for token in tokens:
            if not place.feed(self._spellings.texts[token]):
                break
            count += 1
        return count

    def narrow(self, allowed: Tokens) -> None:
        """Take out of `allowed` the tokens that would write a name otherwise."""
        spellings = self._spellings
        if self._place.in_name:
            allowed &= ~(spellings.escaped if self._place.escaped else spellings.otherwise)
        for token in spellings.turning[allowed[spellings.turning]]:
            if not self.fits([token]):
                allowed[token] = False


class Place:
    """Where in a JSON text one is."""

    def __init__(self) -> None:
        self._open = bytearray()
        """Brackets."""
        self._valued = False
        """In an object: behind the colon."""
        self._is_name = False
        """Of the last string."""
        self._in_string = False
        self.escaped = False
        """Behind a backslash."""

    @property
    def in_name(self) -> bool:
        return self._in_string and self._is_name

    def copy(self) -> Place:
        found = copy.copy(self)
        found._open = self._open[:]
        return found

    def feed(self, text: bytes) -> bool:
        """Go on; False: a name is written otherwise than usual, and what comes after that was not looked at."""
        for byte in text:
            if self._in_string:
                if self.escaped:
                    self.escaped = False
                    if self._is_name and byte in OTHERWISE:
                        return False
                else:
                    self.escaped, self._in_string = byte == BACKSLASH, byte != QUOTE
            elif byte == QUOTE:
                self._in_string = True
                self._is_name = self._open[-1:] == b"{" and not self._valued
            elif byte in OPENING:
                self._open.append(byte)
                self._valued = False
            elif byte in CLOSING:
                del self._open[-1:]
                self._valued = True
            elif byte in (COLON, COMMA):
                self._valued = byte == COLON
        return True


def _within_a_name() -> Place:
    found = Place()
    found.feed(b'{"')
    return found


def _before_the_end(text: bytes, start: int = 0) -> bytes:
    """What of a text belongs to the string that it begins in. start: so many bytes do in any case."""
    place = start
    while place < len(text) and text[place] != QUOTE:
        place += 2 if text[place] == BACKSLASH else 1
    return text[:place]
