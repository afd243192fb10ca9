"""Puts the tuned modules into a loaded float32 model: whole layers where the architecture is known, else linear ones.

Knows which of mlx-lm's classes have which shapes; knows no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.utils import tree_map
from mlx_lm.models import llama

from workers.llm.cpu.kernels import LlamaKernels
from workers.llm.cpu.layer import Layer, Shape, Split
from workers.llm.cpu.matrix import Matrix
from workers.whisper.cpu.streams import split

_TABLE_ROWS = 64
_LEAST = 1 << 16
"""Weights below which a linear module stays as it is."""


class CpuLinear(Module):
    """mlx's Linear over a Matrix; takes its weight."""

    def __init__(self, linear: Any, small_products: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bias = linear.get("bias")
        self._matrix = Matrix(mx.contiguous(linear.pop("weight")), small_products=small_products)

    def __call__(self, x: mx.array) -> mx.array:
        y = self._matrix(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], self._matrix.out)
        return y if self._bias is None else y + self._bias


@dataclass(frozen=True)
class Shares:
    """Parts of a matrix, each with its stream (None: the caller's). mlx's Module lists no such thing as its own."""

    parts: list[tuple[mx.Stream | None, Matrix]]


class Table(Module):
    """The token table as mlx's Embedding, or as the Linear that makes logits; shares of it on two streams."""

    def __init__(self, weight: mx.array, streams: list[mx.Stream | None], small_products: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._vocabulary = weight.shape[0]
        count = -(-self._vocabulary // _TABLE_ROWS)
        parts = []
        for stream, share in zip(streams, split(count, len(streams)), strict=True):
            rows = weight[share.start * _TABLE_ROWS : share.stop * _TABLE_ROWS]
            rows = mx.contiguous(mx.pad(rows, [(0, -rows.shape[0] % _TABLE_ROWS), (0, 0)]))
            mx.eval(rows)
            parts.append((stream, Matrix(rows, small_products=small_products)))
        self._shares = Shares(parts)

    def __call__(self, ids: mx.array) -> mx.array:
        """(…,) -> (…, width)."""
        found, start = None, 0
        for _, share in self._shares.parts:
            own = share.rows(mx.clip(ids - start, 0, share.out - 1))
            found = own if found is None else mx.where((ids >= start)[..., None], own, found)
            start += share.out
        assert found is not None
        return found

    def as_linear(self, x: mx.array) -> mx.array:
        """(…, width) -> (…, vocabulary)."""
        flat = x.reshape(-1, x.shape[-1])
        parts = []
        for stream, share in self._shares.parts:
            with mx.stream(stream or mx.default_stream(mx.Device(mx.cpu))):
                parts.append(share(flat))
        logits = mx.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
        return logits[:, : self._vocabulary].reshape(*x.shape[:-1], self._vocabulary)


class Head(Table):
    """An untied table: what makes logits, called as Linear is."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.as_linear(x)


class LastNorm(Module):
    """The RMS norm behind the layers, which puts split positions together again."""

    def __init__(self, norm: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weight = norm.weight
        self._eps = norm.eps

    def __call__(self, x: Any) -> mx.array:
        return mx.fast.rms_norm(x.join() if isinstance(x, Split) else x, self.weight, self._eps)


def install(network: Any, helper: mx.Stream | None, *, small_products: bool) -> bool:
    """Replace what is known to fit; whether whole layers were. The network's weights are float32 and evaluated.

    helper: a second stream of the calling thread, or None on one core. small_products: as in matrix.py.
    """
    if not _is_llama(network):
        tuned = partial(_linear, small_products=small_products)
        network.update_modules(tree_map(tuned, network.leaf_modules(), is_leaf=Module.is_module))
        return False
    inner = network.model
    streams: list[mx.Stream | None] = [None] if helper is None else [None, helper]
    shape = Shape(inner.layers[0], inner.norm.eps, LlamaKernels(), helper, small_products)
    # One by one, so that old and new weights never stand side by side.
    for index, block in enumerate(inner.layers):
        inner.layers[index] = Layer(block, index, shape)
    inner.norm = LastNorm(inner.norm)
    inner.embed_tokens = Table(inner.embed_tokens.pop("weight"), streams, small_products)
    if "lm_head" in network:
        network.lm_head = Head(network.lm_head.pop("weight"), streams, small_products)
    return True


def _linear(module: Any, small_products: bool) -> Any:
    fits = type(module) is Linear and module.weight.dtype == mx.float32 and module.weight.size >= _LEAST
    return CpuLinear(module, small_products) if fits and module.weight.shape[0] % 8 == 0 else module


def _is_llama(network: Any) -> bool:
    """Whether it is mlx-lm's Llama without biases, in sizes that can be cut."""
    if type(network) is not llama.Model or type(network.model) is not llama.LlamaModel:
        return False
    return (
        all(type(block) is llama.TransformerBlock and _fits(block) for block in network.layers)
        and type(network.model.embed_tokens) is Embedding
        and type(network.model.norm) is RMSNorm
        and ("lm_head" not in network or (type(network.lm_head) is Linear and "bias" not in network.lm_head))
    )


def _fits(block: Any) -> bool:
    own, mlp = block.self_attn, block.mlp
    linears = (own.q_proj, own.k_proj, own.v_proj, own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return (
        all(type(each) is Linear and "bias" not in each and each.weight.dtype == mx.float32 for each in linears)
        and own.head_dim % 16 == 0
        and own.n_heads % own.n_kv_heads == 0
        and mlp.gate_proj.weight.shape[0] % 128 == 0
        and own.o_proj.weight.shape[0] % 8 == 0
        and not getattr(own.rope, "traditional", False)
        and getattr(own.rope, "dims", own.head_dim) == own.head_dim
    )
