"""The logit rules against mlx-whisper's own, on random logits and random pasts."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.workers.whisper.toy import DIMS, VOCAB
from workers import blas
from workers.whisper.decoding.filters import Filters
from workers.whisper.tokenizer import Tokenizer

TOKENIZER = Tokenizer(VOCAB)
BEGIN = TOKENIZER.timestamp_begin


class _Model:
    dims = DIMS
    is_multilingual = True
    num_languages = 99
    decoder = None


def reference(**options: object) -> Any:
    from mlx_whisper.decoding import DecodingOptions, DecodingTask

    return DecodingTask(_Model(), DecodingOptions(language="en", **options))


def a_past(generator: np.random.Generator, length: int) -> list[int]:
    """Tokens as the rules allow them, more or less."""
    return [
        int(generator.integers(0, 50000)) if generator.random() < 0.6 else int(BEGIN + generator.integers(0, 1501))
        for _ in range(length)
    ]


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 9])
def test_filters_equal_mlx_whispers(fast_blas: blas.Blas, timestamps: bool, length: int) -> None:
    import mlx.core as mx

    task = reference(without_timestamps=not timestamps)
    ours = Filters(TOKENIZER, VOCAB, timestamps=timestamps, ascending=False)
    generator = np.random.default_rng(length)
    degenerate = 0
    for _ in range(60):
        logits = generator.normal(size=(3, VOCAB)).astype(np.float32) * 2
        logits[:, BEGIN:] += generator.uniform(-8, 8, (3, 1)).astype(np.float32)
        logits[np.arange(3), generator.integers(0, 50000, 3)] += generator.uniform(0, 16, 3).astype(np.float32)
        said = [a_past(generator, length) for _ in range(3)]
        theirs = mx.array(logits)
        tokens = mx.array([[*task.initial_tokens, *row] for row in said])
        for rule in task.logit_filters:
            theirs = rule.apply(theirs, tokens)
        expected = np.array(theirs)
        found = ours.apply(logits, said)
        for line, wanted in zip(found, expected, strict=True):
            if np.isinf(wanted).all():
                degenerate += 1
                assert not np.isinf(line[:50257]).all() or not np.isinf(line[BEGIN:]).all() or line[50257] > -np.inf
            else:
                np.testing.assert_array_equal(line, wanted)
    assert degenerate < 180


def test_the_reference_forbids_everything_after_a_pair_that_wants_a_third_timestamp_and_we_do_not(
    fast_blas: blas.Blas,
) -> None:
    import mlx.core as mx
    from mlx_whisper.decoding import ApplyTimestampRules
    from mlx_whisper.tokenizer import get_tokenizer

    logits = np.zeros((1, VOCAB), np.float32)
    logits[:, BEGIN + 50] = 12.0
    rule = ApplyTimestampRules(get_tokenizer(True, language="en", task="transcribe"), 3, 50)
    theirs = np.array(rule.apply(mx.array(logits), mx.array([[50258, 50259, 50359, BEGIN]])))
    assert np.isinf(theirs).all()
    ours = Filters(TOKENIZER, VOCAB).apply(logits, [[BEGIN]])
    assert ours[0, 1000] == 0.0
    assert np.isinf(ours[0, BEGIN:]).all()


def test_timestamps_ascend() -> None:
    filters = Filters(TOKENIZER, VOCAB)
    logits = np.zeros((1, VOCAB), np.float32)
    after_text = filters.apply(logits, [[BEGIN + 10, 400]])[0]
    assert np.isinf(after_text[BEGIN : BEGIN + 11]).all()
    assert after_text[BEGIN + 11] == 0.0
    next_start = filters.apply(logits, [[BEGIN, 400, BEGIN + 20]])[0]
    assert np.isinf(next_start[BEGIN : BEGIN + 20]).all()
    assert next_start[BEGIN + 20] == 0.0
    assert np.isinf(next_start[: TOKENIZER.eot]).all()


def test_after_the_last_timestamp_only_the_end_is_left() -> None:
    filters = Filters(TOKENIZER, VOCAB)
    logits = np.zeros((1, VOCAB), np.float32)
    last = filters.apply(logits, [[BEGIN, 400, BEGIN + 1500, BEGIN + 1500, 400]])[0]
    assert np.isinf(last[BEGIN:]).all()
    assert last[TOKENIZER.eot] == 0.0


def test_the_first_timestamp_is_within_a_second() -> None:
    first = Filters(TOKENIZER, VOCAB).apply(np.zeros((1, VOCAB), np.float32), [[]])[0]
    assert np.flatnonzero(first > -np.inf).tolist() == list(range(BEGIN, BEGIN + 51))


def test_a_row_costs_less_than_a_quarter_of_a_millisecond() -> None:
    filters = Filters(TOKENIZER, VOCAB)
    logits = np.random.default_rng(0).normal(size=(4, VOCAB)).astype(np.float32)
    said = [[BEGIN, 400, 500]] * 4
    filters.apply(logits, said)
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        filters.apply(logits, said)
        times.append((time.perf_counter() - begun) / 4)
    assert min(times) < 0.25e-3
