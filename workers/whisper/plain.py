"""Whisper in MLX's own words, over mlx_whisper's modules: Metal, CUDA or CPU, any float type, quantized.

Knows arrays, positions and windows; nothing of text, rules or time. The interface is in model.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.activations import gelu

from workers.whisper.model import TwoHalves, dtype_of

# Positions by which the self K/V grow, so that steps write in place and short texts cost little memory.
GROWTH = 64


@dataclass(frozen=True)
class PlainEncoded:
    """Cross keys and values of one window, a pair of (1, heads, frames, d/heads) for each layer."""

    context: int
    cross: list[tuple[mx.array, mx.array]]


@dataclass
class PlainRows:
    """Self keys and values, [layer] (n, heads, capacity, d/heads)."""

    encoded: PlainEncoded
    n: int = 1
    position: int = 0
    keys: list[mx.array] = field(default_factory=list)
    values: list[mx.array] = field(default_factory=list)

    def select(self, indices: Sequence[int]) -> None:
        order = mx.array(list(indices), dtype=mx.int32)
        self.keys = [mx.take(k, order, axis=0) for k in self.keys]
        self.values = [mx.take(v, order, axis=0) for v in self.values]
        self.n = len(indices)

    def truncate(self, length: int) -> None:
        """What the caches hold behind it is never read and is written over."""
        self.position = length

    def append(self, layer: int, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
        """Write (n, heads, length, d/heads) behind the position; all keys and values up to there."""
        stop = self.position + k.shape[2]
        for cache, new in ((self.keys, k), (self.values, v)):
            if layer == len(cache):
                cache.append(mx.zeros((self.n, k.shape[1], stop + GROWTH - 1, k.shape[3]), dtype=k.dtype))
            elif stop > cache[layer].shape[2]:
                cache[layer] = mx.pad(cache[layer], [(0, 0), (0, 0), (0, GROWTH), (0, 0)])
            cache[layer][:, :, self.position : stop] = new
        return self.keys[layer][:, :, :stop], self.values[layer][:, :, :stop]


@dataclass(frozen=True)
class _Block:
    """`length` new tokens for each row of a group; `at`: where they lie among all tokens of the pass."""

    rows: PlainRows
    length: int
    at: slice


def plain_model(module: Any) -> TwoHalves[PlainEncoded, PlainRows]:
    """Both halves over one module."""
    heads = module.alignment_heads.tolist()
    return TwoHalves(module.dims, heads, PlainEncoder(module), PlainDecoder(module))


class PlainEncoder:
    """Log-mel frames to audio features."""

    def __init__(self, module: Any) -> None:
        self.module = module.encoder
        self.dtype = dtype_of(module)

    def __call__(self, mel: mx.array, context: int) -> mx.array:
        """mel (>= 2 context, n_mels) to (context, d)."""
        encoder = self.module
        x = gelu(encoder.conv1(mel[None, : 2 * context].astype(self.dtype)))
        x = gelu(encoder.conv2(x))
        x = x + encoder._positional_embedding[: x.shape[1]]
        for block in encoder.blocks:
            attention = block.attn
            h = block.attn_ln(x)
            qkv = (attention.query(h), attention.key(h), attention.value(h))
            q, k, v = (_heads(part, attention.n_head) for part in qkv)
            x = x + attention.out(_joined(_attend(q, k, v)))
            x = x + block.mlp2(gelu(block.mlp1(block.mlp_ln(x))))
        features: mx.array = encoder.ln_post(x)[0]
        return features


class PlainDecoder:
    """Tokens to logits."""

    def __init__(self, module: Any) -> None:
        self.module = module.decoder
        self.heads = module.dims.n_text_head

    def cross(self, features: mx.array) -> PlainEncoded:
        x = features[None]
        attentions = [block.cross_attn for block in self.module.blocks]
        cross = [(_heads(a.key(x), self.heads), _heads(a.value(x), self.heads)) for a in attentions]
        mx.eval(cross)
        return PlainEncoded(features.shape[0], cross)

    def new_rows(self, encoded: PlainEncoded, length: int) -> PlainRows:
        """Its caches come with the first tokens."""
        return PlainRows(encoded)

    def align(
        self, rows: PlainRows, tokens: Sequence[int], heads: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        scores: dict[tuple[int, int], mx.array] = {}
        logits = self.forward([rows], [np.asarray(tokens)[None]], scores=scores)
        return np.array(mx.stack([scores[head] for head in heads]).astype(mx.float32)), logits

    def forward(
        self,
        groups: Sequence[PlainRows],
        tokens: Sequence[np.ndarray],
        wanted: Sequence[int] | None = None,
        scores: dict[tuple[int, int], mx.array] | None = None,
    ) -> np.ndarray:
        """Append tokens[i] (n, length) to groups[i]; logits (wanted tokens, vocabulary); None wants all.

        scores: filled with the cross scores (tokens, frames) by (layer, head).
        """
        decoder = self.module
        blocks, embedded, start = [], [], 0
        for rows, ids in zip(groups, tokens, strict=True):
            blocks.append(_Block(rows, ids.shape[1], slice(start, start + ids.size)))
            positions = decoder.positional_embedding[rows.position : rows.position + ids.shape[1]]
            embedded.append((decoder.token_embedding(mx.array(ids)) + positions).reshape(ids.size, -1))
            start += ids.size
        x = mx.concatenate(embedded)
        for index, layer in enumerate(decoder.blocks):
            x = x + self._self_attention(index, layer.attn, layer.attn_ln(x), blocks)
            x = x + self._cross_attention(index, layer.cross_attn, layer.cross_attn_ln(x), blocks, scores)
            x = x + layer.mlp2(gelu(layer.mlp1(layer.mlp_ln(x))))
        if wanted is not None:
            x = x[mx.array(list(wanted), dtype=mx.int32)]
        logits = decoder.token_embedding.as_linear(decoder.ln(x)).astype(mx.float32)
        # The caches too: a last layer's would stay lazy and hold the whole pass.
        mx.eval(logits, *(cache for rows in groups for cache in (*rows.keys, *rows.values)))
        for block in blocks:
            block.rows.position += block.length
        return np.array(logits)

    def _self_attention(self, index: int, attention: Any, h: mx.array, blocks: list[_Block]) -> mx.array:
        """Products over all tokens together, attention group by group."""
        qkv = (attention.query(h), attention.key(h), attention.value(h))
        joined = []
        for block in blocks:
            shape = (block.rows.n, block.length, -1)
            q, k, v = (_heads(part[block.at].reshape(shape), attention.n_head) for part in qkv)
            k, v = block.rows.append(index, k, v)
            o = _attend(q, k, v, "causal" if block.length > 1 else None)
            joined.append(_joined(o).reshape(block.rows.n * block.length, -1))
        return attention.out(mx.concatenate(joined))  # type: ignore[no-any-return]

    def _cross_attention(
        self,
        index: int,
        attention: Any,
        h: mx.array,
        blocks: list[_Block],
        scores: dict[tuple[int, int], mx.array] | None,
    ) -> mx.array:
        """All rows of a window are queries of one attention over its keys."""
        queries = attention.query(h)
        joined = []
        for block in blocks:
            q = _heads(queries[None, block.at], attention.n_head)
            k, v = block.rows.encoded.cross[index]
            if scores is not None:
                qk = (q * q.shape[-1] ** -0.5) @ k.swapaxes(2, 3)
                scores.update({(index, head): qk[0, head] for head in range(attention.n_head)})
            joined.append(_joined(_attend(q, k, v))[0])
        return attention.out(mx.concatenate(joined))  # type: ignore[no-any-return]


def _heads(x: mx.array, heads: int) -> mx.array:
    """(b, length, d) to (b, heads, length, d/heads)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _joined(x: mx.array) -> mx.array:
    """(b, heads, length, d/heads) to (b, length, d)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _attend(q: mx.array, k: mx.array, v: mx.array, mask: str | None = None) -> mx.array:
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=mask)
