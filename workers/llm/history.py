"""The ids that conversations really had, found again by their text: encode(decode(ids)) may well be other ids.

Knows texts and ids; the tokenizer comes in as two functions. Without it a prompt cache loses a conversation at the
first token that the model split as its tokenizer would not.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

MAX_ENTRIES = 16
MAX_TEXT_BYTES = 2 << 20
"""Of all entries' texts in UTF-8."""

HALF_A_CHARACTER = "\ufffd"

Encode = Callable[[str], Sequence[int]]
"""Adds no special token."""
Decode = Callable[[Sequence[int]], str]
"""Skips none."""


class History:
    """Finished conversations, the least recently used one first. Any thread may call it."""

    def __init__(self, entries: int = MAX_ENTRIES, text_bytes: int = MAX_TEXT_BYTES) -> None:
        self._limit = entries
        self._limit_bytes = text_bytes
        self._ids: OrderedDict[tuple[str, str], tuple[tuple[int, ...], str]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def text_bytes(self) -> int:
        return self._bytes

    def remember(self, text: str, ids: Sequence[int], *, told: str | None = None, key: str = "") -> None:
        """`text` is what all of `ids`, a prompt and its answer, decode to. A text that is known is only refreshed.

        told: how a rendering says the same, where that is known to be in other words. key: the adapter: where another
        one computed, these ids lead to no keys and values.
        """
        known = key, text if told is None else told
        size = _size(known[1])
        with self._lock:
            if known in self._ids:
                self._ids.move_to_end(known)
                return
            if not text or text.endswith(HALF_A_CHARACTER) or size > self._limit_bytes:
                return
            self._ids[known] = tuple(ids), text
            self._bytes += size
            while len(self._ids) > self._limit or self._bytes > self._limit_bytes:
                (_, gone), _ = self._ids.popitem(last=False)
                self._bytes -= _size(gone)

    def ids_of(
        self, rendering: str, canonical: Sequence[int], encode: Encode, decode: Decode, *, key: str = ""
    ) -> tuple[int, ...]:
        """The ids of a prompt: those it had in the longest conversation that it goes on from, where they say the same
        or what is known to be.

        rendering: the prompt's text. canonical: what the tokenizer makes of it. key: as in `remember`.
        """
        plain = tuple(canonical)
        with self._lock:
            told = (text for owner, text in self._ids if owner == key and _goes_on(rendering, text))
            known = max(told, key=len, default=None)
            if known is None:
                return plain
            self._ids.move_to_end((key, known))
            ids, text = self._ids[key, known]
        if plain[: len(ids)] == ids:
            return plain
        rest = rendering[len(known) :]
        whole = (*ids, *encode(rest))
        return whole if decode(whole) == text + rest else plain


def _goes_on(rendering: str, text: str) -> bool:
    return len(rendering) > len(text) and rendering.startswith(text)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
