"""The Whisper model as the engine sees it, and its plain formulation for any backend and any weights.

Knows arrays, positions and windows; nothing of text, rules or time. The one tuned for the CPU is in cpu.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import mlx.core as mx
import numpy as np
from mlx.nn.layers.activations import gelu
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear

# Positions by which the self K/V grow, so that steps write in place and short texts cost little memory.
GROWTH = 64


class Encoded(Protocol):
    """One encoded window: its keys and values for the decoder's cross attention."""

    @property
    def context(self) -> int:
        """Encoder frames, 20 ms each."""
        ...


class Rows(Protocol):
    """Sequences over one window that stand at the same position: the beams or samples of one attempt at it."""

    @property
    def n(self) -> int: ...

    @property
    def position(self) -> int:
        """Tokens so far, the same for every row."""
        ...

    def select(self, indices: Sequence[int]) -> None:
        """Row i becomes what row indices[i] was; rows may be doubled and dropped, so n becomes len(indices)."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens of every row."""
        ...


E = TypeVar("E", bound=Encoded)
R = TypeVar("R", bound=Rows)


class WhisperModel(Protocol[E, R]):
    """What the engine asks of a model. Results for a row do not depend on what else is in the call (1e-3 in logits).

    Everything runs in the thread that made the model. Encoded and Rows free their memory when they are dropped.
    """

    @property
    def dims(self) -> Any:
        """mlx_whisper.whisper.ModelDimensions"""
        ...

    @property
    def alignment_heads(self) -> list[tuple[int, int]]:
        """(layer, head), the order of align's first axis."""
        ...

    def encode(self, mels: Sequence[Any], contexts: Sequence[int]) -> list[E]:
        """Each mel (>= 2 context, n_mels), numpy or mlx. A context below n_audio_ctx drops the frames behind it."""
        ...

    def prefill(self, encoded: E, tokens: Sequence[int], at: Sequence[int]) -> tuple[R, np.ndarray]:
        """One row that has read `tokens`; logits (len(at), vocabulary) float32 behind the tokens `at` (-1: last)."""
        ...

    def prefill_many(self, starts: Sequence[tuple[E, Sequence[int], Sequence[int]]]) -> list[tuple[R, np.ndarray]]:
        """Several prefills in one pass, (encoded, tokens, at) each; eight short ones cost little more than two."""
        ...

    def step(self, rows: Sequence[R], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Tokens (n,) or (n, length) for the rows of every group: logits, a row of them for each token. Waits once.

        Groups may differ in window, context and position, and come in any company from one step to the next.
        """
        ...

    def align(self, encoded: E, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The alignment heads' cross attention **before** its softmax, (heads, tokens, frames) float32, and logits
        (tokens, vocabulary): what mlx_whisper's timing.py takes."""
        ...


def choose(module: Any, streams: int | None = None) -> WhisperModel[Any, Any]:
    """The fitting formulation for a loaded mlx_whisper Whisper: the tuned one for float32 weights on the CPU.

    The module is consumed. streams: how many CPU streams; None is one per core.
    """
    if tuned(module):
        from workers.whisper.cpu.model import CpuModel

        return CpuModel(module, streams)
    return PlainModel(module)


def tuned(module: Any) -> bool:
    """Whether cpu.py can run this module: plain float32 weights, computed on the CPU."""
    linear = type(module.decoder.token_embedding) is Embedding and type(module.encoder.blocks[0].mlp1) is Linear
    return linear and dtype_of(module) == mx.float32 and mx.default_device().type == mx.DeviceType.cpu


def dtype_of(module: Any) -> mx.Dtype:
    """The type the model computes in: convolutions are never quantized."""
    dtype: mx.Dtype = module.encoder.conv1.weight.dtype
    return dtype


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


class PlainModel:
    """WhisperModel in MLX's own words, over mlx_whisper's modules: Metal, CUDA or CPU, any float type, quantized."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.dims = module.dims
        self.alignment_heads: list[tuple[int, int]] = [(layer, head) for layer, head in module.alignment_heads.tolist()]
        self.dtype = dtype_of(module)

    def encode(self, mels: Sequence[Any], contexts: Sequence[int]) -> list[PlainEncoded]:
        windows = []
        for mel, context in zip(mels, contexts, strict=True):
            x = mx.array(mel)[None, : 2 * context].astype(self.dtype)
            encoded = self._cross(self._features(x), context)
            mx.eval(encoded.cross)
            windows.append(encoded)
        return windows

    def prefill(self, encoded: PlainEncoded, tokens: Sequence[int], at: Sequence[int]) -> tuple[PlainRows, np.ndarray]:
        return self.prefill_many([(encoded, tokens, at)])[0]

    def prefill_many(
        self, starts: Sequence[tuple[PlainEncoded, Sequence[int], Sequence[int]]]
    ) -> list[tuple[PlainRows, np.ndarray]]:
        groups = [PlainRows(encoded) for encoded, _, _ in starts]
        ids = [np.asarray(tokens)[None] for _, tokens, _ in starts]
        logits = self._forward(groups, ids, wanted_tokens(starts))
        return list(zip(groups, np.split(logits, np.cumsum([len(at) for _, _, at in starts])[:-1]), strict=True))

    def step(self, rows: Sequence[PlainRows], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
        logits = self._forward(rows, [np.reshape(ids, (group.n, -1)) for group, ids in zip(rows, tokens, strict=True)])
        return np.split(logits, np.cumsum([np.size(ids) for ids in tokens])[:-1])

    def align(self, encoded: PlainEncoded, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        scores: dict[tuple[int, int], mx.array] = {}
        logits = self._forward([PlainRows(encoded)], [np.asarray(tokens)[None]], scores=scores)
        chosen = mx.stack([scores[head] for head in self.alignment_heads]).astype(mx.float32)
        return np.array(chosen), logits

    def _features(self, mel: mx.array) -> mx.array:
        """(1, 2 context, n_mels) to (1, context, d)."""
        encoder = self.module.encoder
        x = gelu(encoder.conv1(mel))
        x = gelu(encoder.conv2(x))
        x = x + encoder._positional_embedding[: x.shape[1]]
        for block in encoder.blocks:
            attention = block.attn
            h = block.attn_ln(x)
            qkv = (attention.query(h), attention.key(h), attention.value(h))
            q, k, v = (_heads(part, attention.n_head) for part in qkv)
            x = x + attention.out(_joined(_attend(q, k, v)))
            x = x + block.mlp2(gelu(block.mlp1(block.mlp_ln(x))))
        features: mx.array = encoder.ln_post(x)
        return features

    def _cross(self, features: mx.array, context: int) -> PlainEncoded:
        attentions = [block.cross_attn for block in self.module.decoder.blocks]
        return PlainEncoded(
            context, [(_heads(a.key(features), a.n_head), _heads(a.value(features), a.n_head)) for a in attentions]
        )

    def _forward(
        self,
        groups: Sequence[PlainRows],
        tokens: Sequence[np.ndarray],
        wanted: Sequence[int] | None = None,
        scores: dict[tuple[int, int], mx.array] | None = None,
    ) -> np.ndarray:
        """Append tokens[i] (n, length) to groups[i]; logits (wanted tokens, vocabulary); None wants all.

        scores: filled with the cross scores (tokens, frames) by (layer, head).
        """
        decoder = self.module.decoder
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


def wanted_tokens(starts: Sequence[tuple[Any, Sequence[int], Sequence[int]]]) -> list[int]:
    """The `at` of several prefills, counted through the tokens of all of them."""
    wanted, before = [], 0
    for _, tokens, at in starts:
        wanted += [before + position % len(tokens) for position in at]
        before += len(tokens)
    return wanted


def _heads(x: mx.array, heads: int) -> mx.array:
    """(b, length, d) to (b, heads, length, d/heads)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _joined(x: mx.array) -> mx.array:
    """(b, heads, length, d/heads) to (b, length, d)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _attend(q: mx.array, k: mx.array, v: mx.array, mask: str | None = None) -> mx.array:
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=mask)
