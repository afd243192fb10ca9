"""What stays of an utterance's partial text."""

from __future__ import annotations

from protocol.events import Guessed, GuessedWord
from service.dictation.partials import Partials


def guess(*words: str) -> Guessed:
    """Each word its own token, by its letters."""
    found = tuple(GuessedWord(word, (sum(map(ord, word)),), 0.0, 1.0) for word in words)
    return Guessed(found, tuple(word.tokens[0] for word in found), -0.1, 0.0, 1.0, "en")


def test_the_first_guess_is_shown_and_nothing_of_it_stays() -> None:
    assert Partials().update(guess(" And", " so"), 1.0) == (" And so", "")


def test_what_two_guesses_in_a_row_begin_with_stays_but_for_its_last_word() -> None:
    partials = Partials(held_back=1)
    partials.update(guess(" And", " so", " my", " fell"), 1.0)
    assert partials.update(guess(" And", " so", " my", " fellow"), 2.0) == (" And so my fellow", " And so")


def test_a_comma_or_a_capital_is_a_difference() -> None:
    partials = Partials(held_back=0)
    partials.update(guess(" And", " so"), 1.0)
    assert partials.update(guess(" And", " so,"), 2.0)[1] == " And"
    assert partials.update(guess(" and", " so,"), 3.0)[1] == " And"


def test_stable_text_never_shrinks_and_the_text_begins_with_it() -> None:
    partials = Partials(held_back=0)
    partials.update(guess(" And", " so"), 1.0)
    partials.update(guess(" And", " so"), 2.0)
    assert partials.update(guess(" Ends"), 3.0) == (" And so", " And so")
    assert partials.update(guess(" Ends"), 4.0) == (" And so", " And so")


def test_the_next_guess_begins_with_the_stable_tokens_and_drafts_the_last_ones() -> None:
    partials = Partials(held_back=1)
    partials.update(guess(" And", " so", " my"), 1.0)
    partials.update(guess(" And", " so", " your"), 2.0)
    assert partials.said == guess(" And").tokens
    assert partials.draft == guess(" And", " so", " your").tokens
