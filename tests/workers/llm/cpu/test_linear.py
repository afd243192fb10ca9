"""Linear layers of networks that are not compiled give mlx's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("small_products", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("outs", [256, 200])
def test_a_linear_layer_of_any_number_of_rows(fast_blas: Any, outs: int, biased: bool, small_products: bool) -> None:
    import mlx.core as mx
    import mlx.nn as nn

    from workers.llm.cpu.linear import CpuLinear

    mx.random.seed(1)
    stock = nn.Linear(512, outs, bias=biased)
    ours = nn.Linear(512, outs, bias=biased)
    ours.update(stock.parameters())
    tuned = CpuLinear(ours, small_products)
    for rows in (1, 2, 17, 40, 41, 90):
        x = mx.random.normal((1, rows, 512))
        assert np.allclose(np.array(tuned(x)), np.array(stock(x)), atol=1e-4)


def test_networks_of_other_kinds_get_them(fast_blas: Any) -> None:
    import mlx.core as mx
    from mlx_lm.models import stablelm

    from workers.llm.cpu.linear import CpuLinear, install

    sizes = {
        "model_type": "stablelm",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "use_qkv_bias": True,
        "partial_rotary_factor": 0.5,
        "vocab_size": 301,
    }
    mx.random.seed(5)
    network = stablelm.Model(stablelm.ModelArgs.from_dict(sizes))
    mx.eval(network.parameters())
    ids = [mx.array(np.random.default_rng(3).integers(0, 301, (1, length)).astype(np.int32)) for length in (1, 30, 60)]
    expected = [np.array(network(each)) for each in ids]
    install(network, small_products=True)
    assert type(network.layers[0].self_attn.q_proj) is CpuLinear
    for each, logits in zip(ids, expected, strict=True):
        assert np.abs(np.array(network(each)) - logits).max() < 3e-4
