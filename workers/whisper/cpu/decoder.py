"""Whisper's decoder for MLX's CPU backend in float32: many rows of many windows, over several streams.

Each stream holds some heads, hidden units and a share of the vocabulary; every stream keeps the residual stream and
adds all partial sums (three exchanges a layer). Products with weights are shared by all rows; attention goes window
by window, so that rows come and go without a copy. The plain formulation is in model.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from workers.whisper.cpu.encoder import EPS
from workers.whisper.cpu.kernels import LN2, Kernels
from workers.whisper.cpu.weights import TABLE_CHUNK, Part, most_streams, take_layers, take_table

# Positions by which the self K/V grow: a full-length one would cost 11 MB a row with base.
GROWTH = 64


@dataclass(frozen=True)
class CpuEncoded:
    """A window's cross keys (heads, d/heads, frames) and values (heads, d/heads + 1, frames), [layer][stream].

    Frames are innermost in both: one row's products then read them once, straight through."""

    context: int
    keys: list[list[mx.array]]
    values: list[list[mx.array]]


@dataclass
class CpuRows:
    """Sequences over one window. cache: self keys and values in one array for each [layer][stream],
    (2 heads, n, capacity, d/heads): one array is one write a step."""

    encoded: CpuEncoded
    streams: list[mx.Stream]
    n: int = 1
    position: int = 0
    cache: list[list[mx.array]] = field(default_factory=list)

    def select(self, indices: Sequence[int]) -> None:
        """Row i becomes what row indices[i] was; rows may be doubled and dropped."""
        if list(indices) == list(range(self.n)):
            return
        order = mx.array(list(indices), dtype=mx.int32)
        for layer in self.cache:
            layer[:] = [mx.take(c, order, axis=1, stream=s) for c, s in zip(layer, self.streams, strict=True)]
        self.n = len(indices)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens: what the cache holds behind them is never read."""
        self.position = length

    def reserve(self, length: int) -> None:
        """Room for `length` more positions."""
        short = self.position + length - self.cache[0][0].shape[2]
        if short > 0:
            pad = [(0, 0), (0, 0), (0, short + GROWTH - 1), (0, 0)]
            for layer in self.cache:
                layer[:] = [mx.pad(c, pad, stream=s) for c, s in zip(layer, self.streams, strict=True)]


@dataclass(frozen=True)
class Block:
    """`length` new tokens for each row of one group; they lie at `at` among all tokens of the pass."""

    rows: CpuRows
    length: int
    at: slice
    mask: mx.array | None  # (length, position + length), for length > 1


def by_context(blocks: Sequence[Block]) -> list[list[int]]:
    """The blocks' indices, those with as many frames together: their scores share one exponential."""
    groups: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        groups.setdefault(block.rows.encoded.context, []).append(index)
    return list(groups.values())


class Decoder:
    """Tokens to logits; owns the decoder's weights, which it takes out of the module it is given."""

    def __init__(self, model: Any, streams: list[mx.Stream], kernels: Kernels) -> None:
        self.heads = model.dims.n_text_head
        self.streams = streams[: most_streams(model.dims)]
        self.kernels = kernels
        decoder = model.decoder
        self.table = take_table(decoder, len(self.streams))
        self.layers: list[list[Part]] = take_layers(decoder, model.encoder.ln_post, self.heads, len(self.streams))
        self.norm, self.norm_bias = decoder.ln.weight, decoder.ln.bias
        self.positions = np.array(decoder.positional_embedding)
        self.embeddings = np.array(self.table.rows, copy=False)
        self.width = self.positions.shape[1]
        self.head_size = self.width // self.heads

    def cross(self, features: list[mx.array], context: int) -> CpuEncoded:
        """The encoder's (frames, d) parts to a window's keys and values."""
        with mx.stream(self.streams[0]):
            x = mx.concatenate(features)
        keys: list[list[mx.array]] = []
        values: list[list[mx.array]] = []
        for parts in self.layers:
            keys.append([])
            values.append([])
            for stream, part in zip(self.streams, parts, strict=True):
                with mx.stream(stream):
                    k = mx.addmm(part.cross_key_bias, part.cross_key, x.T)
                    keys[-1].append(k.reshape(part.heads, self.head_size, context))
                    v = mx.addmm(part.cross_value_bias, part.cross_value, x.T)
                    values[-1].append(v.reshape(part.heads, self.head_size + 1, context))
        return CpuEncoded(context, keys, values)

    def new_rows(self, encoded: CpuEncoded, length: int) -> CpuRows:
        """One row without tokens, with room for `length`."""
        rows = CpuRows(encoded, self.streams)
        for parts in self.layers:
            shapes = [(2 * part.heads, 1, length + GROWTH, self.head_size) for part in parts]
            rows.cache.append([mx.zeros(shape, stream=s) for shape, s in zip(shapes, self.streams, strict=True)])
        return rows

    def forward(
        self,
        groups: Sequence[CpuRows],
        tokens: Sequence[np.ndarray],
        wanted: Sequence[int] | None = None,
        scores: dict[tuple[int, int], mx.array] | None = None,
    ) -> np.ndarray:
        """Append tokens[i] (rows, length) to groups[i]; logits (tokens, vocabulary) float32 of the wanted tokens.

        wanted: indices into all tokens, group by group, row by row; None is all of them.
        scores: filled with the cross scores (tokens, frames) of every head by (layer, head), in natural units.
        """
        blocks, x = self._blocks(groups, tokens)
        xs = [x] * len(self.streams)
        for index, parts in enumerate(self.layers):
            xs = self._exchange(
                xs, [self._self_attention(index, i, part, xs[i], blocks) for i, part in enumerate(parts)]
            )
            xs = self._exchange(
                xs, [self._cross_attention(index, i, part, xs[i], blocks, scores) for i, part in enumerate(parts)]
            )
            xs = self._exchange(xs, [self._mlp(i, part, xs[i]) for i, part in enumerate(parts)])
            mx.async_eval(xs)  # type: ignore[no-untyped-call]  # the streams work on this layer while Python builds the next
        logits = self._logits(xs, wanted)
        for block in blocks:
            block.rows.position += block.length
        return logits

    def _blocks(self, groups: Sequence[CpuRows], tokens: Sequence[np.ndarray]) -> tuple[list[Block], mx.array]:
        """Lay the groups' tokens out one after another and look them up: (tokens, d), centred."""
        blocks, embedded, start = [], [], 0
        for rows, ids in zip(groups, tokens, strict=True):
            length = ids.shape[1]
            stop = rows.position + length
            rows.reserve(length)
            mask = None
            if length > 1:
                seen = np.arange(stop) <= np.arange(rows.position, stop)[:, None]
                mask = mx.array(np.where(seen, np.float32(0), np.float32(-np.inf)))
            blocks.append(Block(rows, length, slice(start, start + ids.size), mask))
            x = self.embeddings[ids] + self.positions[rows.position : stop]
            embedded.append(x.reshape(ids.size, -1))
            start += ids.size
        joined = np.concatenate(embedded)
        return blocks, mx.array(joined - joined.mean(axis=1, keepdims=True))

    def _exchange(self, xs: list[mx.array], parts: list[mx.array]) -> list[mx.array]:
        """Every stream adds all partial sums, (chunks, tokens, chunk) each, to its own copy of the residual."""
        out = []
        for stream, x in zip(self.streams, xs, strict=True):
            with mx.stream(stream):
                total = parts[0]
                for part in parts[1:]:
                    total = total + part
                out.append(x + total.swapaxes(0, 1).reshape(x.shape))
        return out

    def _self_attention(self, index: int, i: int, part: Part, x: mx.array, blocks: list[Block]) -> mx.array:
        with mx.stream(self.streams[i]):
            qkv = part.qkv(mx.fast.rms_norm(x, None, EPS))  # (3 heads, tokens, d/heads)
            heads, size = part.heads, self.head_size
            joined = []
            for block in blocks:
                rows, length = block.rows, block.length
                stop = rows.position + length
                q = qkv[:heads, block.at].reshape(heads, rows.n, length, size)
                cache = rows.cache[index]
                cache[i][:, :, rows.position : stop] = qkv[heads:, block.at].reshape(2 * heads, rows.n, length, size)
                weights = q @ cache[i][:heads, :, :stop].swapaxes(2, 3)
                if block.mask is not None:
                    weights = weights + block.mask
                o = mx.softmax(weights, axis=-1) @ cache[i][heads:, :, :stop]
                joined.append(o.reshape(heads, rows.n * length, size))
            return part.out(self._join(joined))

    def _cross_attention(
        self,
        index: int,
        i: int,
        part: Part,
        x: mx.array,
        blocks: list[Block],
        scores: dict[tuple[int, int], mx.array] | None,
    ) -> mx.array:
        with mx.stream(self.streams[i]):
            q = part.cross_query(mx.fast.rms_norm(x, None, EPS))  # (heads, tokens, d/heads)
            outs: dict[int, mx.array] = {}
            for same in by_context(blocks):
                cross = [blocks[j].rows.encoded for j in same]
                products = [q[:, blocks[j].at] @ e.keys[index][i] for j, e in zip(same, cross, strict=True)]
                s = products[0] if len(same) == 1 else mx.concatenate(products, axis=1)
                if scores is not None:
                    scores.update({(index, part.first_head + h): s[h] * LN2 for h in range(part.heads)})
                weights, start = self.kernels.exp2_below_max(s), 0
                for j, e in zip(same, cross, strict=True):
                    stop = start + blocks[j].rows.n * blocks[j].length
                    outs[j] = weights[:, start:stop] @ e.values[index][i].swapaxes(1, 2)
                    start = stop
            o = outs[0] if len(outs) == 1 else mx.concatenate([outs[j] for j in range(len(blocks))], axis=1)
            return part.cross_out(self._join([o[..., :-1] / o[..., -1:]]))

    def _mlp(self, i: int, part: Part, x: mx.array) -> mx.array:
        with mx.stream(self.streams[i]):
            hidden = self.kernels.gelu(part.up(mx.fast.rms_norm(x, None, EPS)))
            return part.down(hidden.swapaxes(0, 1).reshape(x.shape[0], -1))

    @staticmethod
    def _join(heads: list[mx.array]) -> mx.array:
        """Blocks of (heads, tokens, d/heads) to (all tokens, heads d/heads)."""
        joined = heads[0] if len(heads) == 1 else mx.concatenate(heads, axis=1)
        return joined.swapaxes(0, 1).reshape(joined.shape[1], -1)

    def _logits(self, xs: list[mx.array], wanted: Sequence[int] | None) -> np.ndarray:
        """The wanted tokens' logits; evaluates the whole pass."""
        parts = []
        for stream, x, share in zip(self.streams, xs, self.table.shares, strict=True):
            with mx.stream(stream):
                if wanted is not None:
                    x = x[mx.array(list(wanted), dtype=mx.int32)]
                normed = mx.fast.rms_norm(x, self.norm, EPS) + self.norm_bias
                parts.append(normed[None] @ share)
        mx.eval(*parts)
        out = np.empty((parts[0].shape[1], self.table.rows.shape[0] // TABLE_CHUNK, TABLE_CHUNK), np.float32)
        start = 0
        for part in parts:
            stop = start + part.shape[0]
            out[:, start:stop] = np.array(part, copy=False).swapaxes(0, 1)
            start = stop
        return out.reshape(out.shape[0], -1)[:, : self.table.vocabulary]
