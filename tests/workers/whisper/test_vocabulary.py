"""Terms and prompt in the prompt budget."""

from __future__ import annotations

from pathlib import Path

from tests.workers.whisper.driver import job, run, sound
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
    assert [len(prompt) for prompt in prompts] == [1 + 223 + 3] * 2
    assert prompts[1][-4] == T + 1500
    assert (done.vocabulary.given, done.vocabulary.fitted, done.vocabulary.tokens) == (2, 2, len(terms))
