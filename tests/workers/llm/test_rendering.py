"""Long prompts are rendered beside the rows that decode: nobody waits for them, and they say what they always said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import Kind
from protocol.events import Counted, Failed
from protocol.jobs import Chat, Complete, CountTokens, Shape
from tests.workers.llm.toy import Driver, ToyLanguage, ToyPrompt, chat, complete, network, shaped
from workers.llm.rendering import LONG_BYTES

LONG = "a" * LONG_BYTES


class SlowLanguage(ToyLanguage):
    """A long text is a short prompt, once somebody lets it go on."""

    def __init__(self) -> None:
        super().__init__(frozenset({-1}))
        self.go_on = threading.Event()
        self.asked = 0

    def render(self, job: Chat | Complete) -> ToyPrompt:
        self.asked += 1
        if isinstance(job, Complete) and isinstance(job.prompt, str) and len(job.prompt) >= LONG_BYTES:
            assert self.go_on.wait(20)
            return super().render(complete(job.prompt.removeprefix(LONG)))
        return super().render(job)


@pytest.fixture(scope="module")
def model(fast_blas: Any) -> Any:
    return network()


@pytest.fixture
def language() -> Iterator[SlowLanguage]:
    made = SlowLanguage()
    yield made
    made.go_on.set()


def test_others_decode_while_a_long_prompt_is_rendered(model: Any, language: SlowLanguage) -> None:
    driver = Driver(model, language)
    long = driver.ask(complete(f"{LONG}Zebra"))
    other = driver.ask(complete("abc", tokens=30))
    driver.run(lambda: other.over)
    assert len(other.text()) == 30
    assert long.events == []
    language.go_on.set()
    driver.run()
    assert long.text() == Driver(model).answer(complete("Zebra")).text()


def test_what_is_wrong_with_a_long_prompt_is_that_job_s_alone(model: Any, language: SlowLanguage) -> None:
    driver = Driver(model, language)
    refused, fine = driver.ask(complete(f"{LONG}no!")), driver.ask(complete("abc"))
    language.go_on.set()
    driver.run()
    assert isinstance(refused.last, Failed) and refused.last.kind == Kind.INVALID_REQUEST
    assert len(fine.text()) == 12


def test_a_job_can_be_cancelled_while_it_is_rendered(model: Any, language: SlowLanguage) -> None:
    driver = Driver(model, language)
    first, second = driver.ask(complete(f"{LONG}b")), driver.ask(complete(f"{LONG}c"))
    driver.steps(2)
    for asked in (first, second):
        assert asked.handle is not None
        driver.engine.cancel(asked.handle)
    assert not driver.engine.busy
    language.go_on.set()
    assert len(driver.answer(complete("abc")).text()) == 12
    # The second was never begun.
    assert language.asked == 2


def test_a_long_text_is_counted_beside_the_others(model: Any) -> None:
    driver = Driver(model)
    long, short = driver.ask(CountTokens(chat(LONG))), driver.ask(CountTokens(chat("Hello")))
    driver.run()
    assert long.events == [Counted(LONG_BYTES + 1)]
    assert short.events == [Counted(6)]


def test_a_hint_is_rendered_in_its_turn(model: Any) -> None:
    driver = Driver(model, shaped(SlowLanguage()))
    bad = Shape(kind="regex", text="a[b", param="structured_outputs.regex", hint=True)
    assert driver.answer(complete("abc", shape=bad)).text() == driver.answer(complete("hint:abc")).text()
    assert driver.language.asked == 3
