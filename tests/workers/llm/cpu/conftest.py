"""Small networks with random weights, twice: mlx-lm's own and the compiled one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "intermediate_size": 256,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 301,
    "max_position_embeddings": 512,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "small": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "small grouped": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "even": {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64},
    "untied": {"tie_word_embeddings": False},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "scaled": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    "qwen2": {
        "model_type": "qwen2",
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {"model_type": "qwen3", "rope_theta": 1e6, "tie_word_embeddings": False},
}

Make = Callable[..., Any]


def random_weights(network: Any, scale: float, seed: int) -> None:
    """The same ones each time."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    def value(name: str, shape: tuple[int, ...]) -> Any:
        noise = mx.random.normal(shape)
        if "norm" in name:
            return 1 + 0.1 * noise
        return noise if "embed" in name else noise * (scale / shape[-1] ** 0.5)

    mx.random.seed(seed)
    network.load_weights([(name, value(name, a.shape)) for name, a in tree_flatten(network.parameters())])
    mx.eval(network.parameters())


@pytest.fixture
def make_llama(fast_blas: Any) -> Make:
    """variant, scale of the weights, seed -> mlx-lm's network with random float32 weights, always the same ones."""
    from mlx_lm.utils import _get_classes

    def make(variant: str = "grouped", scale: float = 1.0, seed: int = 0) -> Any:
        config = {**SIZES, **VARIANTS[variant]}
        kind, arguments = _get_classes(config)
        network = kind(arguments.from_dict(config))
        random_weights(network, scale, seed)
        return network

    return make


@pytest.fixture
def compiled(kernel_dir: Path) -> Callable[..., Any]:
    """A network and the number of threads -> the same network, computed by compiled code."""
    from workers import blas
    from workers.llm.cpu.network import install

    def make(network: Any, threads: int = 2) -> Any:
        assert install(network, kernel_dir, blas.compiler(), threads)
        return network

    if not blas.compiler():
        pytest.skip("no C++ compiler")
    return make


@pytest.fixture
def make_pair(make_llama: Make, compiled: Make) -> Make:
    """As make_llama, with a number of threads -> (stock, compiled)."""

    def make(variant: str = "grouped", scale: float = 1.0, threads: int = 2) -> tuple[Any, Any]:
        return make_llama(variant, scale), compiled(make_llama(variant, scale), threads)

    return make
