"""Whisper's encoder for MLX's CPU backend in float32: rows of one window over several streams.

Each stream takes a share of the frames through every layer: its own queries against all keys. The streams meet once
per layer, where keys and values are joined. The plain formulation is in model.py; the tests hold the two together.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from workers.whisper.cpu.kernels import LOG2E, SCORE_LIMIT, Kernels
from workers.whisper.cpu.streams import split

EPS = 1e-5  # mlx.nn.LayerNorm's default, which all Whisper models use


@dataclass(frozen=True)
class Layer:
    """One layer's weights, (out, in) as in nn.Linear, with the affine part of the layer norms folded in."""

    qkv: mx.array  # (3 d + heads, d): queries scaled to powers of two, keys, values with a zero row after each head
    qkv_bias: mx.array  # (3 d + heads): 1 for the zero rows, so that P @ [V, 1] also sums P
    out: mx.array
    out_bias: mx.array
    up: mx.array  # (4 d, d)
    up_bias: mx.array
    down: mx.array
    down_bias: mx.array


def fold_norm(norm: Any, weight: mx.array, bias: mx.array | None) -> tuple[mx.array, mx.array]:
    """Weight and bias that do to a normalised row what `weight` and `bias` do to the norm's output."""
    folded = weight @ norm.bias
    return weight * norm.weight, folded if bias is None else folded + bias


def _layer(block: Any, heads: int) -> Layer:
    attention = block.attn
    width = attention.query.weight.shape[0]
    scale = (width // heads) ** -0.5 * LOG2E
    q, q_bias = fold_norm(block.attn_ln, attention.query.weight * scale, attention.query.bias * scale)
    k, k_bias = fold_norm(block.attn_ln, attention.key.weight, None)
    v, v_bias = fold_norm(block.attn_ln, attention.value.weight, attention.value.bias)
    v = mx.pad(v.reshape(heads, -1, width), [(0, 0), (0, 1), (0, 0)]).reshape(-1, width)
    v_bias = mx.pad(v_bias.reshape(heads, -1), [(0, 0), (0, 1)], constant_values=1).reshape(-1)
    up, up_bias = fold_norm(block.mlp_ln, block.mlp1.weight, block.mlp1.bias)
    layer = Layer(
        mx.concatenate([q, k, v]),
        mx.concatenate([q_bias, k_bias, v_bias]),
        attention.out.weight,
        attention.out.bias,
        up,
        up_bias,
        block.mlp2.weight,
        block.mlp2.bias,
    )
    mx.eval(*vars(layer).values())
    return layer


class Encoder:
    """Log-mel frames to audio features; owns the encoder's weights, which it takes out of the module it is given."""

    def __init__(self, module: Any, heads: int, streams: list[mx.Stream], kernels: Kernels) -> None:
        self.heads = heads
        self.streams = streams
        self.kernels = kernels
        self.careful_heads = 0  # how many heads so far needed their maximum subtracted
        self.layers: list[Layer] = []
        while module.blocks:  # one by one, so that old and new weights never stand side by side
            self.layers.append(_layer(module.blocks.pop(0), heads))
        self.width = module.ln_post.weight.shape[0]
        self.conv1, self.conv1_bias = module.conv1.weight.reshape(self.width, -1), module.conv1.bias
        self.conv2, self.conv2_bias = module.conv2.weight.reshape(self.width, -1), module.conv2.bias
        self.positions: mx.array = module._positional_embedding
        mx.eval(self.conv1, self.conv2, self.positions)

    def __call__(self, mel: mx.array, context: int) -> list[mx.array]:
        """mel (>= 2 context, n_mels) float32 to one (frames, d) for each stream, normalised without the last affine.

        Lazy but for the range guard, which evaluates each layer's queries and keys.
        """
        parts = split(context, min(context, len(self.streams)))
        xs = []
        for stream, part in zip(self.streams, parts, strict=False):
            with mx.stream(stream):
                xs.append(self._convolve(mel[: 2 * context], part))
        for layer in self.layers:
            xs = self._through(layer, xs)
        normed = []
        for stream, x in zip(self.streams, xs, strict=False):
            with mx.stream(stream):
                normed.append(mx.fast.layer_norm(x, None, None, EPS))
        return normed

    def _convolve(self, mel: mx.array, part: slice) -> mx.array:
        """Both convolutions and the positions, for some of the frames; as matrix products over strided windows."""
        n_mels = mel.shape[1]
        first, last = max(2 * part.start - 1, 0), 2 * part.stop  # frame t needs rows 2t-1 .. 2t+1 of the first one
        padded = mx.pad(mel, [(1, 1), (0, 0)])
        windows = mx.as_strided(padded, (last - first, 3 * n_mels), (n_mels, 1), first * n_mels)
        x = self.kernels.gelu(mx.addmm(self.conv1_bias, windows, self.conv1.T))
        if part.start == 0:
            x = mx.pad(x, [(1, 0), (0, 0)])
        windows = mx.as_strided(x, (part.stop - part.start, 3 * self.width), (2 * self.width, 1), 0)
        x = self.kernels.gelu(mx.addmm(self.conv2_bias, windows, self.conv2.T))
        return x + self.positions[part]

    def _through(self, layer: Layer, xs: list[mx.array]) -> list[mx.array]:
        """One layer, all streams."""
        projected = []
        for stream, x in zip(self.streams, xs, strict=False):
            with mx.stream(stream):
                projected.append(self._project(layer, x))
        with mx.stream(self.streams[0]):
            keys = mx.concatenate([k for _, k, _, _ in projected], axis=1)
        with mx.stream(self.streams[-1]):
            values = mx.concatenate([v for _, _, v, _ in projected], axis=1)
        careful = self._guard([norms for _, _, _, norms in projected], keys, values)
        out: list[mx.array] = []
        for stream, x, (queries, _, _, _) in zip(self.streams, xs, projected, strict=False):
            with mx.stream(stream):
                x = x + mx.addmm(layer.out_bias, self._attend(queries, keys, values, careful), layer.out.T)
                hidden = mx.addmm(layer.up_bias, mx.fast.layer_norm(x, None, None, EPS), layer.up.T)
                out.append(x + mx.addmm(layer.down_bias, self.kernels.gelu(hidden), layer.down.T))
        return out

    def _project(self, layer: Layer, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """(rows, d) to queries, keys (heads, rows, d/heads), values (heads, rows, d/heads + 1), and the largest
        squared norm of a query and of a key for each head, (2, heads)."""
        rows, heads, width = x.shape[0], self.heads, self.width
        qkv = mx.addmm(layer.qkv_bias, mx.fast.layer_norm(x, None, None, EPS), layer.qkv.T)
        qk = mx.contiguous(qkv[:, : 2 * width].reshape(rows, 2 * heads, -1).swapaxes(0, 1))
        values = mx.contiguous(qkv[:, 2 * width :].reshape(rows, heads, -1).swapaxes(0, 1))
        squares = (qk * qk) @ mx.ones((qk.shape[-1], 1))  # a matrix product: MLX's own sums are slow on the CPU
        norms = mx.max(squares.reshape(2, heads, rows), axis=-1)
        return qk[:heads], qk[heads:], values, norms

    def _guard(self, norms: list[mx.array], keys: mx.array, values: mx.array) -> list[bool]:
        """For each head, whether a score may leave exp2's range: |q.k| <= |q| |k|. Waits for the projections.

        Written so that a NaN counts as too large.
        """
        mx.eval(keys, values, *norms)
        largest = [max(per_head) for per_head in zip(*(n.reshape(-1).tolist() for n in norms), strict=True)]
        limit = SCORE_LIMIT**2
        careful = [not (q * k < limit) for q, k in zip(largest[: self.heads], largest[self.heads :], strict=True)]
        self.careful_heads += sum(careful)
        return careful

    def _attend(self, queries: mx.array, keys: mx.array, values: mx.array, careful: list[bool]) -> mx.array:
        """A share of the queries against all keys, head by head so that one head's scores stay in the cache."""
        heads = []
        for h, subtract in enumerate(careful):
            scores = queries[h] @ keys[h].T
            weights = self.kernels.exp2_below_max(scores) if subtract else self.kernels.exp2(scores)
            heads.append(weights @ values[h])
        joined = mx.stack(heads, axis=1)  # (rows, heads, d/heads + 1), the last column the sum of the weights
        return (joined[..., :-1] / joined[..., -1:]).reshape(-1, self.width)
