"""What finished conversations leave behind: keys and values of every layer, found by the longest common prefix.

Knows ids, bytes and mlx-lm's caches for one sequence; knows no job. An entry's arrays never change: a conversation that
goes on from the whole of an entry takes it away and puts it back longer, any other starts from a slice of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import KVCache

Ids = npt.NDArray[np.int32]
Layers = list[Any]
"""One of mlx-lm's caches for each layer, of one sequence."""


def common(a: Ids, b: Ids) -> int:
    """How many ids two sequences share from their start."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length


def trimmable(layers: Layers) -> bool:
    """Whether all layers can forget their last tokens."""
    return all(layer.is_trimmable() for layer in layers)


def view(layers: Layers, length: int, size: int) -> Layers:
    """The first `length` of `size` tokens as caches of their own; nothing is copied before they grow.

    They share no Python array with `layers`: mlx-lm's caches assign to slices of theirs, which changes the object.
    """
    found = [type(layer).from_state(_shared(layer.state)) for layer in layers]
    for layer in found:
        if length < size:
            layer.trim(size - length)
        if isinstance(layer, KVCache):
            # Else a short start of a long conversation would be written into a copy of all of it.
            keys, values = layer.state[:2]
            layer.keys, layer.values = keys[..., :length, :], values[..., :length, :]
    return found


def _shared(state: Any) -> Any:
    if isinstance(state, mx.array):
        return state[...]
    if isinstance(state, list | tuple):
        return type(state)(_shared(each) for each in state)
    return state


@dataclass(frozen=True, eq=False)
class _Entry:
    key: str
    """The adapter; prefixes are shared under the same key only."""
    ids: Ids
    layers: Layers
    pin: str | None
    nbytes: int


@dataclass(frozen=True)
class Found:
    layers: Layers
    length: int
    """Tokens that they hold."""
    pin: str | None = None
    """The entry's, where it was taken away."""


class PromptCache:
    """Entries within a number of bytes; the least recently used goes first, those pinned after all others."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._entries: list[_Entry] = []  # The least recently used first.
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return self._bytes

    def longest(self, key: str, ids: Ids) -> int:
        """How many tokens `take` would find."""
        return self._best(key, ids)[0]

    def take(self, key: str, ids: Ids) -> Found | None:
        """Caches of the longest prefix of `ids` that is known, never of all of them: the last is there to be fed."""
        length, entry = self._best(key, ids)
        if entry is None:
            return None
        self._remove(entry)
        if length == len(entry.ids):
            return Found(entry.layers, length, entry.pin)
        self._add(entry)
        return Found(view(entry.layers, length, len(entry.ids)), length)

    def put(self, key: str, ids: Ids, layers: Layers, pin: str | None = None) -> None:
        """Keep a sequence; the caller gives up its layers. What it contains as a prefix is dropped for it."""
        if not len(ids):
            return
        if trimmable(layers):
            for entry in [each for each in self._entries if each.key == key and _begins(each.ids, ids)]:
                self._remove(entry)
                pin = pin or entry.pin
        for entry in [each for each in self._entries if each.key == key]:
            if _begins(ids, entry.ids) and (len(ids) == len(entry.ids) or trimmable(entry.layers)):
                # It is known already, as a part of a longer one.
                self._remove(entry)
                self._add(replace(entry, pin=pin or entry.pin))
                return
        nbytes = sum(layer.nbytes for layer in layers)
        if nbytes <= self._limit:
            self._add(_Entry(key, ids, layers, pin, nbytes))
            self._evict()

    def forget(self, key: str) -> None:
        """All that was computed under a key which nobody will ask for again."""
        for entry in [each for each in self._entries if each.key == key]:
            self._remove(entry)

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def _best(self, key: str, ids: Ids) -> tuple[int, _Entry | None]:
        best: tuple[int, _Entry | None] = (0, None)
        for entry in self._entries:
            if entry.key != key:
                continue
            length = min(common(entry.ids, ids), len(ids) - 1)
            if length < len(entry.ids) and not trimmable(entry.layers):
                continue
            if length > 0 and length >= best[0]:
                best = length, entry
        return best

    def _evict(self) -> None:
        while self._bytes > self._limit:
            newest = {entry.pin: entry for entry in self._entries}
            free = (each for each in self._entries if each.pin is None or newest[each.pin] is not each)
            self._remove(next(free, self._entries[0]))

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._bytes += entry.nbytes

    def _remove(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._bytes -= entry.nbytes


def _begins(prefix: Ids, ids: Ids) -> bool:
    return len(prefix) <= len(ids) and common(prefix, ids) == len(prefix)
