"""The starter with its real weights: tuned and stock side by side, and what a person would notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.model

TEXT = (Path(__file__).parents[3] / "LICENSE").read_text("utf-8")


def prompt(loaded: Any, length: int) -> Any:
    import mlx.core as mx

    ids = loaded.tokenizer.encode(TEXT * 2)
    assert len(ids) > length
    return mx.array([ids[:length]])


def test_it_knows_a_capital(llm: Any) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    ids = llm.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True
    )
    cache, said = make_prompt_cache(llm.network), []
    while not said or said[-1] not in llm.tokenizer.eos_token_ids:
        logits = llm.network(mx.array([ids if not said else said[-1:]]), cache=cache)
        said.append(int(mx.argmax(logits[0, -1]).item()))
    assert llm.tokenizer.decode(said[:-1]) == "The capital of France is Paris."


def test_what_is_told_of_it(llm: Any) -> None:
    model = llm.model
    assert (model.id, model.kind, model.parameters) == ("smollm2-135m-instruct", "llm", 134515008)
    assert (model.dtype, model.context_window, llm.vocabulary) == ("4-bit", 8192, 49152)


@pytest.mark.parametrize("batched", [False, True])
def test_every_position_has_mlx_lms_logits(llm: Any, stock_llm: Any, batched: bool) -> None:
    from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

    ids = prompt(llm, 306)
    found = []
    for loaded in (stock_llm, llm):
        cache = make_prompt_cache(loaded.network)
        if batched:
            cache = [BatchKVCache([0]) for _ in cache]
        parts = [np.array(loaded.network(ids[:, a:b], cache=cache)[0]) for a, b in ((0, 300), (300, 301), (301, 306))]
        found.append(np.concatenate(parts))
    stock, tuned = found
    assert np.abs(stock - tuned).max() < 1e-3  # of logits from -35 to 38
    assert (stock.argmax(-1) == tuned.argmax(-1)).all()


def test_what_long_prompts_and_many_rows_needed_goes_back_at_rest(llm: Any) -> None:
    import psutil

    from tests.workers.llm.test_real_shapes import driver_for
    from tests.workers.llm.toy import chat
    from workers.heap import give_back

    def mebibytes() -> float:
        return float(psutil.Process().memory_info().rss) / (1 << 20)

    driver = driver_for(llm, cache_bytes=0)
    give_back()
    before = mebibytes()
    for text in (TEXT * 2, *("Count the apples." for _ in range(8))):
        driver.ask(chat(text, tokens=8))
    driver.run()
    worked = mebibytes()
    give_back()
    assert worked - before > 30
    assert mebibytes() - before < 30
