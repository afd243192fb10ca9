"""The pieces of alignment against mlx-whisper's timing.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workers import blas
from workers.whisper.segments import Draft, Window
from workers.whisper.words import dtw, timing


@pytest.fixture
def reference(fast_blas: blas.Blas) -> Any:
    """mlx-whisper's timing.py."""
    from mlx_whisper import timing

    return timing


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 3), (7, 50), (30, 700), (60, 40)])
def test_dtw_equals_the_reference(reference: Any, shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(shape[0])
    for cost in (generator.normal(size=shape), generator.integers(0, 2, shape)):
        found = dtw.path(cost.astype(np.float32))
        expected = reference.dtw(cost.astype(np.float32))
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("frames", [1, 3, 4, 7, 200])
def test_median_equals_the_reference(reference: Any, frames: int) -> None:
    x = np.random.default_rng(frames).normal(size=(2, 3, frames)).astype(np.float32)
    np.testing.assert_array_equal(timing.median7(x), reference.median_filter(x, 7))


def some_timings(generator: np.random.Generator, n: int) -> list[timing.Timing]:
    choices = [" word", " other", ".", ",", "?", ' "', " (", ")", "'", " a", "", "!", " -", "。"]
    bounds = np.cumsum(generator.choice([0.0, 0.02, 0.3, 0.4, 1.5, 4.0], n + 1))
    return [
        timing.Timing(
            str(generator.choice(choices)),
            [int(i)] * int(generator.integers(1, 3)),
            float(bounds[i]),
            float(bounds[i + 1]),
            0.5,
        )
        for i in range(n)
    ]


def test_placing_equals_the_reference(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlx_whisper.tokenizer import get_tokenizer

    theirs = get_tokenizer(True, num_languages=99, language="en", task="transcribe")
    for seed in range(300):
        generator = np.random.default_rng(seed)
        found = some_timings(generator, int(generator.integers(1, 14)))
        tokens = sum(len(each.tokens) for each in found)
        cut = int(generator.integers(0, tokens + 1))
        ends = np.sort(generator.uniform(0, found[-1].end + 1, 4)).round(2)
        last_speech = float(generator.choice([0.0, 10.0, 12.0]))
        segments = [
            {"tokens": [1] * cut, "start": 10 + ends[0], "end": 10 + ends[1], "seek": 1000},
            {"tokens": [1] * (tokens - cut), "start": 10 + ends[2], "end": 10 + ends[3], "seek": 1000},
        ]
        drafts = [Draft(each["start"], each["end"], tuple(each["tokens"]), 0) for each in segments]
        alignment = [reference.WordTiming(t.word, list(t.tokens), t.start, t.end, t.probability) for t in found]
        monkeypatch.setattr(reference, "find_alignment", lambda *_, alignment=alignment, **__: alignment)
        reference.add_word_timestamps(
            segments=segments,
            model=None,
            tokenizer=theirs,
            mel=None,
            num_frames=3000,
            last_speech_timestamp=last_speech,
        )
        timing.place(found, drafts, eot=50257, window=Window(1000, 3000), last_speech=last_speech)
        for segment, draft in zip(segments, drafts, strict=True):
            assert draft.start == pytest.approx(segment["start"]), seed
            assert draft.end == pytest.approx(segment["end"]), seed
            assert [(w.word, w.start, w.end) for w in draft.words] == [
                (w["word"], pytest.approx(w["start"]), pytest.approx(w["end"])) for w in segment["words"]
            ], seed
