"""BERT's encoder in MLX: a text's tokens, each of which sees all others, to one vector.

Devlin et al. 2018 (BERT), Liu et al. 2019 (RoBERTa), as transformers names the weights. Always in float32, so that a
text has the same vector alone and among others. Knows tensors; knows no text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import mlx.core as mx
import numpy as np
from mlx.nn.layers import activations

from workers.embed.attention import attend
from workers.embed.exponential import Exponential
from workers.embed.files import Shape
from workers.llm.pooling import Pooling
from workers.llm.texts import Floats, Ids
from workers.llm.vectors import host, pooled

HIDDEN = -1e30
"""Added to the scores of what only fills a text up."""

Attend = Callable[[mx.array, mx.array, mx.array, mx.array], mx.array]
"""queries, keys, values (rows, heads, length, size), what is added to scores (rows, 1, 1, length) ->
(rows, length, width)."""


@dataclass(frozen=True)
class Steps:
    """What the layers compute that is no product, in the form that is fast here; and where."""

    attend: Attend
    gelu: Callable[[mx.array], mx.array]
    streams: list[mx.Stream] = field(default_factory=list)
    """Texts are shared out among them; none: all on the default one."""


def plain() -> Steps:
    """mlx's own."""

    def fused(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array) -> mx.array:
        rows, _, length, _ = queries.shape
        mixed = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask=mask)
        return mixed.swapaxes(1, 2).reshape(rows, length, -1)

    return Steps(fused, activations.gelu)


def tuned(streams: list[mx.Stream]) -> Steps:
    """For MLX's CPU backend: its own exponentials are slow, and an operation runs on one core."""
    exponential = Exponential()

    def attention(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array) -> mx.array:
        return attend(queries, keys, values, mask, exponential.exp2)

    gelu: Callable[[mx.array], mx.array] = mx.compile(_gelu) if exponential.compiled else _gelu
    return Steps(attention, gelu, streams)


def _gelu(x: mx.array) -> mx.array:
    """GELU with erf as in Abramowitz & Stegun 7.1.28 (absolute error 3e-7), constants scaled by 2^(-i/2)."""
    a = mx.abs(x)
    q = 0.0000380036 + a * (0.0000488906 + a * 0.0000053830)
    q = 1 + a * (0.0498673470 + a * (0.0211410061 + a * (0.0032776263 + a * q)))
    q2 = q * q
    q4 = q2 * q2
    q8 = q4 * q4
    return 0.5 * (x + a * (1 - 1 / (q8 * q8)))


@dataclass(frozen=True)
class Norm:
    weight: mx.array
    bias: mx.array


@dataclass(frozen=True)
class Dense:
    weight: mx.array
    """(out, in)."""
    bias: mx.array

    def __call__(self, x: mx.array) -> mx.array:
        """(rows, in) -> (rows, out)."""
        return mx.addmm(self.bias, x, self.weight.T)


@dataclass(frozen=True)
class Layer:
    """Queries are scaled already."""

    qkv: Dense
    out: Dense
    after_attention: Norm
    up: Dense
    down: Dense
    after_dense: Norm


@dataclass(frozen=True)
class Weights:
    """All of an encoder, evaluated float32."""

    words: mx.array
    positions: mx.array
    """Those that texts have, with the vector of the first kind of text added."""
    norm: Norm
    layers: tuple[Layer, ...]


class Encoder:
    """As texts.Network."""

    def __init__(self, weights: Weights, shape: Shape, pooling: Pooling, steps: Steps) -> None:
        self._weights, self._shape, self._pooling, self._steps = weights, shape, pooling, steps
        self._act: Callable[[mx.array], mx.array] = {
            "gelu": steps.gelu,
            "gelu_tanh": activations.gelu_approx,
            "relu": activations.relu,
            "silu": activations.silu,
        }[shape.activation]
        self.width = shape.width

    def together(self, inputs: Sequence[Ids]) -> Floats:
        parts = []
        streams = self._steps.streams or [mx.default_stream(mx.default_device())]
        for stream, share in zip(streams, self._shares(inputs), strict=False):
            with mx.stream(stream):
                parts.append(self._vectors(share))
        mx.eval(parts)
        return np.concatenate([host(part) for part in parts])

    def begin(self, ids: Ids) -> None:
        """Each token sees all others."""

    def adapted(self, key: str) -> Encoder:
        """Nobody asks: it has no adapters."""
        return self

    def _shares(self, inputs: Sequence[Ids]) -> list[Sequence[Ids]]:
        """In order, for each stream about as many tokens as for the others; fewer shares where there are few texts."""
        count = max(len(self._steps.streams), 1)
        ends = np.cumsum([len(ids) for ids in inputs])
        cuts = [0, *(int(np.searchsorted(ends, ends[-1] * part / count)) + 1 for part in range(1, count)), len(inputs)]
        return [inputs[start:stop] for start, stop in pairwise(cuts) if start < stop]

    def _vectors(self, inputs: Sequence[Ids]) -> mx.array:
        """(inputs, width)."""
        lengths = [len(ids) for ids in inputs]
        rows, length = len(inputs), max(lengths)
        padded = np.zeros((rows, length), np.int32)
        for row, ids in zip(padded, inputs, strict=True):
            row[: len(ids)] = ids
        filled = np.arange(length) >= np.array(lengths)[:, None]
        mask = mx.array(np.where(filled, np.float32(HIDDEN), np.float32(0)))[:, None, None]
        weights, shape = self._weights, self._shape
        x = weights.words[mx.array(padded)] + weights.positions[:length]
        x = self._norm(x.reshape(rows * length, shape.width), weights.norm)
        for layer in weights.layers:
            x = self._through(layer, x, mask, rows)
        return pooled(x.reshape(rows, length, shape.width), lengths, self._pooling)

    def _through(self, layer: Layer, x: mx.array, mask: mx.array, rows: int) -> mx.array:
        """(rows * length, width), one layer."""
        shape = self._shape
        heads = layer.qkv(x).reshape(rows, -1, 3 * shape.heads, shape.width // shape.heads).swapaxes(1, 2)
        queries, keys, values = (mx.contiguous(part) for part in mx.split(heads, 3, axis=1))
        mixed = self._steps.attend(queries, keys, values, mask)
        x = self._norm(x + layer.out(mixed.reshape(x.shape)), layer.after_attention)
        return self._norm(x + layer.down(self._act(layer.up(x))), layer.after_dense)

    def _norm(self, x: mx.array, norm: Norm) -> mx.array:
        return mx.fast.layer_norm(x, norm.weight, norm.bias, self._shape.eps)


class Missing(Exception):
    """These are no weights of such an encoder; the message says which is not there or has another size."""


def arrange(arrays: Mapping[str, mx.array], shape: Shape, quantization: Mapping[str, int] | None = None) -> Weights:
    """transformers' weights as they are used here, evaluated. quantization: mlx's group_size and bits.

    Raises Missing.
    """
    found = _Arrays(arrays, quantization or {})
    width, first = shape.width, shape.first_position
    words = found.matrix("embeddings.word_embeddings", None, width)
    positions = found.matrix("embeddings.position_embeddings", first + shape.window, width)[first:]
    kinds = found.matrix("embeddings.token_type_embeddings", None, width)
    layers = tuple(_layer(found, f"encoder.layer.{index}", shape) for index in range(shape.layers))
    made = Weights(words, positions + kinds[0], found.norm("embeddings.LayerNorm", width), layers)
    mx.eval(made.words, made.positions, made.norm.weight, made.norm.bias)
    return made


def _layer(found: _Arrays, place: str, shape: Shape) -> Layer:
    width, scale = shape.width, (shape.width // shape.heads) ** -0.5
    query, key, value = (
        found.dense(f"{place}.attention.self.{name}", width, width) for name in ("query", "key", "value")
    )
    layer = Layer(
        qkv=Dense(
            mx.concatenate([query.weight * scale, key.weight, value.weight]),
            mx.concatenate([query.bias * scale, key.bias, value.bias]),
        ),
        out=found.dense(f"{place}.attention.output.dense", width, width),
        after_attention=found.norm(f"{place}.attention.output.LayerNorm", width),
        up=found.dense(f"{place}.intermediate.dense", shape.hidden, width),
        down=found.dense(f"{place}.output.dense", width, shape.hidden),
        after_dense=found.norm(f"{place}.output.LayerNorm", width),
    )
    mx.eval([array for part in vars(layer).values() for array in vars(part).values()])
    return layer


class _Arrays:
    """Weights by transformers' names, whatever stands before those in a file."""

    def __init__(self, arrays: Mapping[str, mx.array], quantization: Mapping[str, int]) -> None:
        self._arrays, self._quantization = arrays, quantization
        anchor = "embeddings.word_embeddings.weight"
        self._prefix = next((name[: -len(anchor)] for name in arrays if name.endswith(anchor)), "")

    def matrix(self, name: str, rows: int | None, columns: int) -> mx.array:
        """(rows, columns) float32."""
        weight = self._array(f"{name}.weight")
        if f"{self._prefix}{name}.scales" in self._arrays:
            scales, biases = self._array(f"{name}.scales"), self._array(f"{name}.biases")
            sizes = {key: self._quantization.get(key) for key in ("group_size", "bits")}
            weight = mx.dequantize(
                weight, scales.astype(mx.float32), biases.astype(mx.float32), sizes["group_size"], sizes["bits"]
            )
        return self._fits(name, weight, (rows or weight.shape[0], columns))

    def dense(self, name: str, out: int, columns: int) -> Dense:
        bias = self._fits(f"{name}.bias", self._array(f"{name}.bias"), (out,))
        return Dense(mx.contiguous(self.matrix(name, out, columns)), bias)

    def norm(self, name: str, width: int) -> Norm:
        weight, bias = self._array(f"{name}.weight"), self._array(f"{name}.bias")
        return Norm(self._fits(name, weight, (width,)), self._fits(name, bias, (width,)))

    def _array(self, name: str) -> mx.array:
        found = self._arrays.get(self._prefix + name)
        if found is None:
            raise Missing(f"{name} is missing")
        return found

    def _fits(self, name: str, array: mx.array, shape: tuple[int, ...]) -> mx.array:
        if array.shape != shape:
            raise Missing(f"{name} has the size {array.shape}, not {shape}")
        return array.astype(mx.float32)
