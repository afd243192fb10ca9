"""Tokens to characters, one token after another: what a tokenizer's decoder makes of a whole text, without redoing it.

Knows decoders; knows neither stop strings nor markers. What is not a whole character yet is kept until it is one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from tokenizers import AddedToken

HALF_A_CHARACTER = "\ufffd"
LONGEST_CHARACTER = 4
"""Tokens, one for each byte of it."""

_SPACE = "\u2581"
"""What SentencePiece writes for a space."""
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
"""What SentencePiece writes for a byte of a character that it has no token for."""
_TO_SPACE = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}


def _alphabet() -> dict[str, int]:
    """How GPT-2 writes bytes (openai/gpt-2 encoder.py): printable ones as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET: Final = _alphabet()


class Spelling(Protocol):
    """One text on its way from tokens to characters."""

    @property
    def waiting(self) -> bool:
        """Whether the last token ended within a character."""

    def bytes_of(self, token: int) -> bytes:
        """What `token` would add if it came next."""

    def take(self, token: int) -> tuple[bytes, str]:
        """The token's own bytes, and the characters that are complete with it."""


class ByteSpelling:
    """For tokens that stand for bytes whatever is around them."""

    def __init__(self, tokenizer: TokenizerWrapper, spell: Callable[[str], bytes], *, trim: bool) -> None:
        """spell: a token as the vocabulary writes it -> its bytes. trim: a space at the very start is no text."""
        self._written: Callable[[int], str | None] = tokenizer.convert_ids_to_tokens
        self._spell = spell
        self._trim = trim
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def waiting(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def bytes_of(self, token: int) -> bytes:
        whole = self._whole(token)
        return whole.removeprefix(b" ") if self._trim else whole

    def take(self, token: int) -> tuple[bytes, str]:
        data = self.bytes_of(token)
        self._trim = self._trim and not self._whole(token)
        return data, self._decoder.decode(data)

    def _whole(self, token: int) -> bytes:
        # None: logits may be wider than the vocabulary.
        written = self._written(token)
        return b"" if written is None else self._spell(written)


class WindowSpelling:
    """For any other decoder: the tokens since the last whole character are decoded again behind those before them."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._known = 0
        """Of these, tokens whose text is out: what the others are read behind."""

    @property
    def waiting(self) -> bool:
        return len(self._ids) > self._known

    def bytes_of(self, token: int) -> bytes:
        return self._after([*self._ids[: self._known], token]).encode()

    def take(self, token: int) -> tuple[bytes, str]:
        data = self.bytes_of(token)
        self._ids.append(token)
        text = self._after(self._ids)
        if text.endswith(HALF_A_CHARACTER) and len(self._ids) - self._known < LONGEST_CHARACTER:
            return data, ""
        del self._ids[: self._known]
        self._known = len(self._ids)
        return data, text

    def _after(self, ids: list[int]) -> str:
        return decode(self._tokenizer, ids)[len(decode(self._tokenizer, ids[: self._known])) :]


def spelling(tokenizer: TokenizerWrapper, *, continues: bool) -> Spelling:
    """A new text. continues: it goes on from another, so that a space at its start belongs to it."""
    decoders = _decoders(tokenizer)
    kinds = [each["type"] for each in decoders]
    if kinds == ["ByteLevel"]:
        return ByteSpelling(tokenizer, _byte_level, trim=False)
    if (
        decoders
        and decoders[0] == _TO_SPACE
        and kinds[1:] in (["ByteFallback", "Fuse"], ["ByteFallback", "Fuse", "Strip"])
    ):
        return ByteSpelling(tokenizer, _sentence_piece, trim=kinds[-1] == "Strip" and not continues)
    if kinds == ["Metaspace"] and decoders[0]["replacement"] == _SPACE:
        trim = decoders[0].get("prepend_scheme") != "never"
        return ByteSpelling(tokenizer, _metaspace, trim=trim and not continues)
    return WindowSpelling(tokenizer)


def decode(tokenizer: TokenizerWrapper, ids: list[int]) -> str:
    """The text of `ids`: no special token left out, no spaces tidied up."""
    text: Any = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def special_tokens(tokenizer: TokenizerWrapper) -> dict[str, int]:
    """Tokens that are no text in a grammar, by their spelling: special ones, and added ones in angle brackets
    (llguidance's toktrie_hf_tokenizers)."""
    added: dict[int, AddedToken] = tokenizer.added_tokens_decoder
    return {
        each.content: number
        for number, each in added.items()
        if each.special or (each.content.startswith("<") and each.content.endswith(">"))
    }


def _decoders(tokenizer: TokenizerWrapper) -> list[dict[str, Any]]:
    """The steps of a tokenizer.json's decoder; none where a tokenizer was not made of such a file."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return []
    described: dict[str, Any] = json.loads(decoder.__getstate__())
    steps: list[dict[str, Any]] = described["decoders"] if described["type"] == "Sequence" else [described]
    return steps


def _byte_level(written: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in written])
    except KeyError:
        # A token that was added to the vocabulary, in its own letters.
        return written.encode()


def _sentence_piece(written: str) -> bytes:
    byte = _BYTE.fullmatch(written)
    return bytes([int(byte[1], 16)]) if byte else _metaspace(written)


def _metaspace(written: str) -> bytes:
    return written.replace(_SPACE, " ").encode()
