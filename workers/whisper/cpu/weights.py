"""The decoder's weights as the tuned CPU decoder wants them: cut by stream, in small chunks, norms folded in.

Why chunks: OpenBLAS packs its operands before a product of more than a million multiplications, which costs more than
the product itself when there are few rows. As (n / chunk, chunk, k) each product stays below that.
"""

from dataclasses import dataclass
from math import gcd
from typing import Any

import mlx.core as mx

from workers.whisper.cpu.encoder import fold_norm
from workers.whisper.cpu.kernels import LOG2E
from workers.whisper.cpu.streams import split

# OpenBLAS's limit for its small-matrix kernels (multiplications per product), and the rows we want to stay below it.
SMALL_PRODUCT = 1_000_000
MANY_ROWS = 16
TABLE_CHUNK = 64


def chunk_rows(out: int, k: int) -> int:
    """The rows of a chunk of an (out, k) weight: a power of two up to 64 that divides `out`."""
    rows = gcd(out, 64)
    while rows > 16 and MANY_ROWS * rows * k > SMALL_PRODUCT:
        rows //= 2
    return rows


@dataclass(frozen=True)
class Chunked:
    """y = W x + b with W (chunks, k, rows) transposed for the product and b (chunks, 1, rows) or None."""

    weight: mx.array
    bias: mx.array | None

    def __call__(self, x: mx.array) -> mx.array:
        """x (rows, k) to (chunks, rows, chunk)."""
        y = x[None] @ self.weight
        return y if self.bias is None else y + self.bias


def chunked(weight: mx.array, bias: mx.array | None, rows: int) -> Chunked:
    """Cut an (out, k) weight into chunks of `rows`; the copy is contiguous and evaluated."""
    cut = mx.contiguous(weight).reshape(-1, rows, weight.shape[1])
    cut_bias = None if bias is None else mx.contiguous(bias).reshape(-1, 1, rows)
    mx.eval(cut, *([] if cut_bias is None else [cut_bias]))
    return Chunked(cut.swapaxes(1, 2), cut_bias)


@dataclass(frozen=True)
class Part:
    """One stream's share of one layer: some heads of both attentions and some of the hidden units."""

    heads: int
    first_head: int
    qkv: Chunked  # 3 heads chunks of d/heads rows: queries, keys, values
    out: Chunked
    cross_query: Chunked  # scaled to powers of two
    cross_key: mx.array  # (heads d/heads, d)
    cross_key_bias: mx.array  # (heads d/heads, 1)
    cross_value: mx.array  # (heads (d/heads + 1), d), a zero row after each head
    cross_value_bias: mx.array  # (heads (d/heads + 1), 1): 1 for the zero rows
    cross_out: Chunked
    up: Chunked
    down: Chunked


def _writer(linear: Any, columns: slice, first: bool) -> Chunked:
    """The share of a layer that adds to the residual stream, centred, so that every layer norm becomes an RMS norm.

    Only the first stream's share carries the bias.
    """
    weight = linear.weight[:, columns]
    weight = weight - mx.mean(weight, axis=0, keepdims=True)
    bias = linear.bias - mx.mean(linear.bias) if first else None
    return chunked(weight, bias, chunk_rows(*weight.shape))


def _cross_values(attention: Any, norm: Any, heads: int, rows: slice) -> tuple[mx.array, mx.array]:
    """Weight and bias of the cross values with a column of ones after each head, as in the encoder."""
    weight, bias = fold_norm(norm, attention.value.weight[rows], attention.value.bias[rows])
    width = weight.shape[1]
    weight = mx.pad(weight.reshape(heads, -1, width), [(0, 0), (0, 1), (0, 0)])
    bias = mx.pad(bias.reshape(heads, -1), [(0, 0), (0, 1)], constant_values=1)
    return weight.reshape(-1, width), bias.reshape(-1)


def _part(block: Any, encoder_norm: Any, heads: slice, hidden: slice, head_size: int, first: bool) -> Part:
    """heads and hidden: this stream's share. encoder_norm: the encoder's last norm, folded into cross K and V."""
    own, cross = block.attn, block.cross_attn
    rows = slice(heads.start * head_size, heads.stop * head_size)
    scale = head_size**-0.5
    q, q_bias = fold_norm(block.attn_ln, own.query.weight[rows] * scale, own.query.bias[rows] * scale)
    k, k_bias = fold_norm(block.attn_ln, own.key.weight[rows], None)
    v, v_bias = fold_norm(block.attn_ln, own.value.weight[rows], own.value.bias[rows])
    scale *= LOG2E
    cross_q = fold_norm(block.cross_attn_ln, cross.query.weight[rows] * scale, cross.query.bias[rows] * scale)
    cross_k, cross_k_bias = fold_norm(encoder_norm, cross.key.weight[rows], None)
    cross_v, cross_v_bias = _cross_values(cross, encoder_norm, heads.stop - heads.start, rows)
    up, up_bias = fold_norm(block.mlp_ln, block.mlp1.weight[hidden], block.mlp1.bias[hidden])
    part = Part(
        heads=heads.stop - heads.start,
        first_head=heads.start,
        qkv=chunked(mx.concatenate([q, k, v]), mx.concatenate([q_bias, k_bias, v_bias]), head_size),
        out=_writer(own.out, rows, first),
        cross_query=chunked(*cross_q, head_size),
        cross_key=cross_k,
        cross_key_bias=cross_k_bias[:, None],
        cross_value=cross_v,
        cross_value_bias=cross_v_bias[:, None],
        cross_out=_writer(cross.out, rows, first),
        up=chunked(up, up_bias, chunk_rows(*up.shape)),
        down=_writer(block.mlp2, hidden, first),
    )
    mx.eval(part.cross_key, part.cross_key_bias, part.cross_value, part.cross_value_bias)
    return part


def most_streams(dims: Any) -> int:
    """How many streams the decoder has work for: each needs a head, a chunk of hidden units and one of the table."""
    hidden = 4 * dims.n_text_state
    return int(min(dims.n_text_head, hidden // gcd(hidden, 64), -(-dims.n_vocab // TABLE_CHUNK)))


def take_layers(module: Any, encoder_norm: Any, heads: int, streams: int) -> list[list[Part]]:
    """The decoder's layers, each as one Part per stream; empties the module on the way, layer by layer."""
    layers = []
    while module.blocks:
        block = module.blocks.pop(0)
        width, hidden = block.mlp1.weight.shape[1], block.mlp1.weight.shape[0]
        unit = gcd(hidden, 64)
        shares = [slice(s.start * unit, s.stop * unit) for s in split(hidden // unit, streams)]
        layers.append(
            [
                _part(block, encoder_norm, own, share, width // heads, i == 0)
                for i, (own, share) in enumerate(zip(split(heads, streams), shares, strict=True))
            ]
        )
    return layers


@dataclass(frozen=True)
class Table:
    """The token table, which is both the embedding and the logits' weight; one copy, cut at chunks for the streams."""

    rows: mx.array  # (vocabulary padded to whole chunks, d)
    vocabulary: int
    shares: list[mx.array]  # (chunks, d, TABLE_CHUNK) each, views of rows


def take_table(module: Any, streams: int) -> Table:
    """Take the table out of the decoder module; its own array is dropped."""
    weight = module.token_embedding.weight
    module.token_embedding.weight = mx.zeros((1, 1))
    vocabulary, width = weight.shape
    rows = mx.pad(weight, [(0, -vocabulary % TABLE_CHUNK), (0, 0)])
    mx.eval(rows)
    cut = rows.reshape(-1, TABLE_CHUNK, width)
    shares = [cut[share].swapaxes(1, 2) for share in split(cut.shape[0], streams)]
    mx.eval(shares)
    return Table(rows, vocabulary, shares)
