"""Small Llamas with random weights, twice: mlx-lm's own and the tuned one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "intermediate_size": 256,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 301,
    "max_position_embeddings": 512,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "even": {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32},
    "untied": {"tie_word_embeddings": False},
    "scaled": {
        "head_dim": 32,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}

Make = Callable[..., Any]


@pytest.fixture
def make_llama(fast_blas: Any) -> Make:
    """variant, scale of the weights, seed -> mlx-lm's Llama with random float32 weights, always the same ones."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama

    def value(name: str, shape: tuple[int, ...], scale: float) -> Any:
        noise = mx.random.normal(shape)
        if "norm" in name:
            return 1 + 0.1 * noise
        return noise if "embed" in name else noise * (scale / shape[-1] ** 0.5)

    def make(variant: str = "grouped", scale: float = 1.0, seed: int = 0) -> Any:
        network = llama.Model(llama.ModelArgs.from_dict({**SIZES, **VARIANTS[variant]}))
        mx.random.seed(seed)
        network.load_weights([(name, value(name, a.shape, scale)) for name, a in tree_flatten(network.parameters())])
        mx.eval(network.parameters())
        return network

    return make


@pytest.fixture
def make_pair(make_llama: Make) -> Make:
    """As make_llama, with `streams` 1 or 2, weights cut for small products or not -> (stock, tuned)."""
    import mlx.core as mx

    from workers.llm.cpu.install import install

    def make(
        variant: str = "grouped", scale: float = 1.0, streams: int = 2, small_products: bool = True
    ) -> tuple[Any, Any]:
        tuned = make_llama(variant, scale)
        assert install(tuned, mx.new_stream(mx.cpu) if streams == 2 else None, small_products=small_products)
        return make_llama(variant, scale), tuned

    return make
