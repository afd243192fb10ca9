"""Terms and prompt in the prompt budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.whisper.driver import job, run, sound, text
from tests.workers.whisper.toy import ToyModel, scripted
from workers.whisper.tokenizer import Tokenizer
from workers.whisper.vocabulary import fit

TOKENIZER = Tokenizer(51865)
T = TOKENIZER.timestamp_begin


def decoded(tokens: tuple[int, ...]) -> str:
    return TOKENIZER.decode(tokens)


def test_terms_stand_in_order_without_duplicates() -> None:
    fitted = fit(TOKENIZER.encode, ["Ada", "Babbage ", "Ada", "", "Turing"], None, 223)
    assert decoded(fitted.terms) == " Ada, Babbage, Turing."
    assert (fitted.given, fitted.fitted, fitted.budget) == (5, 3, 223)


def test_a_long_prompt_leaves_eighty_tokens_for_terms() -> None:
    fitted = fit(TOKENIZER.encode, [f"term{i}" for i in range(200)], "word " * 400, 223)
    assert fitted.budget == 80
    assert 75 < len(fitted.terms) <= 80
    assert decoded(fitted.terms).startswith(" term0, term1, term2")


def test_what_was_said_before_takes_no_room_from_the_terms_and_stands_behind_the_prompt() -> None:
    terms = [f"term{i}" for i in range(200)]
    alone = fit(TOKENIZER.encode, terms, "A list.", 223)
    fitted = fit(TOKENIZER.encode, terms, "A list.", 223, " And what was said before it.")
    assert (fitted.terms, fitted.fitted, fitted.budget) == (alone.terms, alone.fitted, 223 - len(alone.prompt))
    assert decoded(fitted.prompt) == " A list. And what was said before it."
    assert decoded(fit(TOKENIZER.encode, (), None, 223, " said before").prompt) == " said before"


def test_a_term_fits_whole_or_not_at_all() -> None:
    fitted = fit(TOKENIZER.encode, ["Ada", "x" * 16384, "long " * 300, "Turing"], None, 223)
    assert decoded(fitted.terms) == " Ada, Turing."


def test_a_term_that_looks_like_a_special_token_is_text() -> None:
    assert max(fit(TOKENIZER.encode, ["<|endoftext|>"], "<|en|>", 223).terms) < TOKENIZER.eot


def test_terms_stand_in_every_windows_prompt_and_the_rest_gets_what_remains(tmp_path: Path) -> None:
    prompts = []
    say = scripted([T, *TOKENIZER.encode(" one two three"), T + 1500])

    class Spy(ToyModel):
        def prefill(self, encoded, tokens, at):  # type: ignore[no-untyped-def]
            prompts.append(list(tokens))
            return super().prefill(encoded, tokens, at)

    audio = sound(tmp_path / "spool", 40.0)
    done = run(Spy(say), [job(audio, language="en", vocabulary=("Ada", "Turing"), prompt="word " * 300)])[0][-1]
    terms = tuple(TOKENIZER.encode(" Ada, Turing."))
    assert [tuple(prompt[1 : 1 + len(terms)]) for prompt in prompts] == [terms, terms]
    assert [prompt[0] for prompt in prompts] == [TOKENIZER.sot_prev] * 2
    assert [prompt[-1] for prompt in prompts] == [T] * 2, "the first timestamp is read ahead, with the prompt"
    assert [len(prompt) for prompt in prompts] == [1 + 223 + 3 + 1] * 2
    assert prompts[1][-5] == T + 1500
    assert (done.vocabulary.given, done.vocabulary.fitted, done.vocabulary.tokens) == (2, 2, len(terms))


@pytest.mark.parametrize(
    ("said", "echoed"),
    [
        ("The patient received apomorphine and morphine.", True),
        (" The patient received.", True),
        ("apomorphine, APOMORPHINE! Apomorphine", True),
        ("Then Ada spoke.", True),
        ("Then he spoke of the patient.", False),
        ("...", False),
        ("", False),
    ],
)
def test_a_text_that_says_a_term_or_only_the_terms_words_may_be_their_echo(said: str, echoed: bool) -> None:
    terms = ["The patient received apomorphine and morphine", "Ada", "!"]
    assert fit(TOKENIZER.encode, terms, None, 223).echoed(said) is echoed


def test_without_terms_nothing_is_an_echo() -> None:
    assert not fit(TOKENIZER.encode, [], "Ada", 223).echoed("Ada")


@pytest.mark.parametrize(
    ("vocabulary", "speech", "expected", "questions"),
    [
        (("Turing",), False, "", 1),
        (("Turing",), True, " Ada Turing", 1),
        (("Babbage",), False, " Ada Turing", 0),
        ((), False, " Ada Turing", 0),
    ],
)
def test_a_term_is_said_only_where_somebody_speaks(
    tmp_path: Path, vocabulary: tuple[str, ...], speech: bool, expected: str, questions: int
) -> None:
    asked = []
    say = scripted([T, *TOKENIZER.encode(" Ada Turing"), T + 250])
    audio = sound(tmp_path / "spool", 5.0)
    (events,) = run(
        ToyModel(say),
        [job(audio, language="en", vocabulary=vocabulary, silence_rule=True)],
        hear=lambda doubt: asked.append(doubt) or speech,  # type: ignore[func-returns-value]
    )
    assert (text(events), len(asked)) == (expected, questions)


def test_a_term_in_a_silence_that_is_known_is_not_said(tmp_path: Path) -> None:
    say = scripted([T, *TOKENIZER.encode(" Ada"), T + 250])
    asked = job(sound(tmp_path / "spool", 5.0), language="en", vocabulary=("Ada",), silence_rule=True, speech=())
    assert text(run(ToyModel(say), [asked])[0]) == ""
