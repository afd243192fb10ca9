"""The weights of a Llama layer in the order and cut in which layer.py multiplies with them.

Knows mlx-lm's TransformerBlock; knows neither streams nor caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from workers.llm.cpu.matrix import Matrix
from workers.whisper.cpu.streams import split

_UNITS = 64
"""Hidden units are shared out by so many."""


@dataclass(frozen=True)
class Half:
    """Some of the hidden units."""

    gate_up: Matrix
    """Two parts."""
    down: Matrix


@dataclass(frozen=True)
class Weights:
    """A layer's, with the norms' weights folded in. mlx's Module lists no such thing among its parameters."""

    first: Matrix
    """The first half of each head of queries, then of keys."""
    second: Matrix
    """Their second halves."""
    value: Matrix
    out: Matrix
    halves: list[Half]


def take(block: Any, head_size: int, shares: int, small_products: bool) -> Weights:
    """The weights of a block, copied into their new order; the block is emptied on the way.

    shares: of the hidden units. small_products: as in matrix.py.
    """

    def matrix(weight: mx.array, parts: int = 1) -> Matrix:
        weight = mx.contiguous(weight)
        mx.eval(weight)
        return Matrix(weight, small_products=small_products, parts=parts)

    own, mlp = block.self_attn, block.mlp
    norm, mlp_norm = block.input_layernorm.weight, block.post_attention_layernorm.weight
    query, key, value, out = (linear.pop("weight") for linear in (own.q_proj, own.k_proj, own.v_proj, own.o_proj))
    heads = (mx.concatenate([query, key]) * norm).reshape(-1, 2, head_size // 2, norm.size)
    first, second = (heads[:, half].reshape(-1, norm.size) for half in (0, 1))
    gate, up, down = (linear.pop("weight") for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    halves = []
    for units in split(gate.shape[0] // _UNITS, shares):
        share = slice(units.start * _UNITS, units.stop * _UNITS)
        both = mx.concatenate([gate[share] * mlp_norm, up[share] * mlp_norm])
        halves.append(Half(matrix(both, parts=2), matrix(down[:, share])))
    return Weights(matrix(first), matrix(second), matrix(value * norm), matrix(out), halves)
