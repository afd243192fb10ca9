"""A Llama layer for MLX's CPU backend in float32, in place of mlx-lm's TransformerBlock.

Few positions: the caller's stream, with half of the hidden units on a second one. Many positions of one row: blocks
dealt to both streams, each taking its own through every layer; they meet where keys and values are joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.base import scaled_dot_product_attention

from workers.llm.cpu.attention import BLOCK, attend, bound, causal, largest
from workers.llm.cpu.kernels import LlamaKernels, Norm, Turn
from workers.llm.cpu.matrix import FEW_ROWS, joined
from workers.llm.cpu.rotation import Rotation
from workers.llm.cpu.weights import Half, take
from workers.whisper.cpu.kernels import LOG2E
from workers.whisper.cpu.streams import split

_DEAL = (0, 1, 1, 0)
"""Which stream takes which block: later blocks see more keys."""

_AHEAD = 4
"""Layers that Python builds while the streams compute those before: a whole step's take it 7 ms."""


@dataclass(frozen=True)
class Split:
    """Hidden states of one row's positions, each stream's apart: parts[s] (positions, width), its blocks in order."""

    parts: list[mx.array]
    blocks: list[list[slice]]
    """Of the positions, for each stream."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    def join(self) -> mx.array:
        """(1, positions, width), in order."""
        pieces = []
        for part, blocks in zip(self.parts, self.blocks, strict=True):
            at = 0
            for block in blocks:
                length = block.stop - block.start
                pieces.append((block.start, part[at : at + length]))
                at += length
        return mx.concatenate([piece for _, piece in sorted(pieces, key=lambda each: each[0])])[None]


@dataclass
class Pass:
    """What all layers of one forward pass share: the first one makes it."""

    turns: list[Turn]
    """One, or one for each stream."""
    masks: list[tuple[Any, mx.array | None]]
    """Masks as the model gives them, and as they are added to scores."""
    triangles: dict[int, mx.array]


class Shape:
    """What the layers of a model have in common, and the streams they run on."""

    def __init__(
        self, block: Any, eps: float, kernels: LlamaKernels, helper: mx.Stream | None, small_products: bool
    ) -> None:
        attention = block.self_attn
        self.heads, self.key_heads = attention.n_heads, attention.n_kv_heads
        self.head_size = attention.head_dim
        self.width = attention.o_proj.weight.shape[0]
        self.rotation = Rotation(attention.rope, self.head_size, self.heads, self.key_heads)
        self.norm = Norm(self.width, eps)
        self.kernels = kernels
        self.helper = helper
        self.small_products = small_products
        self.current: Pass | None = None

    def streams(self) -> list[mx.Stream]:
        own = mx.default_stream(mx.Device(mx.cpu))
        return [own] if self.helper is None else [own, self.helper]


class Layer(Module):
    """Called as TransformerBlock is: (x, mask, cache) -> x. Takes the weights out of the block it is given."""

    def __init__(self, block: Any, index: int, shape: Shape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.use_sliding = block.use_sliding
        self._index, self._shape = index, shape
        self._weights = take(block, shape.head_size, 1 if shape.helper is None else 2, shape.small_products)

    def __call__(self, x: Any, mask: Any = None, cache: Any = None) -> Any:
        shape = self._shape
        rows, length, _ = x.shape
        if self._index == 0:
            shape.current = None
        if isinstance(x, Split) or (rows == 1 and length > FEW_ROWS and _is_plainly_causal(mask, cache)):
            return self._many(x if isinstance(x, Split) else _deal(x, shape), cache)
        return self._few(x, mask, cache)

    # Few positions, and whatever is not plainly causal

    def _few(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        shape, kernels = self._shape, self._shape.kernels
        rows, length, width = x.shape
        flat = x.reshape(rows * length, width)
        here = shape.current or self._begin(rows, length, cache)
        normed, weights = kernels.rms(flat, shape.norm), self._weights
        first, value = weights.first(normed), weights.value(normed)
        # Products that need no packing are over before another stream has woken up.
        with mx.stream(shape.streams()[0 if shape.small_products else -1]):
            second = weights.second(normed)
        queries, keys, values = _turned(shape, first, second, value, here.turns[0], rows)
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        if hasattr(cache, "bits"):
            mixed = scaled_dot_product_attention(queries, keys, values, cache=cache, scale=1.0, mask=mask)
            mixed = mixed.swapaxes(1, 2)
        else:
            mixed = attend(queries, keys, values, _added(here, mask, length, keys.shape[2]), kernels.exp2)
        flat = flat + self._weights.out(mixed.reshape(rows * length, -1))
        after = self._mlp_few(flat).reshape(rows, length, width)
        if self._index % _AHEAD == 0:
            mx.async_eval(after)  # type: ignore[no-untyped-call]  # the streams work while Python builds the next layers
        return after

    def _begin(self, rows: int, length: int, cache: Any) -> Pass:
        offset = 0 if cache is None else cache.offset
        end = (offset if isinstance(offset, int) else cache._idx) + length
        turn = self._shape.rotation.at(offset, rows, length, end, factor=1.0)
        self._shape.current = Pass([turn], [], {})
        return self._shape.current

    def _mlp_few(self, x: mx.array) -> mx.array:
        shape, kernels = self._shape, self._shape.kernels
        normed = kernels.rms(x, shape.norm)
        sums = []
        for stream, half in zip(shape.streams(), self._weights.halves, strict=True):
            with mx.stream(stream):
                sums.append(half.down(_hidden(half, normed, kernels)))
        return x + sums[0] if len(sums) == 1 else x + (sums[0] + sums[1])

    # Many positions of one row

    def _many(self, x: Split, cache: Any) -> Split:
        shape, kernels = self._shape, self._shape.kernels
        streams = shape.streams()
        offset = 0 if cache is None else int(cache.size())
        here = shape.current or self._begin_many(x, offset)
        projected = []
        for stream, part, turn in zip(streams, x.parts, here.turns, strict=True):
            with mx.stream(stream):
                normed, weights = kernels.rms(part, shape.norm), self._weights
                first, second = weights.first.many(normed), weights.second.many(normed)
                projected.append(_turned(shape, first, second, weights.value.many(normed), turn, 1))
        keys = _in_order([k[0] for _, k, _ in projected], x.blocks)
        values = _in_order([v[0] for _, _, v in projected], x.blocks)
        keys, values = keys[None], values[None]
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        keys, values = keys[0], values[0]
        with mx.stream(streams[-1]):
            weighed = mx.pad(values, [(0, 0), (0, 0), (0, 1)], constant_values=1)
        squares = mx.max(mx.stack([largest(q[0], keys) for q, _, _ in projected]), axis=0)
        mx.eval(squares, weighed, [q for q, _, _ in projected])
        limit = bound(squares)
        parts = []
        for stream, part, blocks, (queries, _, _) in zip(streams, x.parts, x.blocks, projected, strict=True):
            with mx.stream(stream):
                mixed, at = [], 0
                for block in blocks:
                    length, seen = block.stop - block.start, offset + block.start
                    q = queries[0, :, at : at + length]
                    k, v = keys[:, : seen + length], weighed[:, : seen + length]
                    triangle = _triangle(here, length, shape.heads // shape.key_heads)
                    mixed.append(causal(q, k, v, seen, kernels.exp2, triangle, limit))
                    at += length
                h = self._weights.out.many(mx.concatenate(mixed), part)
                parts.append(self._mlp_many(h))
        mx.async_eval(parts)  # type: ignore[no-untyped-call]  # the streams work while Python builds the next layer
        return Split(parts, x.blocks)

    def _begin_many(self, x: Split, offset: int) -> Pass:
        length = x.shape[1]
        turn = self._shape.rotation.at(offset, 1, length, offset + length, factor=LOG2E)
        turns = []
        for blocks in x.blocks:
            cosine = mx.concatenate([turn.cosine[block] for block in blocks])
            sine = mx.concatenate([turn.sine[block] for block in blocks])
            mx.eval(cosine, sine)
            turns.append(Turn(cosine, sine))
        self._shape.current = Pass(turns, [], {})
        return self._shape.current

    def _mlp_many(self, x: mx.array) -> mx.array:
        """All hidden units for some positions, on the stream that is the default now."""
        kernels = self._shape.kernels
        normed = kernels.rms(x, self._shape.norm)
        for half in self._weights.halves:
            x = half.down.many(_hidden(half, normed, kernels), x)
        return x


def _hidden(half: Half, normed: mx.array, kernels: LlamaKernels) -> mx.array:
    """(rows, width) -> (rows, hidden units)."""
    both = half.gate_up.apart(normed)
    middle = both.shape[0] // 2
    return joined(kernels.swiglu(both[:middle], both[middle:]))


def _turned(
    shape: Shape, first: mx.array, second: mx.array, value: mx.array, turn: Turn, rows: int
) -> tuple[mx.array, mx.array, mx.array]:
    """The projections (rows * length, …) -> queries, keys, values (rows, heads, length, head size), the first two
    turned."""
    halves = shape.kernels.rotate(first, second, turn)
    shaped = [half.reshape(rows, -1, half.shape[-1] * 2 // shape.head_size, shape.head_size // 2) for half in halves]
    turned = mx.concatenate([half.swapaxes(1, 2) for half in shaped], axis=-1)
    values = value.reshape(rows, -1, shape.key_heads, shape.head_size).swapaxes(1, 2)
    return turned[:, : shape.heads], turned[:, shape.heads :], values


def _is_plainly_causal(mask: Any, cache: Any) -> bool:
    """Whether each position of the one row sees all before it and nothing else."""
    if isinstance(mask, str):
        return mask == "causal"
    if type(cache).__name__ == "BatchKVCache":
        padded: bool = cache._right_padding is not None or max(cache.left_padding.tolist()) > 0
        return not padded
    return False


def _deal(x: mx.array, shape: Shape) -> Split:
    """One row's positions over the streams: halves if they are few, else blocks in turn."""
    length = x.shape[1]
    streams = shape.streams()
    count = len(streams) if length <= BLOCK else 4 * -(-length // (4 * BLOCK))
    blocks: list[list[slice]] = [[] for _ in streams]
    for number, block in enumerate(split(length, count)):
        blocks[_DEAL[number % 4] % len(streams)].append(block)
    return Split([mx.concatenate([x[0, block] for block in own]) for own in blocks], blocks)


def _in_order(parts: list[mx.array], blocks: list[list[slice]]) -> mx.array:
    """Each stream's (heads, positions, d), put together in the order of the positions."""
    pieces = []
    for part, own in zip(parts, blocks, strict=True):
        at = 0
        for block in own:
            length = block.stop - block.start
            pieces.append((block.start, part[:, at : at + length]))
            at += length
    return mx.concatenate([piece for _, piece in sorted(pieces, key=lambda each: each[0])], axis=1)


def _triangle(here: Pass, length: int, share: int) -> mx.array:
    if length not in here.triangles:
        here.triangles[length] = mx.tile(mx.tril(mx.ones((length, length))), (share, 1))
        mx.eval(here.triangles[length])
    return here.triangles[length]


def _added(here: Pass, mask: Any, length: int, end: int) -> mx.array | None:
    """The mask as something to add to scores, made once for all layers that are given the same one."""
    if mask is None:
        return None
    for known, made in here.masks:
        if known is mask:
            return made
    seen = mx.arange(end - length, end)[:, None] >= mx.arange(end) if isinstance(mask, str) else mask
    added = mx.where(seen, 0.0, -1e30) if seen.dtype == mx.bool_ else seen
    added = added.reshape((1,) * (4 - added.ndim) + added.shape)
    here.masks.append((mask, added))
    return added
