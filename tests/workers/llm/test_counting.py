"""Counting a prompt's tokens: without a row, beside those that decode, and by the ids that would be read."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import Kind
from protocol.events import Counted, Failed
from protocol.jobs import CountTokens
from tests.workers.llm.toy import Driver, chat, network


@pytest.fixture(scope="module")
def model(fast_blas: Any) -> Any:
    return network()


def test_a_prompt_is_counted_as_it_would_be_read(model: Any) -> None:
    driver = Driver(model)
    asked = driver.answer(CountTokens(chat("Hello")))
    assert asked.events == [Counted(6)]
    assert driver.answer(chat("Hello")).started.prompt_tokens == 6
    assert driver.engine.stats().read == 6
    assert not driver.engine.busy


def test_counting_waits_for_no_answer_and_changes_none(model: Any) -> None:
    alone = Driver(model).answer(chat("Hello", tokens=20)).text()
    driver = Driver(model)
    talking = driver.ask(chat("Hello", tokens=20))
    driver.steps(3)
    counting = driver.ask(CountTokens(chat("Another")))
    driver.steps(1)
    assert counting.events == [Counted(8)]
    assert not talking.over
    driver.run()
    assert talking.text() == alone


def test_what_cannot_be_rendered_is_refused_and_others_are_counted(model: Any) -> None:
    driver = Driver(model)
    refused, fine = driver.ask(CountTokens(chat("Hey!"))), driver.ask(CountTokens(chat("Hey")))
    driver.run()
    assert isinstance(refused.last, Failed) and refused.last.kind == Kind.INVALID_REQUEST
    assert fine.events == [Counted(4)]


def test_a_bug_in_counting_is_that_job_s_alone(model: Any) -> None:
    driver = Driver(model)
    driver.language.explode = True
    asked = driver.answer(CountTokens(chat("Hey")))
    assert isinstance(asked.last, Failed) and asked.last.kind == Kind.INTERNAL_ERROR


def test_a_count_that_is_cancelled_is_not_answered(model: Any) -> None:
    driver = Driver(model)
    asked = driver.ask(CountTokens(chat("Hey")))
    assert asked.handle is not None
    driver.engine.cancel(asked.handle)
    assert not driver.engine.busy
    driver.steps(1)
    assert asked.events == []
