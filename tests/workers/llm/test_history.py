"""Ids that conversations really had, found by their text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from workers.llm.history import History

WORDS = ["a", "b", "ab", "ba", "c"]
"""A vocabulary in which a text has several spellings; the tokenizer takes the longest first."""


def decode(ids: Sequence[int]) -> str:
    return "".join(WORDS[each] for each in ids)


def encode(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        word = next(each for each in ("ab", "ba", "a", "b", "c") if text.startswith(each))
        ids.append(WORDS.index(word))
        text = text[len(word) :]
    return ids


def ask(history: History, text: str) -> tuple[int, ...]:
    return history.ids_of(text, encode(text), encode, decode)


def test_a_prompt_that_goes_on_from_a_conversation_keeps_its_ids() -> None:
    history = History()
    history.remember("abc", [0, 1, 4])
    assert ask(history, "abcab") == (0, 1, 4, 2)


def test_the_same_text_again_is_no_continuation() -> None:
    history = History()
    history.remember("abc", [0, 1, 4])
    assert ask(history, "abc") == (2, 4)


def test_a_prompt_that_differs_has_the_tokenizers_ids() -> None:
    history = History()
    history.remember("abc", [0, 1, 4])
    assert ask(history, "bcab") == (1, 4, 2)


def test_the_longest_conversation_wins() -> None:
    history = History()
    history.remember("abcab", [0, 1, 4, 0, 1])
    history.remember("ab", [0, 1])
    assert ask(history, "abcabc") == (0, 1, 4, 0, 1, 4)


def test_ids_that_the_tokenizer_agrees_with_leave_the_tokenizers_own() -> None:
    """Its way of going on may join what the end of the conversation and the rest would split."""
    history = History()
    history.remember("ca", [4, 0])
    assert history.ids_of("cab", [4, 0, 1], encode, decode) == (4, 0, 1)
    assert ask(history, "cab") == (4, 0, 1)


def test_ids_that_would_say_something_else_are_not_used() -> None:
    history = History()
    history.remember("abc", [0, 1, 4])
    assert history.ids_of("abcab", [2, 4, 2], encode, lambda ids: "?") == (2, 4, 2)


def test_a_repeat_refreshes_and_changes_nothing() -> None:
    history = History(entries=2)
    history.remember("abc", [0, 1, 4])
    history.remember("ba", [1, 0])
    history.remember("abc", [2, 4])
    history.remember("c", [4])
    assert ask(history, "abcc") == (0, 1, 4, 4)
    assert ask(history, "bac") == (3, 4)
    assert len(history) == 2


def test_a_use_refreshes_too() -> None:
    history = History(entries=2)
    history.remember("abc", [0, 1, 4])
    history.remember("ba", [1, 0])
    ask(history, "abcc")
    history.remember("c", [4])
    assert ask(history, "abcc") == (0, 1, 4, 4)


def test_sixteen_conversations_are_remembered() -> None:
    history = History()
    for length in range(1, 18):
        history.remember("c" * length, [4] * length)
    assert len(history) == 16


def test_texts_are_bounded_in_bytes() -> None:
    history = History(text_bytes=10)
    history.remember("é" * 3, [1])
    history.remember("abcd", [2])
    assert (len(history), history.text_bytes) == (2, 10)
    history.remember("x", [3])
    assert (len(history), history.text_bytes) == (2, 5)


def test_a_text_over_the_limit_pushes_nothing_out() -> None:
    history = History(text_bytes=10)
    history.remember("abcd", [2])
    history.remember("x" * 11, [3])
    assert (len(history), history.text_bytes) == (1, 4)


def test_neither_empty_text_nor_half_a_character_is_remembered() -> None:
    history = History()
    history.remember("", [])
    history.remember("half \ufffd", [1, 2])
    assert len(history) == 0


spellings = st.lists(st.integers(0, 4), max_size=8)


@given(st.lists(spellings, max_size=5), spellings)
def test_whatever_is_remembered_the_ids_say_the_rendering(past: list[list[int]], now: list[int]) -> None:
    history = History(entries=3)
    for ids in past:
        history.remember(decode(ids), ids)
    assert decode(ask(history, decode(now))) == decode(now)


@given(spellings, st.text("abc", min_size=1, max_size=6))
def test_every_id_of_the_last_turn_is_kept_or_was_the_tokenizers_anyway(ids: list[int], more: str) -> None:
    history = History()
    history.remember(decode(ids), ids)
    found = ask(history, decode(ids) + more)
    assert found[: len(ids)] == tuple(ids) or not ids


def test_a_conversation_that_is_told_in_other_words_keeps_its_ids() -> None:
    history = History()
    history.remember("abc", [0, 1, 4], told="aab")
    assert ask(history, "aabba") == (0, 1, 4, 3)
    assert ask(history, "abcba") == (2, 4, 3)
    assert history.text_bytes == 3
