"""What of an utterance is shown while it is being spoken, and which part of it will stay. Pure: guesses in, text out.

A word stays once the text up to it has stood for a while: the longer, the less probable the model finds it. That is
LocalAgreement (Macháček, Dabre, Bojar 2023, arXiv:2307.14743) with a number of agreements that depends on the word.
`python -m benchmarks.partials` compares it with LocalAgreement-2 and AlignAtt.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from protocol.events import Guessed, GuessedWord

PATIENCE_S = 8.0
"""Seconds of audio for which a word must have stood that has no probability at all; a certain one waits for the next
guess."""
LOOP = 2.4
"""A compression ratio above this is a loop, which tells nothing (openai/whisper's default threshold)."""


class Partials:
    """One utterance's. `stable` only ever grows, and `text` begins with it."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._words: tuple[GuessedWord, ...] = ()
        self._since: list[float] = []
        """For each of the words: how much audio there was when the text up to it was first guessed as it is."""
        self._stable: tuple[GuessedWord, ...] = ()
        self.draft: tuple[int, ...] = ()
        """Tokens of the last guess, for the next one and for the utterance's transcription."""

    @property
    def said(self) -> tuple[int, ...]:
        """Tokens of the stable text: the next guess begins with them."""
        return tuple(token for word in self._stable for token in word.tokens)

    def update(self, guessed: Guessed, seconds: float) -> tuple[str, str]:
        """`seconds`: of the audio that was guessed at. -> the text and its stable part, as deltas have it, with the
        space before the first word."""
        if guessed.compression_ratio <= LOOP:
            same = sum(1 for _ in takewhile(_is_same, zip(self._words, guessed.words, strict=False)))
            self._since = self._since[:same] + [seconds] * (len(guessed.words) - same)
            self._words, self.draft = guessed.words, guessed.tokens
            settled = tuple(self._settled(seconds))
            if len(settled) > len(self._stable) and _text(settled).startswith(_text(self._stable)):
                self._stable = settled
        text, stable = _text(self._words), _text(self._stable)
        return (text if text.startswith(stable) else stable), stable

    def _settled(self, seconds: float) -> Iterable[GuessedWord]:
        for word, since in zip(self._words, self._since, strict=True):
            stood = seconds - since
            if stood <= 0 or stood < self._patience_s * (1 - word.probability):
                return
            yield word


def _is_same(words: tuple[GuessedWord, GuessedWord]) -> bool:
    """The same letters, case and punctuation, of the same tokens."""
    return words[0].tokens == words[1].tokens


def _text(words: Iterable[GuessedWord]) -> str:
    return "".join(word.text for word in words)
