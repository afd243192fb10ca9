"""The fields that shape an answer: what the worker is told of them, and which are no shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.errors import Failure
from protocol.jobs import Shape
from service.chat.request import read_chat, read_completion

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))


def shape(**fields: Any) -> Shape | None:
    chat = read_chat({"messages": HI, **fields})[0].job("me", trace=False).generation.shape
    (job,) = read_completion({"prompt": "Once", **fields})[0].jobs("me", trace=False)
    assert job.generation.shape == chat
    return chat


def wrong(**fields: Any) -> tuple[str, str | None]:
    with pytest.raises(Failure) as chat:
        read_chat({"messages": HI, **fields})
    with pytest.raises(Failure) as text:
        read_completion({"prompt": "Once", **fields})
    assert str(chat.value) == str(text.value)
    return chat.value.kind.value, chat.value.param


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"response_format": None, "guided_json": None}, None),
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_object"}},
            Shape(kind="json", text='{"type":"object"}', param="response_format"),
        ),
        (
            {"response_format": schema_format(SCHEMA, strict=True, description="it")},
            Shape(kind="json", text=TEXT, param="response_format"),
        ),
        ({"guided_json": SCHEMA}, Shape(kind="json", text=TEXT, param="guided_json")),
        ({"guided_json": json.dumps(SCHEMA)}, Shape(kind="json", text=json.dumps(SCHEMA), param="guided_json")),
        ({"guided_json": {}}, Shape(kind="json", text="{}", param="guided_json")),
        ({"guided_regex": "a+"}, Shape(kind="regex", text="a+", param="guided_regex")),
        ({"guided_choice": ["a", "é"]}, Shape(kind="choice", text='["a","é"]', param="guided_choice")),
        ({"guided_grammar": "root ::= x"}, Shape(kind="lark", text="root ::= x", param="guided_grammar")),
        (
            {"structured_outputs": {"regex": "a+"}},
            Shape(kind="regex", text="a+", param="structured_outputs.regex"),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "fallback": "hint"}},
            Shape(kind="json", text=TEXT, param="structured_outputs.json", hint=True),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            Shape(kind="json", text='{"type":"object"}', param="structured_outputs.json_object"),
        ),
        (
            {"structured_outputs": {"choice": ["a"]}},
            Shape(kind="choice", text='["a"]', param="structured_outputs.choice"),
        ),
        (
            {"structured_outputs": {"grammar": "start: A"}},
            Shape(kind="lark", text="start: A", param="structured_outputs.grammar"),
        ),
    ],
)
def test_an_answer_s_shape_is_told_as_it_was_asked_for(fields: dict[str, Any], wanted: Shape | None) -> None:
    assert shape(**fields) == wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": None}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"fallback": "hint"}}, "structured_outputs"),
    ],
)
def test_what_is_missing_is_named(fields: dict[str, Any], param: str) -> None:
    assert wrong(**fields) == ("missing_field", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": schema_format(None)}, "response_format.json_schema.schema"),
        ({"response_format": schema_format([])}, "response_format.json_schema.schema"),
        ({"response_format": schema_format({}) | {"json_schema": {"name": "a b", "schema": {}}}},
         "response_format.json_schema.name"),
        ({"guided_json": "not JSON"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": 1}, "guided_json"),
        ({"guided_regex": 1}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_grammar": {}}, "guided_grammar"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "fallback": "drop"}}, "structured_outputs.fallback"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ],
)  # fmt: skip
def test_what_is_no_shape_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert wrong(**fields) == ("invalid_value", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": {}, "structured_outputs": {"json": {}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
    ],
)
def test_an_answer_has_one_shape(fields: dict[str, Any], param: str) -> None:
    assert wrong(**fields) == ("invalid_value", param)
