"""An answer whose process dies after any of its events goes on in another one, and no client can tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from protocol.events import ChoiceEnded, Delta, Event, Generated, Progress, Started
from protocol.jobs import Chat, Complete, Shape
from protocol.tools import Tools
from service.told import told
from tests.workers.llm import toy_tokenizers
from tests.workers.llm.test_tool_calling import WEATHER
from tests.workers.llm.tool_templates import PLAIN
from tests.workers.llm.toy import Driver, chat, complete, network

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 22, 333]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
SHAPE = Shape(kind="json", text=PERSON)
SAMPLED: dict[str, Any] = {"temperature": 1.2, "seed": 7, "tokens": 24}


@pytest.fixture(scope="module")
def tokenizer(fast_blas: Any) -> Any:
    return toy_tokenizers.byte_level(template=PLAIN, added=("<tool_call>", "</tool_call>"))


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return network(vocabulary=len(tokenizer))


@pytest.fixture
def fresh(tokenizer: Any, model: Any) -> Callable[[], Driver]:
    """A process's engine, new each time."""
    from workers.llm.language import ModelLanguage

    vocabulary = len(tokenizer)

    def make() -> Driver:
        language = ModelLanguage(tokenizer, 8000, vocabulary=vocabulary, trace_text=False)
        return Driver(model, language, vocabulary=vocabulary)

    return make


def said(
    fresh: Callable[[], Driver], asked: Chat | Complete, dies: Callable[[int], bool] = lambda _: False
) -> tuple[list[Event], int]:
    """What its reader gets where processes die after those of their events (counted over all) that `dies` names, and
    how many were needed."""
    so_far, seen, count, lives = told(asked), list[Event](), 0, 0
    while not (seen and isinstance(seen[-1], Generated)):
        driver = fresh()
        job = so_far.begin()
        assert isinstance(job, Chat | Complete)
        lives += 1
        answer = driver.ask(job)
        dead = False
        while not dead and not (seen and isinstance(seen[-1], Generated)):
            driver.steps(1)
            while answer.events and not dead:
                event = answer.events.pop(0)
                count += 1
                if so_far.take(event):
                    seen.append(event)
                dead = dies(count) and not isinstance(event, Generated)
    return seen, lives


def clean(events: list[Event]) -> list[Any]:
    """What a client can see, choice by choice, with log-probabilities to four digits and calls without their ids."""
    found: list[Any] = [event for event in events if isinstance(event, Started)]
    for choice in range(8):
        deltas = [event for event in events if isinstance(event, Delta) and event.choice == choice]
        found.append("".join(event.text for event in deltas))
        found.append("".join(event.reasoning for event in deltas))
        found.append([(each.token, round(each.logprob, 3)) for event in deltas for each in event.said])
        found.append([len(each.likeliest) for event in deltas for each in event.said])
        parts = [part for event in deltas for part in event.calls]
        found.append([(part.index, part.name, part.id is not None, part.arguments) for part in parts])
        ends = [event for event in events if isinstance(event, ChoiceEnded) and event.choice == choice]
        found += [msgspec.structs.replace(event, ids=()) for event in ends]
    last = events[-1]
    assert isinstance(last, Generated)
    # What one process spent, guessed and keeps is no part of the answer.
    found.append(msgspec.structs.replace(last, spent=None, guessed_tokens=0, kept=None))  # type: ignore[arg-type]
    return found


def tool_job() -> Chat:
    asked = chat("What is the weather in Paris?", tokens=120)
    return msgspec.structs.replace(asked, tools=Tools(offered=(WEATHER,), choice="required", parallel=False))


JOBS: dict[str, Callable[[], Chat | Complete]] = {
    "greedy": lambda: chat("abc"),
    "seeded": lambda: chat("abc", **SAMPLED),
    "three choices": lambda: chat("abc", n=3, **SAMPLED),
    "penalties": lambda: chat("abc", repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5, **SAMPLED),
    "log-probabilities": lambda: chat("abc", logprobs=3, **SAMPLED),
    "xtc": lambda: chat("abc", xtc_probability=0.5, top_p=0.9, **SAMPLED),
    "an echo": lambda: complete("abc def", echo=True, n=2, **SAMPLED),
    "ids": lambda: complete((97, 98, 99), **SAMPLED),
    "a schema": lambda: chat("abc", tokens=80, shape=SHAPE),
    "a schema, sampled, twice": lambda: chat("abc", tokens=80, temperature=1.0, seed=3, n=2, shape=SHAPE),
    "a schema with log-probabilities": lambda: chat("abc", tokens=80, shape=SHAPE, logprobs=1),
    "a call": tool_job,
}


@pytest.mark.parametrize("make", JOBS.values(), ids=list(JOBS))
def test_after_a_death_at_any_event_the_answer_is_the_undisturbed_one(
    fresh: Callable[[], Driver], make: Callable[[], Chat | Complete]
) -> None:
    undisturbed, _ = said(fresh, make())
    expected = clean(undisturbed)
    most = len([event for event in undisturbed if not isinstance(event, Progress)])
    for place in range(1, most, max(1, most // 9)):
        found, lives = said(fresh, make(), lambda count, place=place: count == place)
        assert clean(found) == expected, f"after event {place}"
        assert lives == 2


@pytest.mark.parametrize("name", ["three choices", "log-probabilities", "a schema, sampled, twice", "a call"])
def test_after_death_upon_death_too(fresh: Callable[[], Driver], name: str) -> None:
    expected = clean(said(fresh, JOBS[name]())[0])
    found, lives = said(fresh, JOBS[name](), lambda count: count in (1, 5, 12, 13, 31))
    assert clean(found) == expected
    assert lives > 3


@pytest.mark.parametrize("logprobs", [None, 2])
def test_what_a_stop_string_holds_back_is_held_back_again(fresh: Callable[[], Driver], logprobs: int | None) -> None:
    """Stop strings of several tokens, begun often and finished late, if at all."""
    text = "".join(event.text for event in said(fresh, chat("abc", **SAMPLED))[0] if isinstance(event, Delta))
    assert len(text) > 12
    stops = (text[9:13], text[1:3] + "never", text[4:6] + "never")
    asked = chat("abc", stop=stops, logprobs=logprobs, **SAMPLED)
    undisturbed, _ = said(fresh, asked)
    expected = clean(undisturbed)
    assert expected[1] == text[:9]
    for place in range(1, len(undisturbed)):
        assert clean(said(fresh, asked, lambda count, place=place: count == place)[0]) == expected


def test_the_ids_of_calls_that_were_told_are_kept_for_the_next_turn(fresh: Callable[[], Driver]) -> None:
    so_far, driver = told(tool_job()), fresh()
    begun = so_far.begin()
    assert isinstance(begun, Chat)
    asked = driver.ask(begun)
    driver.run(lambda: any(isinstance(event, Delta) and event.calls for event in asked.events))
    for event in asked.events:
        so_far.take(event)
    (identity,) = [part.id for event in asked.events if isinstance(event, Delta) for part in event.calls if part.id]
    again = so_far.begin()
    assert isinstance(again, Chat)
    answer = fresh().answer(again)
    assert [part.id for event in answer.events if isinstance(event, Delta) for part in event.calls if part.id] == [
        identity
    ]


def test_a_prompt_that_went_on_from_an_earlier_turn_is_read_by_the_same_ids(fresh: Callable[[], Driver]) -> None:
    driver = fresh()
    first = driver.answer(chat("abc", **SAMPLED)).text()
    second = chat("abc", first, "and?", **SAMPLED)
    expected = driver.answer(second)
    so_far = told(second)
    so_far.begin()
    for event in expected.events[:5]:
        so_far.take(event)
    again = so_far.begin()
    assert isinstance(again, Chat)
    resumed = fresh().answer(again)
    assert resumed.text() == expected.text()
    assert resumed.started == expected.started
