"""Compiled networks give mlx-lm's logits, with its caches, whatever the number of positions and rows."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.llm.cpu.conftest import VARIANTS

Pair = Callable[..., tuple[Any, Any]]
Make = Callable[..., Any]

CLOSE = 3e-4
"""Logits of these networks reach 90."""


def tokens(rows: int, length: int, seed: int = 3) -> Any:
    import mlx.core as mx

    return mx.array(np.random.default_rng(seed).integers(0, 301, (rows, length)).astype(np.int32))


def difference(a: Any, b: Any) -> float:
    return float(np.abs(np.array(a) - np.array(b)).max())


def in_pieces(stock: Any, compiled: Any, lengths: Sequence[int] = (41, 1, 32, 137, 1, 1, 187)) -> None:
    """A prompt in pieces that are attended to in both ways, in both orders, and steps after it."""
    from mlx_lm.models.cache import make_prompt_cache

    ids = tokens(1, sum(lengths))
    caches = make_prompt_cache(stock), make_prompt_cache(compiled)
    at = 0
    for length in lengths:
        piece = ids[:, at : at + length]
        at += length
        assert difference(stock(piece, cache=caches[0]), compiled(piece, cache=caches[1])) < CLOSE


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prompt_in_pieces_and_steps_after_it(make_pair: Pair, variant: str, threads: int) -> None:
    in_pieces(*make_pair(variant, threads=threads))


def test_pieces_that_fill_the_cache(make_pair: Pair) -> None:
    """It grows by 256 tokens."""
    in_pieces(*make_pair(), (256, 1, 255, 256, 20, 1))


@pytest.mark.parametrize("options", [("-march=x86-64",), ("-march=x86-64-v3",)])
def test_code_for_lesser_processors(
    make_llama: Make, tmp_path: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    import platform

    from workers import blas, native
    from workers.llm.cpu.network import install

    if platform.machine() != "x86_64" or not blas.compiler():
        pytest.skip("no x86-64, or no compiler")
    if options[0].endswith("v3") and b"avx2" not in Path("/proc/cpuinfo").read_bytes():
        pytest.skip("no AVX2")
    monkeypatch.setattr(native, "FAST", ("-O2", "-pthread", "-w", *options))
    network, stock = quantized(make_llama("qwen2")), dequantized(quantized(make_llama("qwen2")))
    assert install(network, tmp_path, blas.compiler(), 2)
    in_pieces(stock, network)


def test_without_a_cache(make_pair: Pair) -> None:
    stock, compiled = make_pair()
    for ids in (tokens(1, 1), tokens(1, 300), tokens(3, 7), tokens(2, 60)):
        assert difference(stock(ids), compiled(ids)) < CLOSE


def test_scores_of_any_size(make_pair: Pair) -> None:
    stock, compiled = make_pair("even", scale=6.0)
    ids = tokens(1, 200)
    a, b = np.array(stock(ids)), np.array(compiled(ids))
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

    stock, compiled = make_pair()
    for a, b in zip(play(stock), play(compiled), strict=True):
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

    stock, compiled = make_pair()
    assert difference(play(stock), play(compiled)) < CLOSE


def test_prompts_padded_on_the_left(make_pair: Pair) -> None:
    from mlx_lm.models.cache import BatchKVCache

    stock, compiled = make_pair()
    padding = [0, 7, 39]
    caches = [[BatchKVCache(padding) for _ in network.layers] for network in (stock, compiled)]
    for length in (40, 3):
        ids = tokens(3, length)
        a, b = (np.array(network(ids, cache=cache)) for network, cache in zip((stock, compiled), caches, strict=True))
        assert np.isfinite(b).all()
        for row, skipped in enumerate(padding if length == 40 else [0, 0, 0]):
            assert difference(a[row, skipped:], b[row, skipped:]) < CLOSE


def test_rows_with_gaps(make_pair: Pair) -> None:
    """As a batch is after a step in which rows took spans of unequal length."""
    from mlx_lm.models.cache import BatchKVCache

    from workers.llm.gaps import GappedKVCache, Gaps, close, settle

    def play(network: Any) -> list[Any]:
        gaps = Gaps()
        layers = [GappedKVCache(BatchKVCache([0, 0]), gaps) for _ in network.layers]
        said = [network(tokens(2, 20), cache=layers)]
        settle(layers, gaps, [0, 0], 20, [20, 20])
        said.append(network(tokens(2, 4, 8), cache=layers)[0])
        settle(layers, gaps, [20, 20], 4, [4, 1])
        for length, at in ((1, [24, 21]), (40, [25, 22])):
            said.append(network(tokens(2, length, 9 + length), cache=layers))
            settle(layers, gaps, at, length, [length, length])
        close(layers, gaps)
        said.append(network(tokens(2, 1, 11), cache=layers))
        return said

    stock, compiled = make_pair()
    for a, b in zip(play(stock), play(compiled), strict=True):
        assert difference(a, b) < CLOSE


@pytest.mark.parametrize("variant", ["grouped", "qwen3"])
def test_a_row_says_the_same_to_the_last_bit_alone_and_among_others(make_pair: Pair, variant: str) -> None:
    _, compiled = make_pair(variant)
    for length in (1, 6, 32):
        ids = tokens(8, length)
        together = np.array(compiled(ids))
        for row in range(8):
            assert np.array_equal(np.array(compiled(ids[row : row + 1]))[0], together[row])


def test_a_span_says_the_same_to_the_last_bit_as_its_tokens_one_by_one(make_pair: Pair) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    _, compiled = make_pair()
    ids = tokens(1, 20)
    caches = [make_prompt_cache(compiled) for _ in range(2)]
    together = np.array(compiled(ids, cache=caches[0]))[0]
    for place in range(20):
        assert np.array_equal(np.array(compiled(ids[:, place : place + 1], cache=caches[1]))[0, 0], together[place])


def test_the_cache_holds_what_mlx_lm_would_store(make_pair: Pair) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    stock, compiled = make_pair()
    caches = make_prompt_cache(stock), make_prompt_cache(compiled)
    for network, cache in zip((stock, compiled), caches, strict=True):
        np.array(network(tokens(1, 60), cache=cache))
        assert cache[0].offset == 60
    for ours, theirs in zip(caches[1], caches[0], strict=True):
        assert difference(ours.keys_and_values()[0], theirs.keys_and_values()[0]) < 1e-4
        assert difference(ours.keys_and_values()[1], theirs.keys_and_values()[1]) < 1e-4


def test_a_conversation_that_begins_like_another_leaves_that_one_as_it_was(make_pair: Pair) -> None:
    """The compiled code writes into the caches' memory, which views of them share until they grow."""
    from mlx_lm.models.cache import make_prompt_cache

    from workers.llm.cache import view

    _, compiled = make_pair()
    first = make_prompt_cache(compiled)
    np.array(compiled(tokens(1, 300), cache=first))
    for length in (300, 256, 100):
        before = [np.array(array) for layer in first for array in layer.keys_and_values()]
        branch = view(first, length, 300)
        for step in range(3):
            np.array(compiled(tokens(1, 1, 70 + step), cache=branch))
        after = [np.array(array) for layer in first for array in layer.keys_and_values()]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_step_copies_no_cache(make_pair: Pair) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    _, compiled = make_pair()
    cache = make_prompt_cache(compiled)
    np.array(compiled(tokens(1, 20), cache=cache))
    places = []
    for step in range(3):
        np.array(compiled(tokens(1, 1, step), cache=cache))
        places.append([np.array(layer.keys, copy=False).ctypes.data for layer in cache])
    assert places[0] == places[1] == places[2]


def quantized(network: Any, bits: int = 4, group: int = 32) -> Any:
    import mlx.nn as nn

    nn.quantize(network, group_size=group, bits=bits)
    return network


def dequantized(network: Any) -> Any:
    from workers.llm.cpu.plain import to_float32

    to_float32(network)
    return network


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_weights_are_read_as_they_are(make_llama: Make, compiled: Make, bits: int, dtype: str) -> None:
    import mlx.core as mx

    def made() -> Any:
        network = make_llama("qwen2")  # its biases are not quantized
        network.set_dtype(getattr(mx, dtype))
        return quantized(network, bits)

    in_pieces(dequantized(made()), compiled(made()))


def test_layers_that_are_quantized_in_different_ways(make_llama: Make, compiled: Make) -> None:
    import mlx.nn as nn

    def made() -> Any:
        def wanted(name: str, module: Any) -> Any:
            if not hasattr(module, "to_quantized") or "k_proj" in name or "embed" in name:
                return False
            return {"group_size": 32, "bits": 8 if "v_proj" in name or "gate" in name else 4}

        network = make_llama()
        nn.quantize(network, class_predicate=wanted)
        return network

    in_pieces(dequantized(made()), compiled(made()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_stays_so_and_is_computed_in_float32(make_llama: Make, compiled: Make, dtype: str) -> None:
    import mlx.core as mx

    def made() -> Any:
        network = make_llama()
        network.set_dtype(getattr(mx, dtype))
        return network

    network = compiled(made())
    assert network.model.core.matrices.nbytes < 0.6 * sum(a.nbytes * 2 for a in _arrays(made()))
    in_pieces(dequantized(made()), network)


def _arrays(network: Any) -> list[Any]:
    from mlx.utils import tree_flatten

    return [array for _, array in tree_flatten(network.parameters())]


def test_no_weight_is_kept_twice(make_llama: Make, compiled: Make) -> None:
    network = compiled(make_llama())
    assert _arrays(network) == []
    held = sum(array.nbytes for array in _arrays(make_llama()))
    assert network.model.core.matrices.nbytes < 1.02 * held


@pytest.mark.parametrize("token", [-1, 301, 1 << 30])
def test_a_token_that_the_table_does_not_have_is_an_error(make_pair: Pair, token: int) -> None:
    """It is no place in memory."""
    import mlx.core as mx

    _, compiled = make_pair()
    with pytest.raises(IndexError, match="the network has 301 tokens"):
        compiled(mx.array([[5, token]]))


def _sliding(network: Any) -> None:
    network.layers[1].use_sliding, network.model.swa_idx, network.model.sliding_window = True, 1, 8


def _odd_head(network: Any) -> None:
    network.layers[1].self_attn.rope.traditional = True


def _dynamic(network: Any) -> None:
    from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE

    network.layers[1].self_attn.rope = DynamicNTKScalingRoPE(32, 512, False, 10_000.0, 2.0)


def _other_quantization(network: Any) -> None:
    quantized(network, bits=3)


@pytest.mark.parametrize("change", [_sliding, _odd_head, _dynamic, _other_quantization])
def test_what_the_code_does_not_know_stays_as_it_is(
    make_llama: Make, kernel_dir: Path, change: Callable[[Any], None]
) -> None:
    from workers import blas
    from workers.llm.cpu.network import install

    network = make_llama()
    change(network)
    expected = np.array(network(tokens(1, 5)))
    assert install(network, kernel_dir, blas.compiler(), 2) is False
    assert np.array_equal(np.array(network(tokens(1, 5))), expected)


def test_without_a_compiler_mlx_s_own_answer_with_a_warning(
    make_llama: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from workers import blas
    from workers.llm.cpu.install import install

    monkeypatch.setattr(blas, "compiler", lambda: "")
    network = make_llama()
    assert install(network, tmp_path) is False
    assert "without compiled code" in caplog.text and "there is no C++ compiler" in caplog.text
    assert difference(network(tokens(1, 50)), make_llama()(tokens(1, 50))) < CLOSE


def test_a_failing_compiler_is_said_and_costs_nothing_else(
    make_llama: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from workers import blas
    from workers.llm.cpu.install import install

    def failing(*args: Any, **options: Any) -> Any:
        raise subprocess.CalledProcessError(1, "g++", stderr=b"out of registers")

    monkeypatch.setattr(subprocess, "run", failing)
    monkeypatch.setattr(blas, "compiler", lambda: "g++")
    network = make_llama()
    assert install(network, tmp_path) is False
    assert "out of registers" in caplog.text
    assert difference(network(tokens(1, 3)), make_llama()(tokens(1, 3))) < CLOSE
