"""The beginning of a job's audio that is written already: heard again, told to the decoder, not said again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from protocol.jobs import Guess, Pcm, Transcribe
from protocol.past import Context, Past
from tests.workers.whisper.driver import guess, guessed, job, run, segments, sound
from tests.workers.whisper.test_draft import DECODINGS, steps
from tests.workers.whisper.toy import VOCAB, ToyModel, scripted
from workers import blas
from workers.whisper.tokenizer import Tokenizer

TOKENIZER = Tokenizer(VOCAB)
T = TOKENIZER.timestamp_begin
HI, YOU, WE = (TOKENIZER.encode(part)[0] for part in (" Hi", " you", " we"))
CONTEXT = Context(3 * 16_000, (Past(0.0, 2.5, (T, HI, YOU, T + 125)),))
KNOWN = [T, HI, YOU, T + 125, T + 150]
"""What CONTEXT is to the decoder: its segment, and the timestamp with which the next begins."""


def within(asked: Transcribe | Guess, context: Context = CONTEXT) -> Any:
    return replace(asked, context=context)


def transcribed(script: list[int], audio: Pcm, **how: Any) -> list[Any]:
    return run(ToyModel(scripted(script)), [within(job(audio, language="en", **how))])[0]


def test_only_what_follows_the_context_is_answered(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 6.0)
    (only,) = segments(transcribed([*KNOWN, WE, T + 250], audio))
    assert (only.text, only.start, only.end) == (" we", 3.0, 5.0)
    assert only.tokens == (T + 150, WE, T + 250)


def test_two_segments_after_a_context_have_their_own_times(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 8.0)
    found = segments(transcribed([*KNOWN, WE, T + 250, T + 260, HI, T + 350], audio))
    assert [(each.text, each.start, each.end) for each in found] == [(" we", 3.0, 5.0), (" Hi", 5.2, 7.0)]


@pytest.mark.parametrize("script", [[*KNOWN, WE], [*KNOWN, WE, WE]])
def test_text_without_an_end_lasts_to_the_end_of_the_audio(tmp_path: Path, script: list[int]) -> None:
    (only,) = segments(transcribed(script, sound(tmp_path / "spool", 6.0)))
    assert (only.start, only.end) == (3.0, 6.0)


def test_nothing_new_is_no_segment(tmp_path: Path) -> None:
    assert segments(transcribed(KNOWN, sound(tmp_path / "spool", 6.0))) == []


def test_without_timestamps_the_text_alone_is_told(tmp_path: Path) -> None:
    # The first place of a script is for no_timestamps here.
    script = [0, HI, YOU, WE]
    (only,) = segments(transcribed(script, sound(tmp_path / "spool", 6.0), without_timestamps=True))
    assert (only.text, only.tokens, only.start, only.end) == (" we", (WE,), 3.0, 6.0)


def test_the_text_before_the_audio_is_still_the_prompt(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def says(encoded: Any, said: list[int]) -> Any:
        seen.append(said)
        return scripted([*KNOWN, WE, T + 250])(encoded, said)

    run(ToyModel(says), [within(job(sound(tmp_path / "spool", 6.0), language="en", prompt="Ada"))])
    first = max(seen, key=len)
    at = first.index(TOKENIZER.sot)
    assert TOKENIZER.decode(first[1:at]) == " Ada"
    assert first[at + 3 :][: len(KNOWN)] == KNOWN


def test_words_of_the_context_are_aligned_and_left_out(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 6.0)
    (only,) = segments(transcribed([*KNOWN, WE, T + 250], audio, words=True))
    assert [word.word for word in only.words or ()] == [" we"]
    alone = segments(run(ToyModel(scripted([T, WE, T + 250])), [job(audio, language="en", words=True)])[0])
    assert only.words is not None and alone[0].words is not None
    assert only.words[0].end > alone[0].words[0].end


@pytest.mark.parametrize("how", DECODINGS, ids=lambda how: "-".join(how))
def test_a_context_is_the_same_alone_and_in_a_batch_and_with_a_draft(tmp_path: Path, how: dict[str, Any]) -> None:
    audio = sound(tmp_path / "spool", 9.0, seed=2)
    asked = within(job(audio, language="en", **how))
    expected = run(ToyModel(), [asked])[0]
    assert segments(expected) and all(each.start >= 3.0 for each in segments(expected))
    draft = guessed(ToyModel(), within(guess(audio, language="en", **how))).tokens
    jobs = [asked, within(job(audio, language="en", draft=draft, **how)), job(audio, language="en", **how)]
    for events in run(ToyModel(), jobs)[:2]:
        assert segments(events) == segments(expected)


def test_a_guess_within_a_context_says_what_follows_it_and_is_a_draft_of_it(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 6.0)
    script = [*KNOWN, WE, HI, T + 250]
    answer = guessed(ToyModel(scripted(script)), within(guess(audio, language="en")))
    assert [word.text for word in answer.words] == [" we", " Hi"]
    said = guessed(ToyModel(scripted(script)), within(guess(audio, language="en", said=(YOU,))))
    assert said.words[0].text == " you"
    model = ToyModel(scripted(script))
    run(model, [within(job(audio, language="en", temperature=(0.0,), draft=answer.tokens))])
    assert steps(model) == 0


@pytest.mark.model
@pytest.mark.timeout(600)
def test_real_speech_goes_on_after_what_was_said(fast_blas: blas.Blas, load_model: Any, tmp_path: Path) -> None:
    from tests.speech import timeline

    model = load_model("base")
    first = timeline("The quick brown fox jumps over the lazy dog.", 0.8)
    samples = np.concatenate([first, timeline("She sells sea shells by the sea shore.", 0.5)])
    samples.tofile(tmp_path / "spool")
    how: dict[str, Any] = {"audio_ctx": "auto", "words": True}
    before = segments(run(model, [job(Pcm(str(tmp_path / "spool"), 0, len(first)), **how)])[0])
    context = Context(len(first), tuple(Past(each.start, each.end, each.tokens) for each in before))
    found = segments(run(model, [within(job(Pcm(str(tmp_path / "spool"), 0, len(samples)), **how), context)])[0])
    text = "".join(each.text for each in found)
    assert "shells" in text and "fox" not in text
    spoken = [word for each in found for word in each.words or ()]
    assert spoken[0].start >= len(first) / 16_000 - 0.05
    assert spoken[-1].end <= len(samples) / 16_000
