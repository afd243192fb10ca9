"""Whole conversations with the starter, from messages to text: what a next turn reuses, and what an answer says."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import Kind
from protocol.events import Delta, Failed, Progress
from protocol.jobs import ChatMessage
from tests.workers.llm.toy import Driver, chat, complete

pytestmark = pytest.mark.model


@pytest.fixture
def driver(llm: Any) -> Driver:
    from workers.llm.language import ModelLanguage

    language = ModelLanguage(llm.tokenizer, llm.model.context_window, vocabulary=llm.vocabulary, trace_text=False)
    return Driver(llm.network, language, vocabulary=llm.vocabulary, head=llm.head)


def test_an_answer_is_text(driver: Driver) -> None:
    asked = driver.answer(chat("What is the capital of France?"))
    assert asked.text() == "The capital of France is Paris."
    assert asked.ended[0].reason == "stop"


def test_every_earlier_token_of_a_conversation_is_reused(driver: Driver) -> None:
    """Also where the model spelt a word as its tokenizer would not: at temperature 1 it soon does."""
    texts = ["Invent eight strange names."]
    known = 0
    for turn in range(4):
        asked = driver.answer(chat(*texts, temperature=1.4, seed=turn, tokens=16))
        # All of the last turn but its end: a last token of the full length, which never went through the network.
        assert asked.started.cached_tokens >= known - 1
        assert asked.started.cached_tokens < asked.started.prompt_tokens
        known = asked.started.prompt_tokens + asked.ended[0].tokens - (asked.ended[0].reason == "stop")
        texts += [asked.text(), "And more."]


def test_a_stop_string_across_tokens_is_not_said(driver: Driver) -> None:
    asked = driver.answer(chat("What is the capital of France?", stop=("ce is Pa",)))
    assert asked.text() == "The capital of Fran"
    assert asked.ended[0].stop == "ce is Pa"


def test_a_prompt_over_the_context_is_refused_with_its_numbers_before_anything_runs(driver: Driver) -> None:
    asked = driver.answer(chat("word " * 9000))
    assert isinstance(asked.last, Failed)
    assert (asked.last.kind, asked.last.param) == (Kind.CONTEXT_LENGTH_EXCEEDED, "messages")
    assert "8192" in asked.last.message
    assert not any(isinstance(each, Progress) for each in asked.events)
    assert driver.engine.stats().read == 0


def test_logprobs_name_the_tokens_of_the_answer(driver: Driver) -> None:
    asked = driver.answer(chat("What is the capital of France?", logprobs=2))
    said = [each for event in asked.events if isinstance(event, Delta) for each in event.said]
    assert "".join(each.token for each in said) == "The capital of France is Paris."
    assert all(each.likeliest[0].logprob == each.logprob for each in said)
    assert all(len(each.likeliest) == 2 for each in said)


def test_a_completion_goes_on_with_the_text(driver: Driver) -> None:
    asked = driver.answer(complete("The capital of France is", tokens=1))
    assert asked.text() == " Paris"


def test_a_message_of_the_system_is_heard(driver: Driver) -> None:
    job = chat("Hello", tokens=4)
    with_system = type(job)((ChatMessage(role="system", content="You are a cat."), *job.messages), job.generation)
    assert driver.answer(with_system).started.prompt_tokens != driver.answer(job).started.prompt_tokens
