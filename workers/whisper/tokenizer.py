"""Whisper's tokens: which are special, how text becomes tokens and tokens text. Thin over mlx-whisper's tokenizer.

Knows no model, no logits and no times.
"""

from __future__ import annotations

import codecs
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from workers.whisper import reference

SPACELESS = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages written without spaces; their words are taken to be characters (openai/whisper tokenizer.py)."""


@dataclass(frozen=True)
class _Vocabulary:
    """tiktoken's Encoding without the special tokens, which it would hold in a regex for each of 128 threads, 13 MB."""

    encoding: Any
    specials: dict[str, int]
    unspoken: tuple[int, ...]


@cache
def _vocabulary(name: str, languages: int) -> _Vocabulary:
    tokenizer = reference.module("tokenizer")
    whole = tokenizer.get_encoding.__wrapped__(name=name, num_languages=languages)  # as if it had no cache
    # The attributes are private, but they are what tiktoken's README builds on.
    plain = type(whole)(name=name, pat_str=whole._pat_str, mergeable_ranks=whole._mergeable_ranks, special_tokens={})
    marks = tokenizer.Tokenizer(encoding=whole, num_languages=languages).non_speech_tokens
    return _Vocabulary(plain, dict(whole._special_tokens), tuple(marks))


class Tokenizer:
    """The tokens of one model. Immutable; one serves all jobs."""

    def __init__(self, n_vocab: int) -> None:
        """`n_vocab` tells the tokenizers apart: 51864 is English only, 51865 and up multilingual
        (mlx_whisper/whisper.py: is_multilingual, num_languages)."""
        self.multilingual = n_vocab >= 51865
        languages = n_vocab - 51765 - int(self.multilingual)
        self._vocabulary = _vocabulary("multilingual" if self.multilingual else "gpt2", languages)
        self._names = {token: name for name, token in self._vocabulary.specials.items()}
        codes = tuple(reference.module("tokenizer").LANGUAGES)[:languages]
        self.languages: tuple[str, ...] = codes if self.multilingual else ("en",)
        """Codes in token order."""
        self.eot = self._special("endoftext")
        self.sot = self._special("startoftranscript")
        self.sot_prev = self._special("startofprev")
        self.no_speech = self._special("nospeech")
        self.no_timestamps = self._special("notimestamps")
        self.timestamp_begin = self._special("0.00")

    def _special(self, name: str) -> int:
        return self._vocabulary.specials[f"<|{name}|>"]

    def language_token(self, code: str) -> int:
        return self.sot + 1 + self.languages.index(code)

    def opening(self, language: str, task: str) -> tuple[int, ...]:
        """What every transcript begins with: the start, and in a multilingual model the language and the task."""
        if not self.multilingual:
            return (self.sot,)
        return (self.sot, self.language_token(language), self._special(task))

    @cached_property
    def blank(self) -> tuple[int, ...]:
        """Not to be said first."""
        return (*self.encode(" "), self.eot)

    @cached_property
    def unspoken(self) -> tuple[int, ...]:
        """Never to be said: marks of annotations and the special tokens that steer the model."""
        steering = ("transcribe", "translate", "startoftranscript", "startofprev", "startoflm", "nospeech")
        return tuple(sorted({*self._vocabulary.unspoken, *map(self._special, steering)}))

    def encode(self, text: str) -> list[int]:
        """Text that looks like a special token is text: it comes from clients."""
        return list(self._vocabulary.encoding.encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """The reference's text, timestamps left out, with U+FFFD for halves of characters: to be measured, not read."""
        whole = b"".join(self.bytes_of(token) for token in tokens if token < self.timestamp_begin)
        return whole.decode(errors="replace")

    def bytes_of(self, token: int) -> bytes:
        if token >= self.eot:
            return self._names[token].encode()
        return bytes(self._vocabulary.encoding.decode_single_token_bytes(token))

    def split_words(self, tokens: Sequence[int], language: str) -> list[tuple[str, list[int]]]:
        """Words with the tokens that make them; joined they are the text. `tokens` may end with eot, a word of its
        own. Tokens that make no character (half of one) stay with the word before them."""
        characters = self._split_characters(tokens)
        if language in SPACELESS:
            return characters
        words: list[tuple[str, list[int]]] = []
        for text, parts in characters:
            # `in` as the reference has it: any run of string.punctuation counts, also the empty one.
            alone = parts[0] >= self.eot or text.startswith(" ") or text.strip() in string.punctuation
            if alone or not words:
                words.append((text, parts))
            else:
                words[-1] = (words[-1][0] + text, words[-1][1] + parts)
        return words

    def _split_characters(self, tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Cut wherever the bytes so far are whole characters."""
        found: list[tuple[str, list[int]]] = []
        stream, text, parts = TextStream(self), "", list[int]()
        for token in tokens:
            if token == self.eot:
                if parts:
                    self._close(found, text, parts)
                found.append((self.bytes_of(token).decode(), [token]))
                stream, text, parts = TextStream(self), "", []
                continue
            text += stream.feed([token])
            parts.append(token)
            if not stream.pending:
                self._close(found, text, parts)
                text, parts = "", []
        if parts:
            self._close(found, text, parts)
        return found

    @staticmethod
    def _close(found: list[tuple[str, list[int]]], text: str, parts: list[int]) -> None:
        if text or not found:
            found.append((text, parts))
        else:
            found[-1][1].extend(parts)


class TextStream:
    """Text from tokens as they come. A character split over tokens appears once, when it is whole; bytes that are
    no character never appear."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")

    def feed(self, tokens: Sequence[int]) -> str:
        """Special tokens and timestamps have no text."""
        spoken = (token for token in tokens if token < self._tokenizer.eot)
        return self._decoder.decode(b"".join(map(self._tokenizer.bytes_of, spoken)))

    @property
    def pending(self) -> bool:
        """Whether half a character is held back."""
        return bool(self._decoder.getstate()[0])
