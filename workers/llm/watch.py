"""Looks for a string in a text that comes character by character. Knows nothing of tokens."""

from __future__ import annotations


class Watch:
    """How much of `wanted` the text ends with (Knuth, Morris and Pratt).

    The table grows with what was matched, so that a long string that never comes costs nothing.
    """

    def __init__(self, wanted: str) -> None:
        """wanted: not empty."""
        self.wanted = wanted
        self.matched = 0
        """Characters. Never as many as `wanted` has, except after the `see` that said so."""
        self._borders = [0]
        """Of wanted[: place + 1], the longest proper prefix that it also ends with."""

    def see(self, char: str) -> bool:
        """Whether the text now ends with all of `wanted`; then the watch is over."""
        while self.matched and self.wanted[self.matched] != char:
            self.matched = self._border(self.matched)
        if self.wanted[self.matched] == char:
            self.matched += 1
        return self.matched == len(self.wanted)

    def _border(self, length: int) -> int:
        while len(self._borders) < length:
            char = self.wanted[len(self._borders)]
            border = self._borders[-1]
            while border and self.wanted[border] != char:
                border = self._borders[border - 1]
            self._borders.append(border + (self.wanted[border] == char))
        return self._borders[length - 1]
