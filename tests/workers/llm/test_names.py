"""Names in JSON answers: none is written otherwise than usual, however the text is cut into tokens."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.llm.names import Place, Spellings, Writing

NAMES = st.text(alphabet='a/"\\\n{}[]:,é', min_size=1, max_size=4)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def written(value: Any, chance: random.Random, *, names: bool) -> tuple[str, bool]:
    """JSON of `value`, some letters of its strings, if wanted of its names too, escaped without need; and whether a
    letter of a name is."""
    if isinstance(value, str):
        return string(value, chance, otherwise=True)[0], False
    if isinstance(value, list):
        found = [written(each, chance, names=names) for each in value]
        return f"[{','.join(text for text, _ in found)}]", any(other for _, other in found)
    if isinstance(value, dict):
        keys = [string(name, chance, otherwise=names) for name in value]
        found = [written(each, chance, names=names) for each in value.values()]
        members = ",".join(f"{key}:{text}" for (key, _), (text, _) in zip(keys, found, strict=True))
        return "{" + members + "}", any(other for _, other in (*keys, *found))
    return json.dumps(value), False


def string(text: str, chance: random.Random, *, otherwise: bool) -> tuple[str, bool]:
    pieces, other = [], False
    for letter in text:
        usual = json.dumps(letter, ensure_ascii=False)[1:-1]
        if otherwise and chance.random() < 0.3:
            usual, other = (r"\/" if letter == "/" and chance.random() < 0.5 else f"\\u{ord(letter):04x}"), True
        pieces.append(usual)
    return f'"{"".join(pieces)}"', other


@given(value=VALUES, seed=st.integers(0, 2**32), names=st.booleans())
@settings(max_examples=400, deadline=None)
def test_a_name_that_is_written_otherwise_is_noticed_wherever_tokens_end(value: Any, seed: int, names: bool) -> None:
    chance = random.Random(seed)
    text, otherwise = written(value, chance, names=names)
    data = text.encode()
    places = sorted({0, len(data), *(chance.randrange(len(data) + 1) for _ in range(6))})
    tokens = [data[start:end] for start, end in pairwise(places)]
    writing, place, fits = Writing(Spellings(tokens)), Place(), True
    for token, piece in enumerate(tokens):
        allowed = np.ones(len(tokens), np.bool_)
        writing.narrow(allowed)
        assert [writing.fits([each]) == 1 for each in range(len(tokens))] == allowed.tolist()
        if not allowed[token]:
            fits = False
            break
        writing.take(token)
        assert place.feed(piece)
    assert fits is not otherwise


OPEN = {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"]}


@pytest.fixture(scope="module")
def tokenizer(fast_blas: Any) -> Any:
    from tests.workers.llm.toy_tokenizers import byte_level

    return byte_level('{"', '":', '","', '","\\u', "\\u", "name", "0076", '\\"')


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (r'{"v":1,"\u0076":"x"}', False),
        (r'{"v":1,"w\u0076":"x"}', False),
        (r'{"v":1,"a\/b":"x"}', False),
        (r'{"v":1,"w":{"\u0076":"x"}}', False),
        (r'{"v":1,"w":"\u001f","x":["/",{"y":"\u001f"}]}', True),
        (r'{"v":1,"a\n\"b":"x"}', True),
    ],
)
def test_a_declared_name_cannot_be_said_twice(tokenizer: Any, text: str, fits: bool) -> None:
    """LLM-08"""
    from protocol.jobs import Shape
    from workers.llm.grammar import Grammars
    from workers.llm.guide import Guide

    grammars = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    asked = grammars.ask(Shape(kind="json", text=json.dumps(OPEN)))
    asked.wait(20)
    for tokens in (tokenizer.encode(text, add_special_tokens=False), list(text.encode())):
        led = Guide(asked.grammar())
        assert led.fits(tokens) == len(tokens) or not fits
        said = 0
        for token in tokens:
            allowed = led.allowed()
            assert allowed is not None
            assert led.may(token) == allowed[token] == (led.fits([token]) == 1)
            if not allowed[token]:
                break
            led.take(token)
            said += 1
        assert (said == len(tokens)) is fits
