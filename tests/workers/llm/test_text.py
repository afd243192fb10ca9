"""Tokens as a client sees them: whole characters, no stop string, no marker; reasoning and log-probabilities apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.events import Candidate, Said
from tests.workers.llm import toy_tokenizers
from workers.llm.text import Piece, Voice
from workers.llm.trace import Route

WORDS = ("hello", " world", "STOP", "é", "日本", "\n\n", "😀")
HELLO, WORLD, STOP, E_ACUTE, NIHON, NEWLINES, SMILE = range(256, 256 + len(WORDS))


@pytest.fixture(scope="module")
def tokenizer(fast_blas: Any) -> Any:
    return toy_tokenizers.byte_level(*WORDS)


@pytest.fixture(scope="module")
def plain(fast_blas: Any) -> Any:
    """Knows no reasoning."""
    return toy_tokenizers.byte_level(*WORDS, added=())


@pytest.fixture(scope="module")
def llama(fast_blas: Any) -> Any:
    return toy_tokenizers.sentence_piece(" Hello", " world", " ", "!")


@dataclass
class Heard:
    pieces: list[Piece]
    voice: Voice

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.pieces)

    @property
    def texts(self) -> list[str]:
        return [each.text for each in self.pieces]

    @property
    def reasoning(self) -> str:
        return "".join(each.reasoning for each in self.pieces)

    @property
    def said(self) -> list[Said]:
        return [said for each in self.pieces for said in each.said]


def say(
    tokenizer: Any,
    tokens: Sequence[int] | str,
    *stop: str,
    thinking: bool = False,
    logprobs: bool = False,
    continues: bool = False,
) -> Heard:
    """Feed tokens, of a string one for each byte but for markers, and the end; the last piece is that of the end."""
    voice = Voice(tokenizer, stop=stop, thinking=thinking, logprobs=logprobs, continues=continues)
    ids = tokenizer.encode(tokens, add_special_tokens=False) if isinstance(tokens, str) else tokens
    pieces = []
    for token in ids:
        pieces.append(voice.feed(token))
        if voice.stopped is not None:
            break
    return Heard([*pieces, voice.end()], voice)


# Characters.


def test_a_token_is_out_as_soon_as_it_is_fed(plain: Any) -> None:
    assert say(plain, [HELLO, WORLD]).texts == ["hello", " world", ""]


def test_a_character_split_over_tokens_is_held_back_until_it_is_whole(plain: Any) -> None:
    """STR-04"""
    assert say(plain, "é日😀").texts == ["", "é", "", "", "日", "", "", "", "😀", ""]


def test_half_a_character_at_the_end_is_dropped(plain: Any) -> None:
    """STR-04"""
    assert say(plain, [HELLO, 0xF0, 0x9F, 0x98]).text == "hello"


def test_bytes_that_are_no_character_are_told_as_that(plain: Any) -> None:
    assert say(plain, [0xF0, 0x9F, ord("A")]).texts == ["", "", "\ufffdA", ""]


def test_a_replacement_character_that_the_model_says_is_text(plain: Any) -> None:
    assert say(plain, "\ufffd!").text == "\ufffd!"


def test_a_space_at_the_start_is_text_where_tokens_are_bytes(plain: Any) -> None:
    assert say(plain, [WORLD]).text == " world"


def test_a_token_that_was_added_to_the_vocabulary_is_spelt_in_its_own_letters(fast_blas: Any) -> None:
    tokenizer = toy_tokenizers.byte_level(added=("<\uff5ctool\uff5c>",))
    assert say(tokenizer, "<\uff5ctool\uff5c>é").text == "<\uff5ctool\uff5c>é"


def test_a_token_beyond_the_vocabulary_says_nothing(plain: Any) -> None:
    assert say(plain, [HELLO, 5000, WORLD]).text == "hello world"


def test_the_space_that_sentencepiece_puts_first_is_dropped_from_a_reply(llama: Any) -> None:
    assert say(llama, [256, 257]).text == "Hello world"
    assert say(llama, [258, 256]).text == " Hello"


def test_the_same_space_belongs_to_a_completion(llama: Any) -> None:
    assert say(llama, [256, 257], continues=True).text == " Hello world"


def test_bytes_between_sentencepiece_tokens_make_characters(llama: Any) -> None:
    assert say(llama, [256, *"é".encode(), 259]).text == "Helloé!"


def test_any_other_decoder_is_asked_for_the_text_so_far(fast_blas: Any) -> None:
    tokenizer = toy_tokenizers.word_pieces()
    assert say(tokenizer, [1, 2, 3]).texts == ["go", "ing", " home", ""]


def test_any_other_decoder_may_say_a_replacement_character(fast_blas: Any) -> None:
    tokenizer = toy_tokenizers.word_pieces()
    heard = say(tokenizer, [1, 4, 3, 4, 4, 4, 4, 4])
    assert heard.text.startswith("go \ufffd home")
    assert not any(text.startswith("\ufffd") for text in heard.texts[:2])


# Stop strings.


def test_a_stop_string_ends_the_text_and_is_not_part_of_it(plain: Any) -> None:
    """LLM-06"""
    heard = say(plain, [HELLO, STOP, WORLD], "STOP")
    assert heard.text == "hello"
    assert heard.voice.stopped == "STOP"


@pytest.mark.parametrize("tokens", [[HELLO, STOP], "helloSTOP", "hello STOPPED", "say STOP"])
def test_a_stop_string_is_found_however_it_is_cut_into_tokens(plain: Any, tokens: Any) -> None:
    """LLM-06"""
    heard = say(plain, tokens, "STOP")
    assert heard.voice.stopped == "STOP"
    assert "S" not in heard.text


def test_what_may_become_a_stop_string_is_held_back_and_let_go_when_it_does_not(plain: Any) -> None:
    assert say(plain, "aSTO!", "STOP").texts == ["a", "", "", "", "STO!", ""]


def test_what_was_held_back_is_let_go_at_the_end(plain: Any) -> None:
    heard = say(plain, "aSTO", "STOP")
    assert (heard.text, heard.texts[-1], heard.voice.stopped) == ("aSTO", "STO", None)


def test_the_stop_string_that_is_complete_first_wins(plain: Any) -> None:
    heard = say(plain, "xabcdef", "cde", "bc", "abcd")
    assert (heard.text, heard.voice.stopped) == ("xa", "bc")


def test_of_those_complete_at_once_the_longest_wins(plain: Any) -> None:
    heard = say(plain, "xabc", "c", "abc", "bc")
    assert (heard.text, heard.voice.stopped) == ("x", "abc")


def test_a_stop_string_that_overlaps_itself_is_found(plain: Any) -> None:
    assert say(plain, "aabaabaaab!", "aabaaab").text == "aab"


def test_a_stop_string_at_once_leaves_nothing(plain: Any) -> None:
    heard = say(plain, [NEWLINES], "\n")
    assert (heard.text, heard.voice.stopped) == ("", "\n")


def test_a_stop_string_of_split_characters_is_found(plain: Any) -> None:
    assert say(plain, "a日😀b", "😀").text == "a日"


def test_after_a_stop_string_nothing_comes(plain: Any) -> None:
    voice = Voice(plain, stop=("l",), thinking=False, logprobs=True)
    assert voice.feed(HELLO).text == "he"
    assert voice.end() == Piece()


def test_a_long_stop_string_that_never_comes_costs_nothing_but_its_letters(plain: Any) -> None:
    voice = Voice(plain, stop=("x" * 3_000_000,), thinking=False, logprobs=False)
    assert voice.feed(HELLO).text == "hello"
    assert len(voice._stops[0]._borders) < 10


# Reasoning.


def test_reasoning_that_the_answer_opens_is_kept_apart(tokenizer: Any) -> None:
    heard = say(tokenizer, "<think>hmm, é</think>yes")
    assert (heard.reasoning, heard.text) == ("hmm, é", "yes")


def test_reasoning_that_the_prompt_opened_is_kept_apart(tokenizer: Any) -> None:
    heard = say(tokenizer, "hmm</think>yes", thinking=True)
    assert (heard.reasoning, heard.text) == ("hmm", "yes")


def test_a_marker_spelt_in_other_tokens_is_one(plain: Any, tokenizer: Any) -> None:
    ids = plain.encode("<think>a</think>b", add_special_tokens=False)
    heard = say(tokenizer, ids)
    assert (heard.reasoning, heard.text) == ("a", "b")


def test_white_space_around_markers_is_dropped(tokenizer: Any) -> None:
    heard = say(tokenizer, "<think>\n\na  b\n</think>\n\n c")
    assert (heard.reasoning, heard.text) == ("a  b\n", "c")


def test_an_answer_may_begin_with_white_space_before_it_reasons(tokenizer: Any) -> None:
    heard = say(tokenizer, "\n<think>a</think>b")
    assert (heard.reasoning, heard.text) == ("a", "\nb")


def test_reasoning_is_out_as_it_comes(tokenizer: Any) -> None:
    heard = say(tokenizer, "<think>ab</think>c")
    assert [each.reasoning for each in heard.pieces] == ["", "a", "b", "", "", ""]


def test_what_looks_like_a_marker_within_the_text_is_text(tokenizer: Any) -> None:
    assert say(tokenizer, "the <think> tag").text == "the <think> tag"
    assert say(tokenizer, "<think>a</think>b<think>c</think>").text == "b<think>c</think>"


def test_what_only_begins_like_a_marker_is_text(tokenizer: Any) -> None:
    assert say(tokenizer, "<thing>").text == "<thing>"
    assert say(tokenizer, "<thi").text == "<thi"
    assert say(tokenizer, "<think>a</thing>", thinking=False).reasoning == "a</thing>"


def test_reasoning_cut_off_stays_reasoning(tokenizer: Any) -> None:
    heard = say(tokenizer, "<think>ab</thi")
    assert (heard.reasoning, heard.text) == ("ab</thi", "")


def test_stop_strings_end_content_and_not_reasoning(tokenizer: Any) -> None:
    heard = say(tokenizer, "<think>a. b.</think>c. d.", ".")
    assert (heard.reasoning, heard.text) == ("a. b.", "c")


def test_what_a_stop_string_may_begin_with_before_a_marker_is_let_go(tokenizer: Any) -> None:
    heard = say(tokenizer, "\n<think>a</think>\nb", "\n\n", "\nb")
    assert (heard.reasoning, heard.text, heard.voice.stopped) == ("a", "\nb", None)


def test_a_stop_string_in_what_was_held_back_for_a_marker_is_found_at_the_end(tokenizer: Any) -> None:
    heard = say(tokenizer, "<th", "th")
    assert (heard.text, heard.voice.stopped) == ("<", "th")


def test_a_completion_has_no_markers(tokenizer: Any) -> None:
    heard = say(tokenizer, "<think>a</think>b", continues=True)
    assert (heard.reasoning, heard.text) == ("", "<think>a</think>b")


def test_a_model_without_markers_has_no_reasoning(plain: Any) -> None:
    assert say(plain, "<think>a</think>b").text == "<think>a</think>b"


def test_tokens_of_reasoning_are_counted_with_their_markers(tokenizer: Any) -> None:
    assert say(tokenizer, "<think>abc</think>de").voice.reasoning_tokens == 5
    assert say(tokenizer, "abc</think>de", thinking=True).voice.reasoning_tokens == 4
    assert say(tokenizer, "<think>abc").voice.reasoning_tokens == 4
    assert say(tokenizer, "abcde").voice.reasoning_tokens == 0


# Log-probabilities.


def test_each_token_has_its_text_bytes_and_log_probability(plain: Any) -> None:
    voice = Voice(plain, stop=(), thinking=False, logprobs=True)
    piece = voice.feed(HELLO, -0.5, [(HELLO, -0.5), (0xF0, -2.0)])
    others = (Candidate("hello", b"hello", -0.5), Candidate("\\xf0", b"\xf0", -2.0))
    assert piece == Piece("hello", said=(Said("hello", b"hello", -0.5, others),))


def test_tokens_of_one_character_come_with_it(plain: Any) -> None:
    pieces = say(plain, "aé", logprobs=True).pieces
    assert [(each.text, [said.bytes for said in each.said]) for each in pieces] == [
        ("a", [b"a"]),
        ("", []),
        ("é", [b"\xc3", b"\xa9"]),
        ("", []),
    ]
    assert [said.token for said in pieces[2].said] == ["\\xc3", "\\xa9"]


def test_half_a_character_at_the_end_has_its_bytes_at_least(plain: Any) -> None:
    heard = say(plain, [HELLO, 0xF0, 0x9F], logprobs=True)
    assert heard.text == "hello"
    assert [each.bytes for each in heard.pieces[-1].said] == [b"\xf0", b"\x9f"]


def test_held_back_tokens_come_with_their_text(plain: Any) -> None:
    heard = say(plain, "STO!", "STOP", logprobs=True)
    assert [len(each.said) for each in heard.pieces] == [0, 0, 0, 4, 0]


def test_no_token_of_a_stop_string_is_told(plain: Any) -> None:
    assert [each.token for each in say(plain, [HELLO, *b"ST", ord("O")], "STO", logprobs=True).said] == ["hello"]
    assert say(plain, [HELLO], "lo", logprobs=True).said == []


def test_tokens_of_reasoning_are_not_told(tokenizer: Any) -> None:
    assert [each.token for each in say(tokenizer, "<think>ab</think>\ncd", logprobs=True).said] == ["c", "d"]


def test_a_trimmed_space_is_none_of_the_tokens_bytes_either(llama: Any) -> None:
    voice = Voice(llama, stop=(), thinking=False, logprobs=True)
    first = voice.feed(256, -1.0, [(257, -0.1)])
    assert first.said == (Said("Hello", b"Hello", -1.0, (Candidate("world", b"world", -0.1),)),)
    assert voice.feed(257, -1.0).said[0].bytes == b" world"


def test_without_log_probabilities_nothing_is_told(plain: Any) -> None:
    assert say(plain, [HELLO, WORLD]).said == []


# What the trace will say.


def test_routes_go_to_the_first_token_that_is_seen(tokenizer: Any) -> None:
    assert say(tokenizer, "<think>\nab").voice.routes == (
        Route("<think>", "marker"),
        Route("\n", "held back"),
        Route("a", "reasoning"),
    )
    assert say(tokenizer, "STxy", "STOP").voice.routes == (
        Route("S", "held back"),
        Route("T", "held back"),
        Route("x", "text"),
    )
    assert say(tokenizer, "STOP", "STOP").voice.routes[-1] == Route("P", "stop")


def test_routes_are_eight_at_most(plain: Any) -> None:
    assert len(say(plain, "x" * 20, "x" * 30).voice.routes) == 8


# Whatever the tokens and the stop strings.

tokens = st.lists(
    st.one_of(
        st.sampled_from([*range(256, 256 + len(WORDS))]),
        st.sampled_from([*b"abST\n "]),
        st.sampled_from([0xC3, 0xA9, 0xE6, 0x97, 0xA5, 0xF0, 0x9F, 0x98, 0x80, 0xEF, 0xBF, 0xBD]),
    ),
    max_size=30,
)
stops = st.lists(
    st.one_of(
        st.text("abST\n é日", min_size=1, max_size=4), st.sampled_from(["STOP", "hello", "o w", "日本", "\ufffd"])
    ),
    max_size=4,
)
often = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def spelt(tokens: Sequence[int]) -> str:
    """All of it at once, without half a character at the end."""
    data = b"".join(bytes([each]) if each < 256 else WORDS[each - 256].encode() for each in tokens)
    half = next((size for size in (3, 2, 1) if size <= len(data) and _half(data[-size:])), 0)
    return data[: len(data) - half].decode("utf-8", "replace")


def _half(tail: bytes) -> bool:
    """Whether `tail` is the proper beginning of a character."""
    try:
        tail.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.start == 0
    return False


def cut(text: str, stops: Sequence[str]) -> str:
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@often
@given(tokens, stops)
def test_pieces_joined_are_the_text_up_to_the_first_stop_string(
    plain: Any, tokens: list[int], stops: list[str]
) -> None:
    assert say(plain, tokens, *stops).text == cut(spelt(tokens), stops)


@often
@given(tokens, stops)
def test_no_text_has_a_stop_string_or_half_a_character(plain: Any, tokens: list[int], stops: list[str]) -> None:
    heard = say(plain, tokens, *stops)
    assert not any(stop in heard.text for stop in stops)
    assert heard.text.count("\ufffd") <= spelt(tokens).count("\ufffd")


@often
@given(tokens)
def test_pieces_joined_are_what_the_tokenizer_decodes(plain: Any, tokens: list[int]) -> None:
    decoded = plain.decode(tokens)
    assert decoded.startswith(say(plain, tokens).text)
    assert len(decoded) - len(say(plain, tokens).text) <= 1


@often
@given(tokens, stops)
def test_bytes_of_the_told_tokens_are_those_of_the_text(plain: Any, tokens: list[int], stops: list[str]) -> None:
    heard = say(plain, tokens, *stops, logprobs=True)
    said = b"".join(each.bytes for each in heard.said)
    if heard.voice.stopped is None:
        assert said == b"".join(bytes([each]) if each < 256 else WORDS[each - 256].encode() for each in tokens)
    else:
        assert heard.text.startswith(said.decode("utf-8", "replace"))


@often
@given(tokens, stops)
def test_tokens_come_with_the_text_they_belong_to(plain: Any, tokens: list[int], stops: list[str]) -> None:
    """Never before their last character, never after the piece that has it."""
    heard = say(plain, tokens, *stops, logprobs=True)
    text, said = "", b""
    for piece in heard.pieces[:-1]:
        text += piece.text
        said += b"".join(each.bytes for each in piece.said)
        assert text.startswith(said.decode("utf-8", "replace"))


@often
@given(st.text("ab<>/think \n", max_size=40), st.booleans())
def test_reasoning_and_text_have_all_that_is_no_marker(tokenizer: Any, text: str, thinking: bool) -> None:
    heard = say(tokenizer, text, thinking=thinking)
    opened, inside, rest = thinking, text, ""
    if not thinking and text.lstrip().startswith("<think>"):
        opened, inside = True, text.lstrip().removeprefix("<think>")
    if opened:
        inside, closed, rest = inside.partition("</think>")
        space = "" if thinking else text[: len(text) - len(text.lstrip())]
        assert (heard.reasoning, heard.text) == (inside.lstrip(), space + (rest.lstrip() if closed else ""))
    else:
        assert (heard.reasoning, heard.text) == ("", text)
