"""The tuned layers give mlx-lm's logits, with its caches, whatever the number of positions and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.workers.llm.cpu.conftest import VARIANTS

Pair = Callable[..., tuple[Any, Any]]

CLOSE = 3e-4
"""Logits of these networks reach 90; exp2 is right to 2e-5."""


def tokens(rows: int, length: int, seed: int = 3) -> Any:
    import mlx.core as mx

    return mx.array(np.random.default_rng(seed).integers(0, 301, (rows, length)).astype(np.int32))


def difference(a: Any, b: Any) -> float:
    return float(np.abs(np.array(a) - np.array(b)).max())


@pytest.mark.parametrize("small_products", [False, True])
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prompt_in_pieces_and_steps_after_it(
    make_pair: Pair, variant: str, streams: int, small_products: bool
) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    stock, tuned = make_pair(variant, streams=streams, small_products=small_products)
    ids = tokens(1, 400)
    caches = make_prompt_cache(stock), make_prompt_cache(tuned)
    at = 0
    for length in (41, 1, 40, 129, 1, 1, 187):  # both ways of computing, in both orders, blocks of uneven length
        piece = ids[:, at : at + length]
        at += length
        assert difference(stock(piece, cache=caches[0]), tuned(piece, cache=caches[1])) < CLOSE
    assert at == 400


def test_without_a_cache(make_pair: Pair) -> None:
    stock, tuned = make_pair()
    for ids in (tokens(1, 1), tokens(1, 300), tokens(3, 7), tokens(2, 60)):
        assert difference(stock(ids), tuned(ids)) < CLOSE


def test_scores_out_of_range_are_computed_with_their_maximum(make_pair: Pair) -> None:
    from workers.llm.cpu import attention

    stock, tuned = make_pair("even", scale=6.0)
    limits: list[list[bool]] = []
    plain = attention.bound

    def noting(squares: Any) -> Any:
        limits.append(plain(squares).safe)
        return plain(squares)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("workers.llm.cpu.layer.bound", noting)
        ids = tokens(1, 200)
        a, b = np.array(stock(ids)), np.array(tuned(ids))
    assert {safe for layer in limits for safe in layer} == {False}
    assert np.isfinite(b).all()
    assert (a.argmax(-1) == b.argmax(-1)).mean() > 0.99


def test_rows_of_different_lengths_that_join_and_leave(make_pair: Pair) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    def play(network: Any) -> list[Any]:
        def row(length: int, seed: int) -> Any:
            cache = make_prompt_cache(network)
            mx.eval(network(tokens(1, length, seed), cache=cache))
            return cache

        said = []
        rows = [row(20, 1), row(60, 2), row(150, 3), row(3, 4)]
        batch = [type(layer[0]).merge(list(layer)) for layer in zip(*rows, strict=True)]
        for step in range(3):
            said.append(network(tokens(4, 1, 50 + step), cache=batch))
        late = [type(layer).merge([layer]) for layer in row(90, 5)]
        for layer, other in zip(batch, late, strict=True):
            layer.extend(other)
        said.append(network(tokens(5, 1, 60), cache=batch))
        for layer in batch:
            layer.filter([0, 3, 4])
        said.append(network(tokens(3, 1, 61), cache=batch))
        alone = [layer.extract(2) for layer in batch]
        said.append(network(tokens(1, 2, 62), cache=alone))
        return said

    stock, tuned = make_pair()
    for a, b in zip(play(stock), play(tuned), strict=True):
        assert difference(a, b) < CLOSE


def test_a_padded_batch_of_prompts(make_pair: Pair) -> None:
    from mlx_lm.models.cache import BatchKVCache

    def play(network: Any) -> Any:
        batch = [BatchKVCache([0, 0, 0]) for _ in network.layers]
        for layer in batch:
            layer.prepare(lengths=[50, 44, 9], right_padding=[0, 6, 41])
        network(tokens(3, 50), cache=batch)
        for layer in batch:
            layer.finalize()
        return network(tokens(3, 1, 9), cache=batch)

    stock, tuned = make_pair()
    assert difference(play(stock), play(tuned)) < CLOSE


def test_a_row_in_a_batch_of_one_takes_the_causal_way(make_pair: Pair) -> None:
    from mlx_lm.models.cache import BatchKVCache

    stock, tuned = make_pair()
    caches = [[BatchKVCache([0]) for _ in range(3)] for _ in range(2)]
    for ids in (tokens(1, 130), tokens(1, 70)):
        assert difference(stock(ids, cache=caches[0]), tuned(ids, cache=caches[1])) < CLOSE


def test_a_row_says_the_same_alone_and_among_others(make_pair: Pair) -> None:
    _, tuned = make_pair()
    ids = tokens(8, 6)
    together = tuned(ids)
    for row in range(8):
        assert difference(tuned(ids[row : row + 1]), together[row : row + 1]) < CLOSE


def test_the_cache_holds_what_mlx_lm_would_store(make_pair: Pair) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    stock, tuned = make_pair()
    caches = make_prompt_cache(stock), make_prompt_cache(tuned)
    for network, cache in zip((stock, tuned), caches, strict=True):
        np.array(network(tokens(1, 60), cache=cache))
        assert cache[0].offset == 60
    for ours, theirs in zip(caches[1], caches[0], strict=True):
        assert difference(ours.keys_and_values()[0], theirs.keys_and_values()[0]) < 1e-4
        assert difference(ours.keys_and_values()[1], theirs.keys_and_values()[1]) < 1e-4


@pytest.mark.parametrize("small_products", [False, True])
def test_no_weight_is_kept_twice(make_llama: Callable[..., Any], small_products: bool) -> None:
    import gc

    import mlx.core as mx

    from workers.llm.cpu.install import install

    gc.collect()
    before = mx.get_active_memory()
    network = make_llama()
    held = mx.get_active_memory() - before
    install(network, mx.new_stream(mx.cpu), small_products=small_products)
    gc.collect()
    tables = 2 * 2048 * 8 * 4  # cosine and sine of 2048 positions, once asked for
    assert mx.get_active_memory() - before < 1.02 * held + tables


@pytest.mark.parametrize("small_products", [False, True])
def test_other_architectures_get_tuned_linears(fast_blas: Any, small_products: bool) -> None:
    import mlx.core as mx
    from mlx_lm.models import qwen2

    from workers.llm.cpu.install import CpuLinear, install

    sizes = {
        "model_type": "qwen2",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "vocab_size": 301,
        "tie_word_embeddings": True,
    }
    mx.random.seed(5)
    network = qwen2.Model(qwen2.ModelArgs.from_dict(sizes))
    mx.eval(network.parameters())
    expected = [np.array(network(tokens(1, length))) for length in (1, 30, 60)]
    assert install(network, None, small_products=small_products) is False
    assert type(network.layers[0].self_attn.q_proj) is CpuLinear
    for length, logits in zip((1, 30, 60), expected, strict=True):
        assert difference(network(tokens(1, length)), logits) < CLOSE


def test_without_a_compiler_the_same(make_pair: Pair) -> None:
    import mlx.core as mx

    stock, tuned = make_pair()
    mx.disable_compile()
    try:
        for length in (1, 50):
            assert difference(stock(tokens(1, length)), tuned(tokens(1, length))) < CLOSE
    finally:
        mx.enable_compile()
