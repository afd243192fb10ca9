"""Whisper's decoder on the CPU, computed by decoder.cpp: many rows of many windows in one pass over the weights.

Owns the decoder's weights and the rows' caches; knows no rules of decoding. The plain formulation is in model.py.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from workers.cpu.kept import pointer
from workers.cpu.matrices import narrow
from workers.whisper.cpu.cross import NativeCross, NativeEncoded
from workers.whisper.cpu.library import Kept, Norm

GROWTH = 64
"""Positions by which the self keys and values grow: a full-length cache would take 11 MB a row with base."""

_TOKEN = np.dtype([("group", np.int32), ("row", np.int32), ("position", np.int32)])
_GROUP = np.dtype([(name, np.int64) for name in ("cache", "rows", "capacity", "frames", "cross")])


class _Matrix(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("halves", ctypes.c_int64))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("own_norm", Norm),
        *((name, _Matrix) for name in ("query", "key", "value", "out")),
        ("cross_norm", Norm),
        *((name, _Matrix) for name in ("cross_query", "cross_out")),
        ("up_norm", Norm),
        *((name, _Matrix) for name in ("up", "down")),
    )


class NativeRows:
    """Sequences over one window. cache: (layers, 2, n, heads, capacity, d/heads), self keys and values."""

    def __init__(self, encoded: NativeEncoded, cache: np.ndarray) -> None:
        self.encoded = encoded
        self.cache = cache
        self.position = 0

    @property
    def n(self) -> int:
        return int(self.cache.shape[2])

    def select(self, indices: Sequence[int]) -> None:
        """Row i becomes what row indices[i] was; rows may be doubled and dropped."""
        if list(indices) != list(range(self.n)):
            self.cache = self._with(self.cache[:, :, list(indices), :, : self.position], self.cache.shape[4])

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens: what the cache holds behind them is never read."""
        self.position = length

    def reserve(self, length: int) -> None:
        """Room for `length` more positions."""
        if self.position + length > self.cache.shape[4]:
            self.cache = self._with(self.cache[..., : self.position, :], self.position + length + GROWTH - 1)

    @staticmethod
    def _with(used: np.ndarray, capacity: int) -> np.ndarray:
        """A cache of its own with these positions and room for others."""
        cache = np.empty((*used.shape[:4], capacity, used.shape[5]), np.float32)
        cache[..., : used.shape[4], :] = used
        return cache


class NativeDecoder:
    """Tokens to logits; owns the decoder's weights, which it takes out of the module it is given."""

    def __init__(self, module: Any, threads: int, library: ctypes.CDLL) -> None:
        decoder, dims = module.decoder, module.dims
        self._library = library
        self._heads, self._layers, self._vocabulary = dims.n_text_head, dims.n_text_layer, dims.n_vocab
        self._size = dims.n_text_state // dims.n_text_head
        self._kept = Kept()
        self._positions = np.array(decoder.positional_embedding)
        table = self._matrix(decoder.token_embedding)
        self._embeddings = self._kept.arrays[-1]
        self._cross = NativeCross(decoder.blocks, self._heads, threads, library)
        hidden = decoder.blocks[0].mlp1.weight.shape[0]
        layers = (_Layer * self._layers)()
        for index in range(self._layers):  # one by one, so that the old weights go as the new ones come
            layers[index] = self._layer(decoder.blocks.pop(0))
        library.starling_decoder.restype = ctypes.c_void_p
        engine = library.starling_decoder(
            *(dims.n_text_state, self._heads, hidden, self._vocabulary, self._layers, layers),
            *(self._kept.norm(decoder.ln), table, threads),
        )
        if not engine:
            raise MemoryError("no threads for Whisper's decoder")
        self._engine = ctypes.c_void_p(engine)
        weakref.finalize(self, library.starling_decoder_end, self._engine)

    def _layer(self, block: Any) -> _Layer:
        own, cross = block.attn, block.cross_attn
        norms = (self._kept.norm(each) for each in (block.attn_ln, block.cross_attn_ln, block.mlp_ln))
        linears = (own.query, own.key, own.value, own.out, cross.query, cross.out, block.mlp1, block.mlp2)
        matrices = [self._matrix(each) for each in linears]
        first, second, third = norms
        return _Layer(first, *matrices[:4], second, *matrices[4:6], third, *matrices[6:])

    def _matrix(self, linear: Any) -> _Matrix:
        """The weight as float16 if that changes no number: files mostly hold it so."""
        weight, whole = narrow(np.array(linear.pop("weight")), bool(self._library.starling_halves()))
        bias = self._kept.at(np.array(linear.bias)) if "bias" in linear else None
        return _Matrix(self._kept.at(weight), bias, int(not whole))

    def cross(self, features: mx.array) -> NativeEncoded:
        """The encoder's (frames, d) to a window's keys and values; waits for them."""
        return self._cross(features)

    def new_rows(self, encoded: NativeEncoded, length: int) -> NativeRows:
        """One row without tokens, with room for `length`."""
        shape = (self._layers, 2, 1, self._heads, length + GROWTH, self._size)
        return NativeRows(encoded, np.empty(shape, np.float32))

    def forward(
        self, groups: Sequence[NativeRows], tokens: Sequence[np.ndarray], wanted: Sequence[int] | None = None
    ) -> np.ndarray:
        return self._forward(groups, tokens, wanted, [])[0]

    def align(
        self, rows: NativeRows, tokens: Sequence[int], heads: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        logits, scores = self._forward([rows], [np.asarray(tokens)[None]], None, heads)
        return scores, logits

    def _forward(
        self,
        groups: Sequence[NativeRows],
        tokens: Sequence[np.ndarray],
        wanted: Sequence[int] | None,
        heads: Sequence[tuple[int, int]],
    ) -> tuple[np.ndarray, np.ndarray]:
        for rows, ids in zip(groups, tokens, strict=True):
            rows.reserve(ids.shape[1])
        count = sum(ids.size for ids in tokens)
        laid, embedded, start = np.empty(count, _TOKEN), [], 0
        for index, (rows, ids) in enumerate(zip(groups, tokens, strict=True)):
            part = laid[start : start + ids.size].reshape(ids.shape)
            positions = np.arange(rows.position, rows.position + ids.shape[1])
            part["group"], part["row"], part["position"] = index, np.arange(rows.n)[:, None], positions
            embedded.append((self._embeddings[ids] + self._positions[positions]).reshape(ids.size, -1))
            start += ids.size
        x = np.ascontiguousarray(np.concatenate(embedded), np.float32)
        want = np.arange(count, dtype=np.int32) if wanted is None else np.asarray(wanted, np.int32)
        logits = np.empty((len(want), self._vocabulary), np.float32)
        choice = np.asarray(heads, np.int32).reshape(-1, 2)
        frames = groups[0].encoded.context
        scores = np.empty((len(choice), count, frames if heads else 0), np.float32)
        self._run(laid, _places(groups), x, want, logits, choice, scores)
        for rows, ids in zip(groups, tokens, strict=True):
            rows.position += ids.shape[1]
        return logits, scores

    def _run(
        self,
        laid: np.ndarray,
        places: np.ndarray,
        x: np.ndarray,
        want: np.ndarray,
        logits: np.ndarray,
        choice: np.ndarray,
        scores: np.ndarray,
    ) -> None:
        done = self._library.starling_decoder_run(
            *(
                self._engine,
                len(laid),
                pointer(laid),
                pointer(places),
                pointer(x),
                len(want),
                pointer(want),
                pointer(logits),
            ),
            *(len(choice), pointer(choice), pointer(scores)),
        )
        if not done:
            raise MemoryError("not enough memory for a pass of Whisper's decoder")


def _places(groups: Sequence[NativeRows]) -> np.ndarray:
    """Where each group's caches and its window's keys and values lie."""
    places = np.empty(len(groups), _GROUP)
    for place, rows in zip(places, groups, strict=True):
        cache, encoded = rows.cache, rows.encoded
        place["cache"], place["rows"], place["capacity"] = cache.ctypes.data, rows.n, cache.shape[4]
        place["frames"], place["cross"] = encoded.context, encoded.pointers.ctypes.data
    return places
