"""What stays of an utterance's partial text."""

from __future__ import annotations

import msgspec

from protocol.events import Guessed, GuessedWord
from service.dictation.partials import Partials


def guess(*words: str, probability: float = 0.75) -> Guessed:
    """Each word its own token, by its letters."""
    found = tuple(GuessedWord(word, (sum(map(ord, word)),), probability=probability) for word in words)
    return Guessed(found, tuple(word.tokens[0] for word in found), -0.1, 0.0, 1.0, "en")


def test_the_first_guess_is_shown_and_nothing_of_it_stays() -> None:
    assert Partials(patience_s=4.0).update(guess(" And", " so"), 1.0) == (" And so", "")


def test_a_word_stays_once_it_has_stood_the_longer_the_less_probable_it_is() -> None:
    sure, unsure = Partials(patience_s=4.0), Partials(patience_s=4.0)
    for seconds, stays, stays_unsure in ((1.0, "", ""), (1.5, "", ""), (2.0, " And", ""), (3.0, " And", " And")):
        assert sure.update(guess(" And", probability=0.75), seconds)[1] == stays
        assert unsure.update(guess(" And", probability=0.5), seconds)[1] == stays_unsure


def test_a_certain_word_waits_for_the_next_guess_all_the_same() -> None:
    partials = Partials(patience_s=4.0)
    assert partials.update(guess(" And", probability=1.0), 9.0)[1] == ""
    assert partials.update(guess(" And", probability=1.0), 9.3)[1] == " And"


def test_a_word_waits_for_those_before_it() -> None:
    partials = Partials(patience_s=4.0)
    both = guess(" And", " so")
    doubtful = msgspec.structs.replace(both.words[0], probability=0.25)
    both = msgspec.structs.replace(both, words=(doubtful, both.words[1]))
    partials.update(both, 1.0)
    assert partials.update(both, 3.5)[1] == ""
    assert partials.update(both, 4.0)[1] == " And so"


def test_a_change_begins_the_wait_again_for_all_that_follows() -> None:
    partials = Partials(patience_s=4.0)
    partials.update(guess(" And", " so", " my"), 1.0)
    partials.update(guess(" And", " no", " my"), 1.5)
    assert partials.update(guess(" And", " no", " my"), 2.0)[1] == " And"
    assert partials.update(guess(" And", " no", " my"), 2.5)[1] == " And no my"


def test_a_comma_or_a_capital_is_a_change() -> None:
    partials = Partials(patience_s=4.0)
    partials.update(guess(" And", " so"), 1.0)
    assert partials.update(guess(" And", " so,"), 2.0)[1] == " And"
    assert partials.update(guess(" and", " so,"), 9.0)[1] == " And"


def test_stable_text_never_shrinks_and_the_text_begins_with_it() -> None:
    partials = Partials(patience_s=4.0)
    partials.update(guess(" And", " so"), 1.0)
    partials.update(guess(" And", " so"), 2.0)
    assert partials.update(guess(" Ends"), 3.0) == (" And so", " And so")
    assert partials.update(guess(" Ends"), 9.0) == (" And so", " And so")


def test_a_loop_changes_nothing() -> None:
    partials = Partials(patience_s=4.0)
    partials.update(guess(" And", " so"), 1.0)
    loop = msgspec.structs.replace(guess(*[" no"] * 30), compression_ratio=5.0)
    assert partials.update(loop, 1.5) == (" And so", "")
    assert partials.draft == guess(" And", " so").tokens
    assert partials.update(guess(" And", " so"), 2.0) == (" And so", " And so")


def test_the_next_guess_begins_with_the_stable_tokens_and_drafts_the_last_ones() -> None:
    partials = Partials(patience_s=4.0)
    partials.update(guess(" And", " so", " my"), 1.0)
    partials.update(guess(" And", " so", " your"), 2.0)
    assert partials.said == guess(" And", " so").tokens
    assert partials.draft == guess(" And", " so", " your").tokens
