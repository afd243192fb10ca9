"""OpenAI's own client asks for answers of a shape: parse with pydantic, streams, refusals, the worker's count of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.e2e.server import Server, serving

pytestmark = [pytest.mark.model, pytest.mark.port]

MODEL = "smollm2-135m-instruct"


class Address(BaseModel):
    street: str = Field(max_length=20)
    number: int = Field(ge=1, le=999)


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    colour: Literal["red", "green", "blue"]
    addresses: list[Address] = Field(min_length=1, max_length=2)
    nickname: str | None


ASKED: list[Any] = [{"role": "user", "content": "Invent a person."}]


@pytest.fixture(scope="module")
def server(model_data_dir: Path) -> Iterator[Server]:
    models = ("--whisper-model", "whisper-tiny.en", "--llm-model", MODEL)
    with serving(model_data_dir, *models, "--stall-seconds", "600", "--start-wait", "300") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    options: dict[str, Any] = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_tokens": 160}
    return client.chat.completions.create(**options | fields)


def guided(client: openai.OpenAI, **fields: Any) -> Any:
    return ask(client, extra_body=fields)


def schema_format(schema: Any, name: str = "answer") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def test_a_pydantic_model_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASKED, response_format=Person, temperature=0, max_tokens=200
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)
    told: Any = answer.model_extra
    assert told["starling"]["grammar"] == "enforced"
    assert told["starling"]["forced_tokens"] > 10


def test_a_structured_stream_is_parsed_as_it_comes(client: openai.OpenAI) -> None:
    whole = client.chat.completions.parse(
        model=MODEL, messages=ASKED, response_format=Person, temperature=0, max_tokens=200
    )
    deltas = 0
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, response_format=Person, temperature=0, max_tokens=200
    ) as stream:
        for event in stream:
            deltas += event.type == "content.delta"
        final = stream.get_final_completion()
    assert deltas > 3
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed
    assert final.choices[0].message.content == whole.choices[0].message.content


@pytest.mark.parametrize("seed", range(3))
def test_any_object_is_one_also_at_a_temperature(client: openai.OpenAI, seed: int) -> None:
    answer = ask(client, response_format={"type": "json_object"}, temperature=1.0, seed=seed, max_tokens=60)
    choice = answer.choices[0]
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_guided_fields_shape_chats_and_completions(client: openai.OpenAI) -> None:
    assert guided(client, guided_choice=["yes", "no"]).choices[0].message.content in ("yes", "no")
    assert guided(client, guided_regex="[A-C]{3}-[0-9]{2}").choices[0].message.content[3] == "-"
    assert guided(client, guided_grammar='root ::= "on" | "off"').choices[0].message.content in ("on", "off")
    assert guided(client, structured_outputs={"json": {"enum": [1, 2]}}).choices[0].message.content in "12"
    assert guided(client, guided_choice=["<|im_end|>"]).choices[0].message.content == "<|im_end|>"
    text = client.completions.create(
        model=MODEL, prompt="2 + 2 =", max_tokens=5, temperature=0, extra_body={"guided_regex": " [0-9]{1,2}"}
    )
    assert text.choices[0].text.strip().isdecimal()


def test_recursion_and_nested_arrays(client: openai.OpenAI) -> None:
    tree = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"n": {"enum": [1, 2]}, "below": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["n", "below"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    }
    matrix = {"type": "array", "items": {"type": "array", "items": {"enum": [0, 1]}, "minItems": 2, "maxItems": 2}}
    for schema in (tree, matrix | {"minItems": 2, "maxItems": 2}):
        choice = ask(client, response_format=schema_format(schema), max_tokens=120).choices[0]
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), schema)
        else:
            assert choice.finish_reason == "length"
    assert choice.finish_reason == "stop"


def test_a_cut_answer_says_so(client: openai.OpenAI) -> None:
    """LLM-08"""
    choice = ask(client, response_format=schema_format(Person.model_json_schema()), max_tokens=6).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith('{"name":"')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"response_format": schema_format({"type": "notatype"})}, "unsupported_schema", "response_format"),
        ({"response_format": schema_format({"$ref": "#/nowhere"})}, "unsupported_schema", "response_format"),
        ({"response_format": schema_format({"not": {}})}, "unsupported_schema", "response_format"),
        ({"response_format": schema_format(None)}, "invalid_value", "response_format.json_schema.schema"),
        ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format.type"),
        ({"guided_regex": "a["}, "unsupported_schema", "guided_regex"),
        ({"structured_outputs": {"grammar": "start: nowhere"}}, "unsupported_schema", "structured_outputs.grammar"),
    ],
)
def test_a_shape_that_cannot_be_enforced_is_a_400_before_anything_runs(
    server: Server, stream: bool, fields: dict[str, Any], code: str, param: str
) -> None:
    """LLM-08"""
    body = {"messages": ASKED, "stream": stream, **fields}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert server.stats("llm")["restarts"] == 0


def test_a_hint_is_asked_for_and_told(client: openai.OpenAI) -> None:
    hint = {"json": {"type": "array", "uniqueItems": True}, "fallback": "hint"}
    answer = ask(client, max_tokens=4, extra_body={"structured_outputs": hint})
    assert answer.model_extra["starling"]["grammar"] == "hint"
    assert answer.usage.prompt_tokens > ask(client, max_tokens=1).usage.prompt_tokens


def test_shaped_and_plain_answers_at_once_are_what_they_are_alone(server: Server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    bodies = [
        {"response_format": schema_format(Person.model_json_schema())},
        {},
        {"guided_choice": ["certainly", "by no means"]},
        {"messages": [{"role": "user", "content": "Repeat: one two three four five six seven eight nine ten."}]},
    ]

    def said(fields: dict[str, Any]) -> str:
        body = {"messages": ASKED, "temperature": 0, "max_tokens": 40, **fields}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json()
        return str(reply["choices"][0]["message"]["content"])

    alone = [said(fields) for fields in bodies]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(said, bodies)) == alone
