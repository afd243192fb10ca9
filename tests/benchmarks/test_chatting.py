"""What a stream of OpenAI's protocol says, whoever sends it."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from benchmarks.chatting import Answer, hear, rate
from benchmarks.llm import named_server

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def piece(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], "usage": None}


def usage(**more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 49, "completion_tokens": 5, "total_tokens": 54, **more}}


def heard(*chunks: dict[str, Any], lead: str = "data: ") -> Answer:
    lines = [f"{lead}{json.dumps(chunk)}\n".encode() for chunk in chunks]
    answer = Answer()
    hear([b": a comment\n", *(line for each in lines for line in (each, b"\n")), b"data: [DONE]\n"], answer)
    return answer


def test_text_and_usage_of_a_stream() -> None:
    answer = heard(ROLE, piece("Once"), piece(" upon a time"), END, usage(prompt_tokens_details={"cached_tokens": 25}))
    assert (answer.text, answer.sizes) == ("Once upon a time", [4, 12])
    assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (49, 25, 5)
    assert answer.first == answer.times[0]


@pytest.mark.parametrize("more", [{}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {}}], ids=str)
def test_a_server_need_not_say_what_it_had_cached(more: dict[str, Any]) -> None:
    answer = heard(piece("Once"), END, usage(**more))
    assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (49, 0, 5)


def test_where_no_usage_comes_each_piece_counts_as_a_token() -> None:
    assert heard(ROLE, piece("Once"), piece(" upon"), piece(""), END).tokens == 2


def test_an_event_needs_no_space_after_its_colon() -> None:
    assert heard(piece("Once"), END, lead="data:").text == "Once"


def test_an_answer_without_text_has_its_end_for_a_first_token() -> None:
    assert heard(ROLE, END, usage()).first > 0


def test_an_answer_without_its_end_was_cut_off() -> None:
    with pytest.raises(AssertionError, match="cut off"):
        heard(ROLE, piece("Once"), usage())


def test_a_piece_of_several_tokens_weighs_by_its_characters() -> None:
    single = Answer(times=[1.0, 2.0, 3.0, 4.0, 5.0], sizes=[3, 3, 3, 3, 3], tokens=5)
    joined = Answer(times=[1.0, 3.0, 5.0], sizes=[3, 6, 6], tokens=5)
    assert rate([single]) == rate([joined]) == 1.0


def test_another_server_has_a_name_and_an_address() -> None:
    assert named_server("llama.cpp=http://127.0.0.1:8080") == ("llama.cpp", "http://127.0.0.1:8080")
    # The rest of a name with `=` in it would be no URL.
    for given in ("http://127.0.0.1:8080", "=http://127.0.0.1:8080", "x=127.0.0.1:8080", "x=https://example.org"):
        with pytest.raises(argparse.ArgumentTypeError):
            named_server(given)


def test_another_server_takes_no_name_of_ours() -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        named_server("mlx_lm.server=http://127.0.0.1:8080")
