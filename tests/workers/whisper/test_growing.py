"""A recording that is transcribed while it grows ends with the segments of one that was there at once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.events import Transcribed
from protocol.jobs import Pcm, Span
from protocol.past import Reached
from tests.workers.whisper.driver import job, run, segments, sound, text
from tests.workers.whisper.toy import ToyModel, scripted
from workers import blas
from workers.whisper.tokenizer import Tokenizer

TOKENIZER = Tokenizer(51865)
T = TOKENIZER.timestamp_begin
HI = TOKENIZER.encode(" Hi")[0]


def loud_start(path: Path, seconds: float, seed: int) -> Pcm:
    """Noise whose loudest moment comes first: windows are scaled by the loudest so far."""
    audio = sound(path, seconds, seed)
    samples = np.fromfile(path, "<i2")
    samples[:8000] = np.random.default_rng(seed).normal(size=8000) * 9000
    samples.tofile(path)
    return audio


def in_pieces(model: Any, audio: Pcm, stops: list[int], hear: Any = None, **how: Any) -> tuple[list[Any], Transcribed]:
    """The segments of all jobs on the audio up to each of `stops`, then on all of it; and the last job's end."""
    found: list[Any] = []
    reached: Reached | None = None
    for stop in [*stops, audio.stop]:
        piece = job(Pcm(audio.path, audio.start, stop), reached=reached, whole=stop == audio.stop, **how)
        events = run(model, [piece], hear=hear)[0]
        found += segments(events)
        assert isinstance(events[-1], Transcribed)
        reached = events[-1].reached
    return found, events[-1]


DECODINGS: list[dict[str, Any]] = [
    {},
    {"language": "de", "prompt": "Ada", "vocabulary": ("Weizsäcker", "Gauß")},
    {"condition_on_previous_text": False},
    {"temperature": (0.4, 0.8), "best_of": 2, "seed": 3},
    {"words": True},
    {"words": True, "hallucination_silence_threshold": 2.0},
    {"silence_rule": True, "logprob_threshold": -0.1},
    {"audio_ctx": "auto", "logprobs": True},
    {"beam_size": 3},
]


@pytest.mark.parametrize("how", DECODINGS, ids=lambda how: "-".join(how) or "plain")
def test_pieces_of_a_growing_recording_are_the_whole_ones_segments(tmp_path: Path, how: dict[str, Any]) -> None:
    def hear(doubt: Any) -> bool:
        return round(doubt.start) % 2 == 0

    how = {"temperature": (0.0,), **how}
    audio = loud_start(tmp_path / "spool", 127.3, seed=3)
    whole = run(ToyModel(), [job(audio, **how)], hear=hear)[0]
    expected = segments(whole)
    assert len(expected) > 4
    generator = random.Random(5)
    every = sorted(generator.sample(range(1, audio.stop), 15))
    for stops in ([], [480_000], [480_160, 480_161], every):
        found, end = in_pieces(ToyModel(), audio, stops, hear, **how)
        assert found == expected, stops
        assert (end.language, end.language_probability) == (whole[-1].language, whole[-1].language_probability)
        assert end.reached == whole[-1].reached


def test_a_window_that_is_not_full_waits(tmp_path: Path) -> None:
    model = ToyModel()
    for seconds in (0.0, 5.0, 29.99, 30.0):
        audio = sound(tmp_path / "spool", seconds)
        events = run(model, [job(audio, whole=False, language="en")])[0]
        assert segments(events) == []
        assert events[-1].reached == Reached(seek=0, language="en", loudest=events[-1].reached.loudest)
    assert model.calls == []


def test_a_full_window_is_heard_once_and_the_next_job_begins_behind_it(tmp_path: Path) -> None:
    model = ToyModel(scripted([T, HI, T + 1000]))
    audio = loud_start(tmp_path / "spool", 61.0, 0)
    first = run(model, [job(Pcm(audio.path, 0, 16000 * 31), whole=False, language="en")])[0]
    assert text(first) == " Hi"
    assert first[-1].reached.seek == 3000
    again = run(model, [job(Pcm(audio.path, 0, 16000 * 31), whole=False, reached=first[-1].reached, language="en")])[0]
    assert text(again) == ""
    assert again[-1].reached == first[-1].reached
    assert model.calls.count(("encode", 1)) == 1


def test_a_job_that_goes_on_is_conditioned_on_what_was_said_not_on_the_prompt_again(tmp_path: Path) -> None:
    prompts: list[list[int]] = []

    def says(encoded: Any, said: list[int]) -> Any:
        prompts.append(said)
        return scripted([T, HI, T + 100])(encoded, said)

    audio = sound(tmp_path / "spool", 40.0)
    reached = Reached(seek=3000, said=(T, HI, T + 100), language="en")
    run(ToyModel(says), [job(audio, reached=reached, prompt="Ada", temperature=(0.0,))])
    assert prompts[0][:5] == [TOKENIZER.sot_prev, T, HI, T + 100, TOKENIZER.sot]


def test_the_language_stays_when_only_the_first_part_spoke(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 32.0)
    reached = Reached(seek=3000, language="de", language_probability=0.75, end=12.5)
    model = ToyModel(scripted([T, HI, T + 50], no_speech=30.0))
    end = run(model, [job(audio, reached=reached, logprob_threshold=0.0, temperature=(0.0,))])[0][-1]
    assert (end.language, end.language_probability) == ("de", 0.75)


def test_independent_spans_have_no_place_to_go_on_from(tmp_path: Path) -> None:
    spans = (Span(0, 16000), Span(32000, 48000))
    asked = job(sound(tmp_path / "spool", 4.0), spans=spans, independent=True, temperature=(0.0,))
    assert run(ToyModel(), [asked])[0][-1].reached is None


@pytest.mark.model
@pytest.mark.timeout(600)
def test_real_speech_in_pieces_is_real_speech_at_once(fast_blas: blas.Blas, load_model: Any, tmp_path: Path) -> None:
    from tests.speech import timeline

    model = load_model("base")
    sentences = ("The quick brown fox jumps over the lazy dog.", 0.8, "She sells sea shells by the sea shore.", 1.5)
    samples = timeline(*sentences * 8)
    samples.tofile(tmp_path / "spool")
    audio = Pcm(str(tmp_path / "spool"), 0, len(samples))
    expected = segments(run(model, [job(audio)])[0])
    assert len(expected) > 10
    found, _ = in_pieces(model, audio, list(range(50_000, audio.stop, 90_000)))
    assert [(each.start, each.end, each.text, each.tokens) for each in found] == [
        (each.start, each.end, each.text, each.tokens) for each in expected
    ]
