"""A draft of what a window says makes it faster and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.jobs import Pcm
from tests.workers.whisper.driver import guess, guessed, job, run, segments, sound
from tests.workers.whisper.test_model import KINDS, TOKENS, Build, assert_near, encode, reference
from tests.workers.whisper.toy import VOCAB, ToyModel, scripted
from workers import blas
from workers.whisper.tokenizer import Tokenizer

TOKENIZER = Tokenizer(VOCAB)
T, EOT = TOKENIZER.timestamp_begin, TOKENIZER.eot
HI, YOU = TOKENIZER.encode(" Hi")[0], TOKENIZER.encode(" you")[0]


def steps(model: ToyModel) -> int:
    return sum(name == "step" for name, _ in model.calls)


def drafts(right: Sequence[int]) -> dict[str, list[int]]:
    half = len(right) // 2
    return {
        "right": list(right),
        "empty": [],
        "wrong": [T + 3, *[HI] * 20],
        "half right": [*right[:half], YOU, *right[half:]],
        "short": list(right[:half]),
        "over-long": [*right, *[YOU, HI] * 300],
        "no tokens of this model": [*right[:half], VOCAB + 7, -1, EOT],
        "ended": [*right, EOT],
    }


def said_first(model: ToyModel, audio: Pcm, **how: Any) -> tuple[int, ...]:
    """What the first window says."""
    return guessed(model, guess(audio, **how)).tokens


DECODINGS: list[dict[str, Any]] = [
    {"temperature": (0.0,)},
    {"temperature": (0.0,), "words": True, "logprobs": True},
    {"temperature": (0.0,), "without_timestamps": True, "prompt": "Ada"},
    {"temperature": (0.0, 0.4), "logprob_threshold": -0.001, "no_speech_threshold": None},
    {"temperature": (0.0,), "beam_size": 3},
    {"temperature": (0.6,), "best_of": 3},
    {"temperature": (0.0,), "audio_ctx": "auto"},
]


@pytest.mark.parametrize("how", DECODINGS, ids=lambda how: "-".join(how))
def test_any_draft_gives_the_same_answers_alone_and_in_a_batch(tmp_path: Path, how: dict[str, Any]) -> None:
    audio = sound(tmp_path / "spool", 40.0, seed=2)
    expected = run(ToyModel(), [job(audio, language="en", **how)])[0]
    right = said_first(ToyModel(), audio, language="en", **how)
    assert len(right) > 2
    jobs = [job(audio, language="en", draft=draft, **how) for draft in drafts(right).values()]
    for events in (*(run(ToyModel(), [each])[0] for each in jobs), *run(ToyModel(), jobs)):
        assert segments(events) == segments(expected)
        assert events[-1].reached == expected[-1].reached


def test_a_right_draft_takes_no_step_and_a_wrong_one_hardly_more_than_none(tmp_path: Path) -> None:
    script = [T, *[HI, YOU] * 10, T + 100]
    audio = sound(tmp_path / "spool", 5.0)
    found = {}
    for name, draft in drafts(script).items():
        model = ToyModel(scripted(script))
        run(model, [job(audio, draft=draft, language="en", temperature=(0.0,))])
        assert sum(name == "prefill" for name, _ in model.calls) == 1
        found[name] = steps(model)
    assert found == {
        "right": 0,
        "empty": 21,
        "wrong": 22,
        "half right": 11,
        "short": 11,
        "over-long": 0,
        "no tokens of this model": 11,
        "ended": 0,
    }


def test_a_draft_is_for_the_first_window_alone(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 40.0)
    model = ToyModel(scripted([T, HI, T + 1000], [T, HI, T + 200]))
    run(model, [job(audio, draft=[T, HI, T + 1000], language="en", temperature=(0.0,))])
    assert steps(model) == 2


def test_a_row_that_follows_a_draft_stops_at_half_the_context(tmp_path: Path) -> None:
    loop = [T, *[HI] * 400]
    audio = sound(tmp_path / "spool", 5.0)
    how: dict[str, Any] = {"language": "en", "temperature": (0.0,), "compression_ratio_threshold": None}
    tokens = [
        segments(run(ToyModel(scripted(loop)), [job(audio, draft=draft, **how)])[0])[0].tokens
        for draft in ([], loop, [T, HI])
    ]
    assert [len(each) for each in tokens] == [224, 224, 224]


def test_timestamps_that_follow_from_what_was_said_take_no_step(tmp_path: Path) -> None:
    """The window's beginning is read with the prompt, a segment's with the end of the one before."""
    model = ToyModel(scripted([T, HI, T + 50, T + 50, YOU, T + 99, EOT]))
    found = segments(run(model, [job(sound(tmp_path / "spool", 5.0), language="en")])[0])
    assert [each.tokens for each in found] == [(T, HI, T + 50), (T + 50, YOU, T + 99)]
    # Fed: HI | T + 50 twice | YOU | T + 99 twice, of which the second is not said.
    assert steps(model) == 4


@pytest.mark.parametrize("said", [[T + 7, HI, T + 50, EOT], [T, HI, T + 50, T + 60, YOU, T + 99, EOT]])
def test_where_other_timestamps_are_said_they_count(tmp_path: Path, said: list[int]) -> None:
    audio = sound(tmp_path / "spool", 5.0)
    tokens = [
        token
        for each in segments(run(ToyModel(scripted(said)), [job(audio, language="en")])[0])
        for token in each.tokens
    ]
    assert tokens == [token for token in said if token != EOT]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_may_take_more_than_one_token_of_a_row(build: Build, kind: str, make_module: Any, make_mel: Any) -> None:
    """Beside another row that takes one."""
    module = make_module("base")
    mel = make_mel(module)
    expected, _ = reference(module, mel, TOKENS)
    model = build(kind, module)
    window = encode(model, mel)
    (ahead, _), (beside, _) = model.prefill_many([(window, TOKENS[:3], [-1]), (window, TOKENS[:4], [-1])])
    found = model.step([beside, ahead], [np.array(TOKENS[4:5]), np.array([TOKENS[3:6]])])
    assert_near(found[0], expected[4:5])
    assert_near(found[1], expected[3:6])
    assert (beside.position, ahead.position) == (5, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_rows_go_on_as_if_the_rest_had_never_been_read(
    build: Build, kind: str, make_module: Any, make_mel: Any
) -> None:
    module = make_module("base")
    mel = make_mel(module)
    expected, _ = reference(module, mel, TOKENS)
    model = build(kind, module)
    wrong = np.random.default_rng(0).integers(0, 800, 90).tolist()
    rows, _ = model.prefill(encode(model, mel), [*TOKENS[:3], *wrong], [-1])
    rows.truncate(3)
    assert rows.position == 3
    for position in (3, 4, 5):
        logits = model.step([rows], [np.array(TOKENS[position : position + 1])])[0]
        assert_near(logits, expected[position : position + 1])


@pytest.mark.model
@pytest.mark.timeout(600)
def test_drafts_change_no_text_no_word_and_no_probability_of_real_speech(
    fast_blas: blas.Blas, load_model: Any, tmp_path: Path
) -> None:
    from tests.speech import timeline

    model = load_model("base")
    samples = timeline(
        "The quick brown fox jumps over the lazy dog.", 0.8, "She sells sea shells by the sea shore.", 0.5
    )
    samples.tofile(tmp_path / "spool")
    audio = Pcm(str(tmp_path / "spool"), 0, len(samples))
    how: dict[str, Any] = {"words": True, "logprobs": True, "audio_ctx": "auto"}
    expected = segments(run(model, [job(audio, **how)])[0])
    right = guessed(model, guess(audio, **how)).tokens
    assert [token for each in expected for token in each.tokens] == list(right)
    jobs = [job(audio, draft=draft, **how) for draft in drafts(right).values()]
    for events in (*(run(model, [each])[0] for each in jobs), *run(model, jobs)):
        found = segments(events)
        assert [(each.text, each.tokens) for each in found] == [(each.text, each.tokens) for each in expected]
        for mine, theirs in zip(found, expected, strict=True):
            assert [(w.word, w.start, w.end) for w in mine.words] == [(w.word, w.start, w.end) for w in theirs.words]
            logprobs = [[token.logprob for token in each.logprobs] for each in (mine, theirs)]
            assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-3)
