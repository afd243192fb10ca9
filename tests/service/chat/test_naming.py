"""A refusal whose field is called otherwise where it was asked."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidValue, UnsupportedSchema
from service.chat.naming import renamed
from service.responses.request import NAMES


@pytest.mark.parametrize(
    ("message", "param", "told", "named"),
    [
        (
            "tools[0].function.name: a is there twice",
            "tools[0].function.name",
            "tools[0].name: a is there twice",
            "tools[0].name",
        ),
        ("response_format: no such type", "response_format", "text.format: no such type", "text.format"),
        ("the template refuses these messages", "messages", "the template refuses these messages", "input"),
        ("no field at fault, .function", None, "no field at fault, .function", None),
    ],
)
def test_the_field_s_name_is_the_other_protocol_s(
    message: str, param: str | None, told: str, named: str | None
) -> None:
    refusal = renamed(InvalidValue(message, param=param), NAMES)
    assert (refusal.message, refusal.param) == (told, named)


def test_its_kind_and_its_hint_about_retries_stay() -> None:
    refusal = renamed(UnsupportedSchema("x", param="response_format", retry=False), NAMES)
    assert (type(refusal), refusal.retry) == (UnsupportedSchema, False)
