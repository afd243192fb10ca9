"""Reads a Whisper model in CTranslate2's format and renames its weights to those of mlx-whisper.

Knows the bytes and the names; knows neither wheels nor folders. float16 weights only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray[Any, np.dtype[Any]]]

VERSION = 6
REVISION = 3
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


class FormatError(Exception):
    """The bytes are no whole Whisper model in this format; the message says what is wrong."""


def parse(data: bytes | memoryview) -> Weights:
    """All variables by their names, as views into `data`. Raises FormatError for a cut or foreign file."""
    reader = _Reader(memoryview(data))
    version, spec, revision = reader.number("I"), reader.text(), reader.number("I")
    if (version, spec) != (VERSION, "WhisperSpec") or revision != REVISION:
        raise FormatError(f"not a Whisper model of format {VERSION}.{REVISION}: {spec[:40]!r} {version}.{revision}")
    found = dict(reader.variable() for _ in range(reader.number("I")))
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in found:
            raise FormatError(f"{alias} stands for {name}, which is missing")
        found[alias] = found[name]
    if reader.left:
        raise FormatError(f"{reader.left} bytes too many")
    return found


class _Reader:
    """Little-endian numbers, strings and arrays, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> memoryview:
        if count > self.left:
            raise FormatError(f"the file ends {count - self.left} bytes too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, kind: str) -> int:
        value: int = struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]
        return value

    def text(self) -> str:
        """A string with its length in front and a NUL at its end."""
        return bytes(self.take(self.number("H"))).rstrip(b"\0").decode("utf-8", "replace")

    def variable(self) -> tuple[str, np.ndarray[Any, np.dtype[Any]]]:
        name = self.text()
        shape = tuple(self.number("I") for _ in range(self.number("B")))
        kind, size = self.number("B"), self.number("I")
        if kind not in _DTYPES:
            raise FormatError(f"{name} is of the unknown type {kind}")
        data = self.take(size)
        dtype = np.dtype(_DTYPES[kind])
        if int(np.prod(shape, dtype=np.int64)) * dtype.itemsize != size:
            raise FormatError(f"{name} has {size} bytes for the shape {shape}")
        return name, np.frombuffer(data, dtype).reshape(shape)


def dimensions(found: Weights) -> dict[str, int]:
    """mlx-whisper's ModelDimensions. Raises FormatError when a tensor that tells one is missing."""
    state, mels, _ = _shape(found, "encoder/conv1/weight", 3)
    vocabulary, text_state = _shape(found, "decoder/embeddings/weight", 2)
    return {
        "n_mels": mels,
        "n_audio_ctx": _shape(found, "encoder/position_encodings/encodings", 2)[0],
        "n_audio_state": state,
        "n_audio_head": int(_get(found, "encoder/num_heads")),
        "n_audio_layer": _layers(found, "encoder"),
        "n_vocab": vocabulary,
        "n_text_ctx": _shape(found, "decoder/position_encodings/encodings", 2)[0],
        "n_text_state": text_state,
        "n_text_head": int(_get(found, "decoder/num_heads")),
        "n_text_layer": _layers(found, "decoder"),
    }


def to_mlx(found: Weights) -> Weights:
    """The weights under mlx-whisper's names and in its layouts, float16. Raises FormatError for what is missing."""
    return {name: np.ascontiguousarray(array, dtype=np.float16) for name, array in _renamed(found)}


def _renamed(found: Weights) -> Iterator[tuple[str, Any]]:
    for conv in ("conv1", "conv2"):
        # (out, in, width) -> MLX's (out, width, in)
        yield f"encoder.{conv}.weight", _get(found, f"encoder/{conv}/weight").swapaxes(1, 2)
        yield f"encoder.{conv}.bias", _get(found, f"encoder/{conv}/bias")
    yield "decoder.token_embedding.weight", _get(found, "decoder/embeddings/weight")
    yield "decoder.positional_embedding", _get(found, "decoder/position_encodings/encodings")
    yield from _norm(found, "encoder/layer_norm", "encoder.ln_post")
    yield from _norm(found, "decoder/layer_norm", "decoder.ln")
    for side in ("encoder", "decoder"):
        for layer in range(_layers(found, side)):
            yield from _block(found, f"{side}/layer_{layer}", f"{side}.blocks.{layer}", cross=side == "decoder")


def _block(found: Weights, source: str, target: str, *, cross: bool) -> Iterator[tuple[str, Any]]:
    yield from _norm(found, f"{source}/self_attention/layer_norm", f"{target}.attn_ln")
    yield from _split(found, f"{source}/self_attention/linear_0", f"{target}.attn", ("query", "key", "value"))
    yield from _split(found, f"{source}/self_attention/linear_1", f"{target}.attn", ("out",))
    if cross:
        yield from _norm(found, f"{source}/attention/layer_norm", f"{target}.cross_attn_ln")
        yield from _split(found, f"{source}/attention/linear_0", f"{target}.cross_attn", ("query",))
        yield from _split(found, f"{source}/attention/linear_1", f"{target}.cross_attn", ("key", "value"))
        yield from _split(found, f"{source}/attention/linear_2", f"{target}.cross_attn", ("out",))
    yield from _norm(found, f"{source}/ffn/layer_norm", f"{target}.mlp_ln")
    yield from _split(found, f"{source}/ffn/linear_0", target, ("mlp1",))
    yield from _split(found, f"{source}/ffn/linear_1", target, ("mlp2",))


def _split(found: Weights, source: str, target: str, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """One fused linear layer as its parts. Whisper's keys have no bias; the format stores zeros for them."""
    weights = np.split(_get(found, f"{source}/weight"), len(names))
    biases = np.split(_get(found, f"{source}/bias"), len(names))
    for name, weight, bias in zip(names, weights, biases, strict=True):
        yield f"{target}.{name}.weight", weight
        if name != "key":
            yield f"{target}.{name}.bias", bias
        elif bias.any():
            raise FormatError(f"{source} has a bias for its keys")


def _norm(found: Weights, source: str, target: str) -> Iterator[tuple[str, Any]]:
    yield f"{target}.weight", _get(found, f"{source}/gamma")
    yield f"{target}.bias", _get(found, f"{source}/beta")


def _get(found: Weights, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    if name not in found:
        raise FormatError(f"{name} is missing")
    return found[name]


def _shape(found: Weights, name: str, rank: int) -> tuple[int, ...]:
    shape: tuple[int, ...] = _get(found, name).shape
    if len(shape) != rank:
        raise FormatError(f"{name} has the shape {shape}")
    return shape


def _layers(found: Weights, side: str) -> int:
    return len({name.split("/")[1] for name in found if name.startswith(f"{side}/layer_") and name.count("/") > 2})
