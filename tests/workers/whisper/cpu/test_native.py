"""decoder.cpp: the same numbers in any company, on any number of threads, from float16 or float32, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.whisper.test_model import TOKENS, Build, assert_near, encode, reference

Make = Callable[..., Any]


def rounded(module: Any) -> Any:
    """The module with weights that float16 can hold, as models' files have them."""
    import mlx.core as mx
    from mlx.utils import tree_map

    module.update(tree_map(lambda w: w.astype(mx.float16).astype(w.dtype), module.parameters()))
    return module


@pytest.mark.parametrize("halves", [False, True])
def test_weights_stay_float16_where_that_changes_no_number(
    halves: bool, build: Build, make_module: Make, make_mel: Make
) -> None:
    module = make_module("base")
    mel = make_mel(module)
    if halves:
        rounded(module)
    expected, _ = reference(module, mel, TOKENS)
    model = build("cpu", module)
    table = model.decoder._embeddings
    assert table.dtype == (np.float16 if halves else np.float32)
    assert_near(model.prefill(encode(model, mel), TOKENS, range(len(TOKENS)))[1], expected, 2e-5)


def test_a_row_is_the_same_to_the_last_bit_in_company_and_on_any_threads(
    build: Build, make_module: Make, make_mel: Make
) -> None:
    """Eleven rows: whole blocks of tokens, and some left over."""
    one, three = build("cpu", rounded(make_module("base")), 1), build("cpu", rounded(make_module("base")), 3)
    mel = make_mel(make_module("base"))
    window = encode(one, mel)
    alone, first = one.prefill(window, TOKENS[:3], [-1])
    expected = one.step([alone], [np.array([9])])[0]
    for model in (one, three):
        rows, beside = (each for each, _ in model.prefill_many([(window, TOKENS[:3], [-1]), (window, TOKENS, [-1])]))
        rows.select([0] * 9)
        found = model.step([beside, rows], [np.array([[1, 2]]), np.array([5, 6, 7, 8, 9, 1, 2, 3, 4])])[1]
        assert np.array_equal(found[4:5], expected)
    assert np.array_equal(three.prefill(window, TOKENS[:3], [-1])[1], first)


def test_without_a_compiler_the_plain_formulation_answers_and_a_warning_says_so(
    make_module: Make, make_mel: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from workers import blas
    from workers.whisper.cpu.model import cpu_model
    from workers.whisper.plain import PlainDecoder, PlainEncoder

    module = make_module("base")
    mel = make_mel(module)
    expected, _ = reference(module, mel, TOKENS)
    monkeypatch.setattr(blas, "compiler", lambda: "")
    with caplog.at_level(logging.WARNING):
        model = cpu_model(module, 2, tmp_path)
    assert isinstance(model.encoder, PlainEncoder)
    assert isinstance(model.decoder, PlainDecoder)
    assert "without compiled code" in caplog.text
    assert_near(model.prefill(encode(model, mel), TOKENS, range(len(TOKENS)))[1], expected)


def test_heads_that_fill_no_panel_are_left_to_the_plain_formulation(build: Build, make_module: Make) -> None:
    from workers.whisper.plain import PlainDecoder

    assert isinstance(build("cpu", make_module("odd")).decoder, PlainDecoder)


@pytest.mark.parametrize("half", ["audio", "text"])
def test_the_heads_of_both_halves_must_fill_panels(make_module: Make, half: str) -> None:
    """Cross attention's are the decoder's: one of 16 would be written over its neighbours."""
    from dataclasses import replace

    from workers.whisper.cpu.library import fits

    dims = make_module("base").dims
    assert fits(dims)
    heads = getattr(dims, f"n_{half}_state") // 16
    assert not fits(replace(dims, **{f"n_{half}_head": heads}))


def test_threads_and_weights_go_with_the_model(build: Build, make_module: Make) -> None:
    import gc

    before = _threads()
    model = build("cpu", make_module("base"), 3)
    assert _threads() == before + 6  # encoder, cross attention and decoder have two beside the caller's
    del model
    gc.collect()
    assert _threads() == before


def _threads() -> int:
    """Of this process, as the kernel counts them."""
    return len(list(Path("/proc/self/task").iterdir()))
