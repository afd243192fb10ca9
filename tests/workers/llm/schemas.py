"""Random JSON schemas, of what people write and of what cannot be enforced."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("name", "age", "tags", "address", "id", "kind", "größe", 'a "quoted" key', "x-y")
FORMATS = (
    "date",
    "date-time",
    "time",
    "email",
    "ipv4",
    "ipv6",
    "uuid",
    "hostname",
    "uri",
    "duration",
    "no-such-format",
)
PATTERNS = ("^[A-Z]{2}[0-9]{3}$", "^(foo|bar)+$", "[a-c]x", "^\\d+$", "(?=a)b")


def schema(chance: random.Random, depth: int = 3) -> Any:
    """A schema with at most `depth` levels of nesting."""
    made = _root(chance, depth)
    if chance.random() < 0.15:
        made = {
            "$defs": {"node": _node()},
            "type": "object",
            "properties": {"first": made, "tree": {"$ref": "#/$defs/node"}},
            "required": ["first", "tree"],
            "additionalProperties": False,
        }
    return made


def _root(chance: random.Random, depth: int) -> Any:
    plain = (_string, _integer, _number, _boolean, _null, _enum, _several)
    nested = (_object, _object, _object, _array, _any_of, _all_of, _odd)
    kinds = nested if depth == 3 else plain + nested if depth > 0 else plain
    return chance.choice(kinds)(chance, depth)


def _node() -> Any:
    below = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    return {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": below},
        "required": ["value", "next"],
        "additionalProperties": False,
    }


def _some(chance: random.Random, made: dict[str, Any], **more: Any) -> dict[str, Any]:
    return made | {name: value for name, value in more.items() if chance.random() < 0.3}


def _string(chance: random.Random, depth: int) -> Any:
    made = {"type": "string"}
    match chance.randrange(4):
        case 0:
            return made | {"pattern": chance.choice(PATTERNS)}
        case 1:
            return made | {"format": chance.choice(FORMATS)}
        case 2:
            least = chance.randrange(4)
            return _some(chance, made, minLength=least, maxLength=least + chance.randrange(5))
    return made


def _integer(chance: random.Random, depth: int) -> Any:
    least = chance.randrange(-50, 50)
    return _some(
        chance,
        {"type": "integer"},
        minimum=least,
        maximum=least + chance.randrange(-2, 200),
        multipleOf=chance.choice([2, 5, 7]),
    )


def _number(chance: random.Random, depth: int) -> Any:
    least = chance.randrange(-500, 500) / 10
    return _some(chance, {"type": "number"}, exclusiveMinimum=least, maximum=least + chance.randrange(1, 100) / 4)


def _boolean(chance: random.Random, depth: int) -> Any:
    return {"type": "boolean"}


def _null(chance: random.Random, depth: int) -> Any:
    return {"type": "null"}


def _enum(chance: random.Random, depth: int) -> Any:
    values = ["red", "green", "ro\u0308t", 'say "hi"', 3, -2.5, True, None, {"a": [1, 2]}, []]
    return {"const": chance.choice(values)} if chance.random() < 0.3 else {"enum": chance.sample(values, 3)}


def _several(chance: random.Random, depth: int) -> Any:
    return {"type": chance.sample(["string", "integer", "boolean", "null"], 2)}


def _object(chance: random.Random, depth: int) -> Any:
    names = chance.sample(NAMES, chance.randrange(1, 5))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: _root(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.7],
    }
    if chance.random() < 0.7:
        made["additionalProperties"] = chance.choice([False, False, {"type": "integer"}])
    return _some(chance, made, title="T", description="D") | (
        chance.choice([{"minProperties": 1}, {"patternProperties": {"^p": {"type": "string"}}}, {"propertyNames": {}}])
        if chance.random() < 0.15
        else {}
    )


def _array(chance: random.Random, depth: int) -> Any:
    least = chance.randrange(3)
    made = {"type": "array", "items": _root(chance, depth - 1)}
    if chance.random() < 0.2:
        made |= {"prefixItems": [_root(chance, 0)]}
    if chance.random() < 0.1:
        made |= chance.choice([{"uniqueItems": True}, {"contains": {"type": "null"}}])
    return made | {"minItems": least, "maxItems": least + chance.randrange(3)}


def _any_of(chance: random.Random, depth: int) -> Any:
    return {chance.choice(["anyOf", "anyOf", "oneOf"]): [_root(chance, depth - 1) for _ in range(2)]}


def _all_of(chance: random.Random, depth: int) -> Any:
    return {"allOf": [_object(chance, depth - 1), _object(chance, depth - 1)]}


def _odd(chance: random.Random, depth: int) -> Any:
    """What llguidance does not know, or no schema at all."""
    below = _root(chance, depth - 1)
    return chance.choice(
        [
            {"not": below},
            {"if": below, "then": {}, "else": {}},
            {"type": "object", "dependentRequired": {"a": ["b"]}},
            {"type": "nothing"},
            {"$ref": "#/$defs/nowhere"},
            {"enum": []},
            {"type": "object", "properties": [1]},
            {},
            True,
        ]
    )
