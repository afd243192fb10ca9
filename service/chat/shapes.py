"""What an answer must look like, as OpenAI (`response_format`) and vLLM (`guided_*`, `structured_outputs`) ask for it.

Knows the fields and the rules between them; knows no grammar: whether one can be enforced is the worker's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, structs

from protocol.errors import InvalidValue, MissingField
from protocol.jobs import Sampling, Shape
from service import forms

ANY_OBJECT = '{"type":"object"}'

Schema = Annotated[dict[str, Any] | str, Meta(description="a JSON schema, as an object or as text")]
Choices = Annotated[tuple[str, ...], Meta(min_length=1)]


SchemaName = Annotated[
    str,
    Meta(pattern="^[A-Za-z0-9_-]{1,64}\\Z", description="a name of 1 to 64 letters, digits, underscores and dashes"),
]


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True):
    name: SchemaName
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    """Without effect: a schema is always enforced, or refused."""


class ResponseFormat(msgspec.Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """One of the first five."""

    json: Schema | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    fallback: Literal["hint"] | None = None
    """What cannot be enforced is put into the prompt, instead of being refused."""


class Shaped(Sampling, frozen=True, kw_only=True):
    """The fields of a request that shape its answer, after those that choose its tokens."""

    response_format: ResponseFormat | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None

    def shape(self) -> Shape | None:
        """As the job has it. Raises MissingField or InvalidValue for what is no shape, or more than one."""
        found = [*_formatted(self.response_format), *self._guided(), *_structured(self.structured_outputs)]
        if len(found) > 1:
            first, second = (str(shape.param) for shape in found[:2])
            raise InvalidValue(f"{first} and {second} cannot be given together: an answer has one shape", param=second)
        return found[0] if found else None

    def _guided(self) -> Iterator[Shape]:
        yield from _one("guided_json", self.guided_json)
        yield from _one("guided_regex", self.guided_regex)
        yield from _one("guided_choice", self.guided_choice)
        yield from _one("guided_grammar", self.guided_grammar)


def _formatted(asked: ResponseFormat | None) -> Iterator[Shape]:
    if asked is None or asked.type == "text":
        return
    if asked.type == "json_object":
        yield Shape(kind="json", text=ANY_OBJECT, param="response_format")
        return
    if asked.json_schema is None:
        raise MissingField("response_format.json_schema is missing", param="response_format.json_schema")
    yield Shape(kind="json", text=_text(asked.json_schema.schema), param="response_format")


def _structured(asked: StructuredOutputs | None) -> Iterator[Shape]:
    if asked is None:
        return
    found = [
        shape
        for name in ("json", "regex", "choice", "grammar")
        for shape in _one(f"structured_outputs.{name}", getattr(asked, name))
    ]
    if asked.json_object:
        found.append(Shape(kind="json", text=ANY_OBJECT, param="structured_outputs.json_object"))
    if not found:
        allowed = "one of json, regex, choice, grammar and json_object"
        raise MissingField(f"structured_outputs must have {allowed}", param="structured_outputs")
    yield from (structs.replace(shape, hint=asked.fallback == "hint") for shape in found)


def _one(name: str, value: Any) -> Iterator[Shape]:
    """The shape that a field of this name gives."""
    if value is None:
        return
    match name.removeprefix("guided_").removeprefix("structured_outputs."):
        case "json":
            yield Shape(kind="json", text=_schema(name, value), param=name)
        case "regex":
            yield Shape(kind="regex", text=value, param=name)
        case "choice":
            yield Shape(kind="choice", text=_text(value), param=name)
        case _:
            yield Shape(kind="lark", text=value, param=name)


def _schema(name: str, value: dict[str, Any] | str) -> str:
    if isinstance(value, dict):
        return _text(value)
    try:
        known = isinstance(msgspec.json.decode(value), dict)
    except (msgspec.DecodeError, RecursionError):
        known = False
    if not known:
        raise forms.wrong(name, value, "a JSON schema, as an object or as text")
    return value


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
