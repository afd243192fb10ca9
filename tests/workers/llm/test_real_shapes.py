"""Shapes and guesses with the starter's real weights: valid JSON, and the same text however it comes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from protocol.events import Generated
from protocol.jobs import Shape
from tests.workers.llm.toy import Driver, chat

pytestmark = pytest.mark.model

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 20},
        "family_name": {"type": "string", "maxLength": 20},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 120},
        "favourite_colours": {
            "type": "array",
            "items": {"enum": ["red", "green", "blue"]},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["first_name", "family_name", "age_in_years", "favourite_colours"],
    "additionalProperties": False,
}
SHAPE = Shape(kind="json", text=json.dumps(PERSON))
TEXT = (
    "The harbour master wrote down every ship that came in during the storm, its name, its cargo and the number of men "
    "aboard, and sent the list to the governor before sunrise."
)
REWRITE = f"Repeat this text exactly:\n{TEXT}"


def driver_for(llm: Any, **options: Any) -> Driver:
    from workers.llm.language import ModelLanguage

    language = ModelLanguage(llm.tokenizer, llm.model.context_window, vocabulary=llm.vocabulary, trace_text=False)
    return Driver(llm.network, language, vocabulary=llm.vocabulary, head=llm.head, **options)


def generated(asked: Any) -> Generated:
    assert isinstance(asked.last, Generated), asked.last
    return asked.last


def test_an_answer_follows_its_schema_and_much_of_it_is_forced(llm: Any, passes: list[int]) -> None:
    driver = driver_for(llm)
    asked = driver.answer(chat("Describe a person as JSON.", tokens=120, shape=SHAPE))
    jsonschema.validate(json.loads(asked.text()), PERSON)
    assert asked.ended[0].reason == "stop"
    end = generated(asked)
    assert end.forced_tokens > end.completion_tokens // 4
    assert len(passes) < end.completion_tokens * 0.8


def test_forced_runs_change_no_text(llm: Any) -> None:
    """With log-probabilities each forced token is said only when the network has been asked."""
    job = {"tokens": 120, "shape": SHAPE}
    quick = driver_for(llm).answer(chat("Describe a person as JSON.", **job))  # type: ignore[arg-type]
    slow = driver_for(llm).answer(chat("Describe a person as JSON.", logprobs=0, **job))  # type: ignore[arg-type]
    assert quick.text() == slow.text()
    assert generated(quick).forced_tokens == generated(slow).forced_tokens


def test_a_text_that_is_said_again_is_guessed_and_stays_the_same(llm: Any, passes: list[int]) -> None:
    plain, guessing = driver_for(llm, guessing=False), driver_for(llm)
    wanted, alone = plain.answer(chat(REWRITE, tokens=48)), len(passes)
    found = guessing.answer(chat(REWRITE, tokens=48))
    assert found.text() == wanted.text()
    assert generated(found).guessed_tokens > 12
    assert len(passes) - alone < alone * 0.7


def test_all_kinds_of_rows_share_a_batch(llm: Any) -> None:
    jobs = [
        chat("Describe a person as JSON.", tokens=60, shape=SHAPE),
        chat(REWRITE, tokens=30),
        chat("What is the capital of France?", tokens=20),
        chat("Is water wet?", tokens=20, shape=Shape(kind="choice", text='["yes, certainly","no, not at all"]')),
        chat("Describe a person as JSON.", tokens=40, shape=SHAPE, temperature=0.8, seed=4),
    ]
    alone = [driver_for(llm).answer(job).text() for job in jobs]
    driver = driver_for(llm)
    asked = [driver.ask(job) for job in jobs]
    driver.run()
    assert [each.text() for each in asked] == alone
