"""Guesses: what is being said in audio that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.events import Guessed, Transcribed
from protocol.jobs import Guess, Pcm
from tests.workers.whisper.driver import READY, guess, guessed, job, run, segments, sound, text
from tests.workers.whisper.toy import VOCAB, ToyModel, scripted
from workers import blas
from workers.whisper.engine import WhisperEngine
from workers.whisper.tokenizer import Tokenizer

TOKENIZER = Tokenizer(VOCAB)
T, EOT = TOKENIZER.timestamp_begin, TOKENIZER.eot
HI, YOU, COMMA = (TOKENIZER.encode(part)[0] for part in (" Hi", " you", ","))
SCRIPT = [T, HI, COMMA, YOU, T + 100]


def test_words_carry_their_punctuation_and_their_tokens(tmp_path: Path) -> None:
    answer = guessed(ToyModel(scripted(SCRIPT)), guess(sound(tmp_path / "spool", 5.0)))
    assert [(word.text, word.tokens) for word in answer.words] == [(" Hi,", (HI, COMMA)), (" you", (YOU,))]
    assert answer.tokens == tuple(SCRIPT)
    assert answer.language == "en"


def test_a_word_is_as_probable_as_its_least_probable_token(tmp_path: Path) -> None:
    def says(encoded: Any, said: list[int]) -> Any:
        logits = scripted(SCRIPT)(encoded, said)
        if said[-1] == HI:
            logits[TOKENIZER.encode("!")[0]] = 9.9
        return logits

    answer = guessed(ToyModel(says), guess(sound(tmp_path / "spool", 5.0)))
    assert [word.text for word in answer.words] == [" Hi,", " you"]
    assert answer.words[0].probability == pytest.approx(0.525, abs=0.001)
    assert answer.words[1].probability == pytest.approx(1.0)


def test_a_guess_listens_for_a_word_s_place_only_when_asked(tmp_path: Path) -> None:
    class Unaligned(ToyModel):
        def align(self, encoded: Any, tokens: Any) -> Any:
            raise AssertionError("nobody asked")

    answer = guessed(Unaligned(scripted(SCRIPT)), guess(sound(tmp_path / "spool", 5.0)))
    assert [word.heard for word in answer.words] == [None, None]


def test_a_word_has_listened_as_far_as_the_frame_its_last_token_attends_to_most(tmp_path: Path) -> None:
    class Attentive(ToyModel):
        def align(self, encoded: Any, tokens: Any) -> Any:
            scores, logits = super().align(encoded, tokens)
            scores[:] = 0
            opening = len(tokens) - 4
            for row, frame in ((opening - 1, 20), (opening, 190), (opening + 1, 75)):
                scores[:, row, frame - 4 : frame + 5] = [[1, 2, 3, 4, 9, 4, 3, 2, 1]]
            return scores, logits

    answer = guessed(Attentive(scripted(SCRIPT)), guess(sound(tmp_path / "spool", 5.0), listening=True))
    assert [word.heard for word in answer.words] == pytest.approx([0.4, 1.5], abs=0.06)


def test_a_guess_says_what_a_transcript_of_the_same_audio_says(tmp_path: Path) -> None:
    for seed in range(4):
        audio = sound(tmp_path / "spool", 9.0, seed=seed)
        how: dict[str, Any] = {"language": "de", "prompt": "Ada", "vocabulary": ("Gauß",), "temperature": (0.0,)}
        transcript = run(ToyModel(), [job(audio, audio_ctx="auto", **how)])[0]
        answer = guessed(ToyModel(), guess(audio, audio_ctx="auto", **how))
        assert TOKENIZER.decode(answer.tokens).startswith(text(transcript))


def test_an_unlikely_language_is_not_looked_at_twice(tmp_path: Path) -> None:
    model = ToyModel()
    audio = sound(tmp_path / "spool", 5.0)
    run(model, [guess(audio), job(audio, temperature=(0.0,))])
    assert sum(number for name, number in model.calls if name == "encode") == 3


def test_it_begins_with_what_was_said_however_unlikely(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 5.0)
    for draft in ((), (T + 7, YOU, YOU, HI), (T, HI)):
        model = ToyModel(scripted(SCRIPT))
        answer = guessed(model, guess(audio, said=(YOU, YOU), draft=draft, language="en"))
        spoken = [token for token in answer.tokens if token < EOT]
        assert spoken[:2] == [YOU, YOU]
        assert answer.tokens[0] == (T + 7 if draft[:1] == (T + 7,) else T)
        assert np.isfinite(answer.avg_logprob)


def test_what_was_said_keeps_the_timestamps_that_the_draft_has_within_it(tmp_path: Path) -> None:
    draft = (T, HI, T + 50, T + 50, YOU, T + 90)
    answer = guessed(ToyModel(scripted(SCRIPT)), guess(sound(tmp_path / "spool", 5.0), said=(HI, YOU), draft=draft))
    assert answer.tokens[:5] == draft[:5]


def test_without_timestamps_it_begins_with_text(tmp_path: Path) -> None:
    model = ToyModel(scripted([HI, COMMA, YOU]))
    audio = sound(tmp_path / "spool", 5.0)
    assert guessed(model, guess(audio, said=(YOU,), without_timestamps=True, language="en")).tokens[0] == YOU


def test_one_row_once_whatever_the_decoding_asks_of_a_transcript(tmp_path: Path) -> None:
    model = ToyModel(scripted(SCRIPT))
    how: dict[str, Any] = {"beam_size": 5, "best_of": 5, "temperature": (0.4, 0.8), "logprob_threshold": -0.0}
    guessed(model, guess(sound(tmp_path / "spool", 5.0), language="en", **how))
    assert {rows for name, rows in model.calls if name == "step"} == {1}
    assert [name for name, _ in model.calls].count("prefill") == 1


def test_no_audio_and_no_words_are_an_empty_guess(tmp_path: Path) -> None:
    empty = guessed(ToyModel(), guess(sound(tmp_path / "spool", 0.005), language="en"))
    assert empty == Guessed((), (), 0.0, 0.0, 0.0, "en")
    silent = guessed(ToyModel(scripted([T])), guess(sound(tmp_path / "spool", 3.0), language="en"))
    assert silent.words == ()


def test_a_guess_that_loops_stops_as_soon_as_that_shows(tmp_path: Path) -> None:
    model = ToyModel(scripted([T, *[HI] * 300]))
    answer = guessed(model, guess(sound(tmp_path / "spool", 9.0), language="en"))
    assert 2.4 < answer.compression_ratio < 2.7
    assert len(answer.tokens) < 20


def test_of_a_long_recording_the_first_window_counts(tmp_path: Path) -> None:
    model = ToyModel(scripted(SCRIPT))
    guessed(model, guess(sound(tmp_path / "spool", 70.0), language="en"))
    assert [call for call in model.calls if call[0] == "encode"] == [("encode", 1)]


def finishing_order(folder: Path, *jobs: Any) -> list[str]:
    """Eight files that are under way, then `jobs`, all at once: what they are, as they end."""
    engine = WhisperEngine(ToyModel(), READY)
    finished: list[str] = []

    def emit(name: str) -> Any:
        return lambda event: finished.append(name) if isinstance(event, Guessed | Transcribed) else None

    for i in range(8):
        audio = sound(folder / f"file{i}", 90.0, seed=i)
        engine.admit(job(audio, language="en", temperature=(0.0,)), emit("file"))
    for _ in range(3):
        engine.step()
    for each in jobs:
        engine.admit(each, emit("guess" if isinstance(each, Guess) else "urgent"))
    while engine.busy:
        engine.step()
    return finished


def test_a_guess_goes_before_files_and_after_urgent_work(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 5.0)
    how: dict[str, Any] = {"language": "en", "temperature": (0.0,)}
    order = finishing_order(tmp_path, guess(audio, **how), job(audio, urgent=True, **how))
    assert order[:3] == ["urgent", "guess", "file"]


def test_a_file_goes_on_while_guesses_never_end(tmp_path: Path) -> None:
    engine = WhisperEngine(ToyModel(), READY)
    audio = sound(tmp_path / "guess", 5.0)
    ended: list[Any] = []
    engine.admit(job(sound(tmp_path / "file", 70.0), language="en", temperature=(0.0,)), ended.append)
    steps = 0
    while not any(isinstance(event, Transcribed) for event in ended):
        while engine.stats().jobs < 5:
            engine.admit(guess(audio, language="en"), lambda event: None)
        engine.step()
        steps += 1
        assert steps < 500


def test_a_cancelled_guess_frees_its_row_and_window_in_that_step(tmp_path: Path) -> None:
    engine = WhisperEngine(ToyModel(), READY)
    handle = engine.admit(guess(sound(tmp_path / "spool", 9.0, seed=1), language="en"), lambda event: None)
    while not engine.stats().rows:
        engine.step()
    assert engine.stats().windows == 1
    engine.cancel(handle)
    assert (engine.stats().rows, engine.stats().windows, engine.stats().jobs, engine.busy) == (0, 0, 0, False)


@pytest.mark.model
@pytest.mark.timeout(600)
def test_real_words_are_heard_about_where_they_are_spoken(
    fast_blas: blas.Blas, load_model: Any, tmp_path: Path
) -> None:
    from tests.speech import timeline

    model = load_model("base")
    samples = timeline("The quick brown fox jumps over the lazy dog.", 0.5)
    samples.tofile(tmp_path / "spool")
    audio = Pcm(str(tmp_path / "spool"), 0, len(samples))
    answer = guessed(model, guess(audio, audio_ctx="auto", listening=True))
    assert answer.words[0].text == " The"
    timed = segments(run(model, [job(audio, words=True, audio_ctx="auto")])[0])[0].words
    assert [word.word for word in timed] == [word.text for word in answer.words]
    off = [abs(mine.heard - theirs.end) for mine, theirs in zip(answer.words, timed, strict=True)]
    assert np.median(off) < 0.3
