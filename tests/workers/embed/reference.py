"""BERT's encoder in plain numpy and float64, from the published formulation: what the engine is compared with.

Devlin et al. 2018, section 3; Vaswani et al. 2017, section 3; names of weights as transformers has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def hidden(weights: Mapping[str, Array], ids: list[int], *, heads: int, eps: float, first: int = 0) -> Array:
    """What the last layer says of each token, (tokens, width). first: the position of the first token."""
    w = {name: array.astype(np.float64) for name, array in weights.items() if array.dtype.kind == "f"}
    places = first + np.arange(len(ids))
    x = (
        w["embeddings.word_embeddings.weight"][ids]
        + w["embeddings.position_embeddings.weight"][places]
        + w["embeddings.token_type_embeddings.weight"][0]
    )
    x = _norm(x, w, "embeddings.LayerNorm", eps)
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in w:
        x = _layer(x, w, f"encoder.layer.{layer}", heads, eps)
        layer += 1
    return x


def sentence(weights: Mapping[str, Array], ids: list[int], **sizes: Any) -> Array:
    """The mean of the tokens' vectors, of length 1."""
    mean: Array = hidden(weights, ids, **sizes).mean(0)
    return mean / np.linalg.norm(mean)


def _layer(x: Array, w: Mapping[str, Array], place: str, heads: int, eps: float) -> Array:
    size = x.shape[1] // heads
    mixed = np.empty_like(x)
    query, key, value = (_dense(x, w, f"{place}.attention.self.{name}") for name in ("query", "key", "value"))
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].T / np.sqrt(size)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        mixed[:, part] = powers / powers.sum(1, keepdims=True) @ value[:, part]
    x = _norm(x + _dense(mixed, w, f"{place}.attention.output.dense"), w, f"{place}.attention.output.LayerNorm", eps)
    inner = _dense(x, w, f"{place}.intermediate.dense")
    inner = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
    return _norm(x + _dense(inner, w, f"{place}.output.dense"), w, f"{place}.output.LayerNorm", eps)


def _dense(x: Array, w: Mapping[str, Array], name: str) -> Array:
    made: Array = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    return made


def _norm(x: Array, w: Mapping[str, Array], name: str, eps: float) -> Array:
    centred = x - x.mean(1, keepdims=True)
    made: Array = centred / np.sqrt((centred**2).mean(1, keepdims=True) + eps)
    return made * w[f"{name}.weight"] + w[f"{name}.bias"]
