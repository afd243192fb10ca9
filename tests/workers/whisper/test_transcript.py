"""Whisper's rules over windows: against mlx_whisper.transcribe on toy logits, and one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from protocol.events import Segment, Transcribed, Word
from protocol.jobs import Span
from tests.workers.whisper.driver import guess, guessed, job, run, segments, sound, text
from tests.workers.whisper.toy import PLAIN, ToyModel, scripted
from workers import blas
from workers.whisper.decoding.fallback import Kit
from workers.whisper.timeline import Timeline
from workers.whisper.tokenizer import Tokenizer

TOKENIZER = Tokenizer(51865)
T = TOKENIZER.timestamp_begin
HI, YOU = TOKENIZER.encode(" Hi")[0], TOKENIZER.encode(" you")[0]


def settled(raw: list[dict[str, Any]], duration: float) -> list[tuple[float, float, str, tuple[int, ...]]]:
    """The reference's segments within the audio, as Timeline has it; its blank ones left out."""
    timeline = Timeline(duration)
    found = []
    for each in raw:
        if not each["text"].strip() or each.get("words") == []:
            continue
        words = tuple(Word(w["word"], w["start"], w["end"], 1.0) for w in each.get("words", ()))
        segment = Segment(each["start"], each["end"], each["text"], tuple(each["tokens"]), 0, 0, 0, 0, 0, words)
        found.append(timeline.settle(segment))
    return [brief(each) for each in found]


def brief(each: Segment) -> Any:
    words = [(w.word, pytest.approx(w.start), pytest.approx(w.end)) for w in each.words or ()]
    return (pytest.approx(each.start), pytest.approx(each.end), each.text.replace("\ufffd", ""), each.tokens, words)


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"condition_on_previous_text": False}, {"condition_on_previous_text": False}),
    ({"prompt": " Names: Ada."}, {"initial_prompt": " Names: Ada."}),
    ({"without_timestamps": True}, {"without_timestamps": True}),
    ({"no_speech_threshold": 0.3, "logprob_threshold": -0.5}, {"no_speech_threshold": 0.3, "logprob_threshold": -0.5}),
    ({"no_speech_threshold": None}, {"no_speech_threshold": None}),
    ({"words": True}, {"word_timestamps": True}),
    (
        {"words": True, "hallucination_silence_threshold": 1.0},
        {"word_timestamps": True, "hallucination_silence_threshold": 1.0},
    ),
]


@pytest.mark.parametrize("seconds", [0.4, 47.0, 95.3])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_transcripts_equal_mlx_whispers_on_the_same_logits(
    fast_blas: blas.Blas, tmp_path: Path, case: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.workers.whisper.reference import transcribe

    # The reference's timestamps may descend, so ours may here; its temperatures draw from another generator.
    monkeypatch.setattr("workers.whisper.engine.Kit", lambda dims: Kit(dims, ascending=False))
    ours, theirs = CASES[case]
    audio = sound(tmp_path / "spool", seconds, seed=case)
    samples = np.fromfile(audio.path, "<i2").astype(np.float32) / 32768
    expected = transcribe(ToyModel(), samples, language="en", temperature=0.0, **theirs)
    events = run(ToyModel(), [job(audio, language="en", temperature=(0.0,), **ours)])[0]
    found = [msgspec.structs.replace(each, text=each.text.replace("\ufffd", "")) for each in segments(events)]
    wanted = settled(expected["segments"], audio.seconds)
    assert len(found) == len(wanted)
    for mine, reference in zip(found, wanted, strict=True):
        assert mine.tokens == reference[3]
        if ours.get("words"):
            assert [w.word for w in mine.words or ()] == [w[0] for w in reference[4]] or "\ufffd" in str(reference[4])
        assert (mine.start, mine.end) == reference[:2]


def test_a_silent_recording_is_an_empty_text_in_no_language(tmp_path: Path) -> None:
    model = ToyModel(scripted([T, HI, T + 50], no_speech=30.0))
    audio = sound(tmp_path / "spool", 5.0)
    events = run(model, [job(audio, logprob_threshold=0.0, temperature=(0.0,))])[0]
    assert text(events) == ""
    assert events[-1].language is None


def test_no_samples_are_an_empty_text_without_a_window(tmp_path: Path) -> None:
    model = ToyModel()
    events = run(model, [job(sound(tmp_path / "spool", 0.005))])[0]
    assert text(events) == ""
    assert model.calls == []


def test_speech_to_the_last_sample_ends_with_the_audio(tmp_path: Path) -> None:
    model = ToyModel(scripted([T, HI, T + 500]))
    found = segments(run(model, [job(sound(tmp_path / "spool", 7.31))])[0])
    assert [(each.start, each.end, each.text) for each in found] == [(0.0, 7.31, " Hi")]


def test_a_last_timestamp_of_zero_does_not_hear_the_same_window_for_ever(tmp_path: Path) -> None:
    model = ToyModel(scripted([T, T, HI]))
    events = run(model, [job(sound(tmp_path / "spool", 7.0), temperature=(0.0,))])[0]
    assert isinstance(events[-1], Transcribed)


def test_a_character_split_over_two_segments_is_whole_in_the_one_that_ends_it(tmp_path: Path) -> None:
    first, *rest = TOKENIZER.encode("𠮷")
    model = ToyModel(scripted([T, HI, first, T + 50, T + 50, *rest, YOU, T + 100]))
    found = segments(run(model, [job(sound(tmp_path / "spool", 9.0))])[0])
    assert [each.text for each in found] == [" Hi", "𠮷 you"]
    model = ToyModel(scripted([T, HI, first, T + 50, T + 50, *rest, YOU, T + 100]))
    found = segments(run(model, [job(sound(tmp_path / "spool", 9.0), words=True)])[0])
    assert all("".join(word.word for word in each.words or ()) == each.text for each in found)
    assert "".join(each.text for each in found) == " Hi𠮷 you"


def test_half_a_character_at_the_end_is_nothing(tmp_path: Path) -> None:
    first = TOKENIZER.encode("𠮷")[0]
    model = ToyModel(scripted([T, HI, first, T + 50]))
    assert text(run(model, [job(sound(tmp_path / "spool", 9.0))])[0]) == " Hi"


def test_a_doubtful_window_is_dropped_where_no_speech_is_heard(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 7.0)
    asked = []

    def hear(doubt: Any) -> bool:
        asked.append((doubt.start, doubt.end))
        return False

    model = ToyModel(scripted([T, HI, T + 50], no_speech=30.0))
    events = run(model, [job(audio, silence_rule=True, language="en")], hear=hear)[0]
    assert asked == [(0.0, 7.0)]
    assert text(events) == ""
    model = ToyModel(scripted([T, HI, T + 50], no_speech=30.0))
    assert text(run(model, [job(audio, silence_rule=True)], hear=lambda _: True)[0]) == " Hi"


def test_known_speech_answers_a_doubt_without_asking(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 7.0)
    for spans, expected in ((), ""), ((Span(1600, 3200),), " Hi"):
        model = ToyModel(scripted([T, HI, T + 50], no_speech=30.0))
        assert text(run(model, [job(audio, silence_rule=True, speech=spans)])[0]) == expected


def test_a_loop_with_a_short_context_is_decoded_again_with_the_full_one(tmp_path: Path) -> None:
    loop = [T, *[HI] * 60, T + 50]

    def says(encoded: Any, said: list[int]) -> Any:
        return scripted(loop if encoded.context < 1500 else [T, HI, YOU, T + 50])(encoded, said)

    model = ToyModel(says)
    events = run(model, [job(sound(tmp_path / "spool", 7.0), audio_ctx="auto", language="en")])[0]
    assert text(events) == " Hi you"
    assert [call for call in model.calls if call[0] == "encode"] == [("encode", 1), ("encode", 1)]


def test_with_auto_context_no_more_is_said_than_anybody_could_say(tmp_path: Path) -> None:
    script = [T, *PLAIN[:300].tolist()]
    audio = sound(tmp_path / "spool", 1.0)
    for context, tokens in (("auto", 40), (1500, 224)):
        how: dict[str, Any] = {"audio_ctx": context, "temperature": (0.0,), "language": "en"}
        found = segments(run(ToyModel(scripted(script)), [job(audio, **how)])[0])
        assert [len(each.tokens) for each in found] == [tokens]
        assert len(guessed(ToyModel(scripted(script)), guess(audio, **how)).tokens) == tokens


def test_auto_context_is_the_audio_and_three_seconds(tmp_path: Path) -> None:
    seen = []

    def says(encoded: Any, said: list[int]) -> Any:
        seen.append(encoded.context)
        return scripted([T, HI, T + 50])(encoded, said)

    run(ToyModel(says), [job(sound(tmp_path / "spool", 7.01), audio_ctx="auto", language="en")])
    assert set(seen) == {504}


def test_detection_chooses_among_the_languages_asked_for(tmp_path: Path) -> None:
    def says(encoded: Any, said: list[int]) -> Any:
        logits = scripted([T, HI, T + 50])(encoded, said)
        if len(said) > 1:
            return logits
        logits[TOKENIZER.language_token("de")] = 6.0
        logits[TOKENIZER.language_token("fr")] = 5.5
        logits[TOKENIZER.language_token("en")] = 5.0
        return logits

    audio = sound(tmp_path / "spool", 3.0)
    assert run(ToyModel(says), [job(audio)])[0][-1].language == "de"
    last = run(ToyModel(says), [job(audio, languages=("fr", "en"))])[0][-1]
    assert last.language == "fr"
    assert 0.5 < last.language_probability < 1.0


def test_token_logprobs_belong_to_the_text(tmp_path: Path) -> None:
    model = ToyModel(scripted([T, HI, T + 50, T + 50, YOU, T + 100]))
    found = segments(run(model, [job(sound(tmp_path / "spool", 3.0), logprobs=True)])[0])
    assert [[each.token for each in segment.logprobs or ()] for segment in found] == [[" Hi"], [" you"]]
    assert all(-0.1 < each.logprob <= 0 for segment in found for each in segment.logprobs or ())


def test_times_of_cut_audio_are_the_callers(tmp_path: Path) -> None:
    spans = (Span(16000, 32000), Span(80000, 96000))
    model = ToyModel(scripted([T, HI, T + 50, T + 50, YOU, T + 100]))
    found = segments(run(model, [job(sound(tmp_path / "spool", 8.0), spans=spans)])[0])
    assert [(each.start, each.end) for each in found] == [(1.0, 2.0), (5.0, 6.0)]
