"""A job as mlx-whisper's arguments, and its results as events. No weights."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from protocol.events import Segment
from protocol.jobs import Decoding, Pcm, Transcribe
from workers import blas

pytestmark = pytest.mark.usefixtures("fast_blas")

AUDIO = Pcm("/nowhere", 0, 16000)


def test_every_field_of_decoding_reaches_mlx_whisper() -> None:
    from workers.oracle.transcription import arguments

    decoding = Decoding(
        language="de",
        prompt="Hallo",
        temperature=(0.5,),
        best_of=3,
        length_penalty=0.7,
        condition_on_previous_text=False,
        no_speech_threshold=None,
        logprob_threshold=None,
        compression_ratio_threshold=None,
        without_timestamps=True,
        words=True,
        hallucination_silence_threshold=2.0,
    )
    assert arguments(Transcribe(AUDIO, "translate", decoding)) == {
        "task": "translate",
        "language": "de",
        "initial_prompt": "Hallo",
        "temperature": (0.5,),
        "best_of": 3,
        "length_penalty": 0.7,
        "condition_on_previous_text": False,
        "no_speech_threshold": None,
        "logprob_threshold": None,
        "compression_ratio_threshold": None,
        "without_timestamps": True,
        "word_timestamps": True,
        "hallucination_silence_threshold": 2.0,
    }


def test_the_defaults_are_mlx_whispers_own() -> None:
    import inspect

    from mlx_whisper.transcribe import transcribe

    from workers.oracle.transcription import arguments

    given = arguments(Transcribe(AUDIO))
    own = inspect.signature(transcribe).parameters
    same = [name for name in given if name in own]
    assert len(same) == 8
    assert {name: given[name] for name in same} == {name: own[name].default for name in same}


@pytest.mark.parametrize(
    ("given", "passed"),
    [(None, None), ("", None), ("  \n", None), ("Starling", "Starling"), ("<|endoftext|> x", "< |endoftext|> x")],
)
def test_a_prompt_is_text_and_never_a_command(given: str | None, passed: str | None) -> None:
    from mlx_whisper.tokenizer import get_tokenizer

    from workers.oracle.transcription import prompt

    assert prompt(Decoding(prompt=given)) == passed
    if passed is not None:
        tokenizer = get_tokenizer(True)
        assert max(tokenizer.encode(passed)) < tokenizer.eot


@pytest.mark.parametrize(
    ("text", "least"),
    [("birch " * 300, 300), ("planks and canoes " * 1000, 3000), ("カヌーは滑らかな板の上を滑った。" * 200, 2000)],
    ids=["300 tokens", "3000 tokens", "Japanese"],
)
def test_mlx_whisper_keeps_the_last_223_tokens_of_a_prompt(text: str, least: int) -> None:
    from types import SimpleNamespace

    from mlx_whisper.decoding import DecodingOptions, DecodingTask
    from mlx_whisper.tokenizer import get_tokenizer

    tokens = get_tokenizer(True, num_languages=99).encode(" " + text.strip())
    assert len(tokens) > least
    dims = SimpleNamespace(n_text_ctx=448, n_vocab=51865, n_audio_ctx=1500)
    model = SimpleNamespace(is_multilingual=True, num_languages=99, dims=dims)
    initial = DecodingTask(model, DecodingOptions(language="en", prompt=tokens)).initial_tokens
    assert list(initial) == [50361, *tokens[-223:], 50258, 50259, 50359]


RAW = {
    "seek": 3000,
    "start": 30.0,
    "end": 31.5,
    "text": " Hello.",
    "tokens": [50364, 2425, 13, 50439],
    "temperature": 0.0,
    "avg_logprob": -0.25,
    "compression_ratio": 0.5,
    "no_speech_prob": 0.01,
}


def test_a_segment_is_mlx_whispers_own() -> None:
    from workers.oracle.transcription import to_segment

    assert to_segment(RAW) == Segment(
        start=30.0,
        end=31.5,
        text=" Hello.",
        tokens=(50364, 2425, 13, 50439),
        seek=3000,
        temperature=0.0,
        avg_logprob=-0.25,
        compression_ratio=0.5,
        no_speech_prob=0.01,
    )


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_numbers_that_json_cannot_say_are_replaced(value: float) -> None:
    from workers.oracle.transcription import to_segment

    broken = {**RAW, "avg_logprob": value, "no_speech_prob": value, "compression_ratio": value}
    sent: dict[str, Any] = json.loads(msgspec.json.encode(to_segment(broken)))
    assert (sent["avg_logprob"], sent["no_speech_prob"], sent["compression_ratio"]) == (-100.0, 0.0, 0.0)


ZERO = 50364
"""<|0.00|> of the multilingual vocabulary; one more for every 20 ms."""


@pytest.mark.parametrize(
    ("tokens", "frames"),
    [
        ([], 3000),
        ([ZERO, 1, 2, ZERO + 100], 3000),
        ([ZERO, 1, ZERO + 100, ZERO + 100, 2, ZERO + 200], 3000),
        ([ZERO, 1, ZERO + 100, ZERO + 100, 2], 200),
        ([ZERO, 1, ZERO + 100, ZERO + 100, 2, ZERO + 300, ZERO + 310], 600),
        ([1, 2, 3], 3000),
    ],
)
def test_a_window_moves_on_as_far_as_mlx_whisper_seeks(tokens: list[int], frames: int) -> None:
    from workers.oracle.transcription import advance

    assert advance(tokens, 51865) == frames


def test_the_blas_was_there_first(fast_blas: blas.Blas) -> None:
    assert not fast_blas.slow, fast_blas.reason
