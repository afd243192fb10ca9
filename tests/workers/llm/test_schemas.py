"""Random schemas: each gives a valid answer or is refused before it begins; none gives an invalid one."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from protocol.errors import UnsupportedSchema
from protocol.events import Failed, Generated
from protocol.jobs import Shape
from tests.workers.llm.schemas import schema
from tests.workers.llm.toy import chat

ENOUGH = 60
"""Tokens after which whatever ends something is preferred."""
MOST = 800
ENDING = frozenset(b'"}],')


@pytest.fixture(scope="module")
def tokenizer(fast_blas: Any) -> Any:
    from tests.workers.llm.toy_tokenizers import byte_level

    return byte_level('{"', '":', '","', '"}', "name", "12", "é", "}]", "\\", "null")


def shape(described: Any) -> Shape:
    return Shape(kind="json", text=json.dumps(described))


def check(answer: str, described: Any) -> None:
    validator = jsonschema.Draft202012Validator
    validator(described, format_checker=validator.FORMAT_CHECKER).validate(json.loads(answer))


def babble(led: Any, tokenizer: Any, chance: random.Random) -> str | None:
    """An answer of tokens chosen by chance, a byte each as a rule; None: it did not come to an end."""
    said: list[int] = []
    while not led.over:
        forced = led.forced()
        if not forced:
            able = led.allowed().nonzero()[0]
            if tokenizer.eos_token_id in able and (len(able) == 1 or chance.random() < 0.5):
                break
            closing = [token for token in able if token in ENDING or token == tokenizer.eos_token_id]
            forced = [int(chance.choice(closing if len(said) > ENOUGH and closing else list(able)))]
            if forced[0] == tokenizer.eos_token_id:
                break
        for token in forced:
            said.append(token)
            led.take(token)
        if len(said) > MOST:
            return None
    return str(tokenizer.decode(said))


def test_two_hundred_random_schemas_give_valid_answers_or_are_refused(tokenizer: Any) -> None:
    from workers.llm.grammar import Grammars
    from workers.llm.guide import Guide

    grammars = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id], entries=4)
    chance = random.Random(6)
    refused = unfinished = 0
    for _ in range(200):
        described = schema(chance)
        asked = grammars.ask(shape(described))
        asked.wait(30)
        try:
            grammar = asked.grammar()
        except UnsupportedSchema:
            refused += 1
            continue
        answer = babble(Guide(grammar), tokenizer, chance)
        if answer is None:
            unfinished += 1
            continue
        try:
            check(answer, described)
        except (ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"{answer!r} is not {json.dumps(described)}") from error
    assert 20 < refused < 120
    assert unfinished < 6


@pytest.mark.model
def test_the_starter_answers_random_schemas_validly_as_far_as_it_gets(llm: Any) -> None:
    from tests.workers.llm.test_real_shapes import driver_for

    chance = random.Random(7)
    driver, complete_answers = driver_for(llm), 0
    schemas = [schema(chance, 3) for _ in range(24)]
    asked = [driver.ask(chat("Invent some data.", shape=shape(each), tokens=48)) for each in schemas]
    driver.run()
    for described, each in zip(schemas, asked, strict=True):
        if isinstance(each.last, Failed):
            assert each.last.kind == "unsupported_schema" and len(each.events) == 1
            continue
        assert isinstance(each.last, Generated)
        if each.ended[0].reason == "stop":
            complete_answers += 1
            check(each.text(), described)
    assert complete_answers > 4
