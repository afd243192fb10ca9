"""What adapters add to each row, beside mlx-lm's own LoRA modules with one adapter at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.jobs import MountAdapter, UnmountAdapter
from protocol.settings import AdapterSource
from tests.workers.llm.adapters.toy_adapters import ALL, layers_of, save_mlx_lm, save_peft

Make = Callable[..., Any]
IDS = [[3, 7, 1, 9, 4], [250, 3, 8, 8, 2], [17, 99, 5, 6, 30], [3, 7, 1, 9, 4]]


def source(folder: Path) -> AdapterSource:
    return AdapterSource(folder.name, str(folder), folder.name)


def mounted(network: Any, *folders: Path) -> Any:
    from workers.llm.adapters.mounts import Mounts

    mounts = Mounts(network)
    for folder in folders:
        mounts.do(MountAdapter(source(folder)))
    return mounts


def logits(network: Any, mounts: Any, names: Sequence[str], ids: Any = IDS) -> Any:
    """Of rows with these adapters, in one pass: (rows, positions, vocabulary)."""
    import mlx.core as mx

    keys = [mounts.enter(name or "none")[0] for name in names]
    mounts.serving.turn(keys)
    found = np.array(network(mx.array(ids)).astype(mx.float32))
    for key in keys:
        mounts.leave(key)
    return found


def mlx_lms(network: Any, folder: Path, ids: Any = IDS) -> Any:
    """The same of mlx-lm's own modules, all rows with one adapter. The network keeps it."""
    import mlx.core as mx
    from mlx_lm.tuner.utils import load_adapters

    load_adapters(network, str(folder))
    network.eval()
    return np.array(network(mx.array(ids)).astype(mx.float32))


def _quantized(network: Any) -> Any:
    import mlx.nn as nn

    nn.quantize(network, group_size=32, bits=8)
    return network


@pytest.fixture(params=["stock", "quantized", "linear", "one thread", "two threads"])
def pair(request: pytest.FixtureRequest, make_llama: Make, compiled: Make) -> tuple[Any, Make]:
    """A network as a worker may have it, and how to make mlx-lm's own with the same weights."""
    from workers.llm.cpu.linear import CpuLinear

    if request.param == "quantized":
        return _quantized(make_llama()), lambda: _quantized(make_llama())
    network = make_llama()
    if request.param == "linear":
        for block in network.layers:
            block.mlp.up_proj = CpuLinear(block.mlp.up_proj, True)
            block.self_attn.q_proj = CpuLinear(block.self_attn.q_proj, False)
    elif request.param != "stock":
        compiled(network, 1 if request.param == "one thread" else 2)
    return network, make_llama


def test_each_row_gets_its_own_adapter_s_additions_as_mlx_lm_computes_them(
    pair: tuple[Any, Make], tmp_path: Path
) -> None:
    network, stock = pair
    a = save_mlx_lm(tmp_path / "a", layers_of(stock(), (1, 2)), rank=4)
    b = save_mlx_lm(tmp_path / "b", layers_of(stock(), (0, 2), ("self_attn.q_proj", "mlp.down_proj")), rank=7, seed=2)
    base = logits(network, mounted(network), ["", "", "", ""])
    mixed = logits(network, mounted(network, a, b), ["", "a", "b", "a"])
    assert np.array_equal(mixed[0], base[0])
    assert mixed[[1, 3]] == pytest.approx(mlx_lms(stock(), a)[[1, 3]], abs=2e-3)
    assert mixed[2] == pytest.approx(mlx_lms(stock(), b)[2], abs=2e-3)
    assert np.abs(mixed[3] - mixed[0]).max() > 0.1


def test_a_long_prompt_is_read_with_its_adapter(pair: tuple[Any, Make], tmp_path: Path) -> None:
    network, stock = pair
    a = save_mlx_lm(tmp_path / "a", layers_of(stock(), (0, 1, 2)))
    prompt = [[(7 * place) % 300 for place in range(150)]]
    assert logits(network, mounted(network, a), ["a"], prompt) == pytest.approx(mlx_lms(stock(), a, prompt), abs=2e-3)


def test_vectors_of_several_texts_are_made_with_their_adapter(pair: tuple[Any, Make], tmp_path: Path) -> None:
    from workers.llm.vectors import Decoder

    network, stock = pair
    a = save_mlx_lm(tmp_path / "a", layers_of(stock(), (0, 1, 2)))
    texts = [np.array(ids, np.int32) for ids in (IDS[0], IDS[1][:2], IDS[2])]
    mounts = mounted(network)
    decoder = Decoder(network, 0, "mean", mounts.serving)
    before = decoder.together(texts)
    mounts.do(MountAdapter(source(a)))
    key = mounts.enter("a")[0]
    found = decoder.adapted(key).together(texts)
    for text, vector in zip(texts, found, strict=True):
        reading = decoder.adapted(key).begin(text)
        assert reading.read(1) is None
        assert reading.read(len(text)) == pytest.approx(vector, abs=2e-3)
    mounts.leave(key)
    assert np.abs(found - before).max() > 0.1
    assert np.array_equal(decoder.together(texts), before)


@pytest.mark.parametrize("name", ALL)
def test_every_linear_layer_of_a_tuned_block_can_have_one(make_pair: Make, tmp_path: Path, name: str) -> None:
    stock, tuned = make_pair()
    a = save_mlx_lm(tmp_path / "a", layers_of(stock, (1,), (name,)))
    assert logits(tuned, mounted(tuned, a), ["a"] * 4) == pytest.approx(mlx_lms(stock, a), abs=2e-3)


def test_unmounting_all_restores_the_network_bit_for_bit(pair: tuple[Any, Make], tmp_path: Path) -> None:
    network, stock = pair
    a = save_mlx_lm(tmp_path / "a", layers_of(stock(), (1, 2)))
    b = save_mlx_lm(tmp_path / "b", layers_of(stock(), (0, 1)), rank=2)
    before = logits(network, mounted(network), ["", "", "", ""])
    modules = [module for _, module in network.named_modules()]
    mounts = mounted(network, a, b)
    logits(network, mounts, ["a", "b", "a", "b"])
    mounts.do(UnmountAdapter("a"))
    mounts.do(UnmountAdapter("b"))
    assert all(one is other for one, (_, other) in zip(modules, network.named_modules(), strict=True))
    assert np.array_equal(logits(network, mounts, ["", "", "", ""]), before)


def test_peft_s_format_says_the_same_as_mlx_lm_s(make_llama: Make, tmp_path: Path) -> None:
    network = make_llama()
    sizes = layers_of(network, (1, 2))
    ours = save_mlx_lm(tmp_path / "ours", sizes, rank=4, scale=2.0)
    peft = save_peft(tmp_path / "peft", sizes, rank=4, alpha=8.0)
    rooted = save_peft(tmp_path / "rooted", sizes, rank=4, alpha=4.0, use_rslora=True)
    mounts = mounted(network, ours, peft, rooted)
    rows = logits(network, mounts, ["ours", "peft", "rooted"], [IDS[0]] * 3)
    assert rows[1] == pytest.approx(rows[0], abs=2e-3)
    assert rows[2] == pytest.approx(rows[0], abs=2e-3)


def test_an_adapter_whose_numbers_overflow_spoils_its_own_rows_alone(make_llama: Make, tmp_path: Path) -> None:
    network = make_llama()
    sizes = layers_of(network, (0,), ("self_attn.q_proj",))
    mild = save_mlx_lm(tmp_path / "mild", sizes)
    wild = save_mlx_lm(tmp_path / "wild", sizes, scale=1e38, seed=3)
    mounts = mounted(network, mild, wild)
    alone = logits(network, mounts, ["mild"] * 4)
    mixed = logits(network, mounts, ["mild", "wild", "", "mild"])
    assert mixed[[0, 3]] == pytest.approx(alone[[0, 3]], abs=2e-3)
    assert np.isfinite(mixed[2]).all()
