"""What grammars of JSON, and formats that write arguments one by one, need to know of a JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/]+)")


def resolved(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """What a schema says or, if it is a reference into `root`, what is said there. No schema at all allows anything."""
    found = schema if isinstance(schema, dict) else {}
    reference = _REFERENCE.fullmatch(str(found.get("$ref", "")))
    group = root.get(reference[1]) if reference is not None else None
    there = group.get(reference[2]) if reference is not None and isinstance(group, dict) else None
    return dict(there) if isinstance(there, dict) else dict(found)


def properties(parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A tool's arguments by name, each resolved."""
    return {name: resolved(schema, parameters) for name, schema in parameters.get("properties", {}).items()}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Only strings fit, as the parsers of such formats see it."""
    kind = schema.get("type")
    if kind is None:
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        return bool(choices) and all(isinstance(each, str) for each in choices or ())
    return bool(kind == "string")


def is_scalar(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("string", "integer", "number", "boolean", "null")


_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Their members are schemas under names that somebody chose."""
_DATA: Final = ("const", "enum", "default", "examples", "required", "x-guidance")
"""What they hold is no schema."""


_EXACT: Final = 2**53
"""Up to it a 64-bit float, which llguidance holds numbers in, is every whole number."""
_CONTROL: Final = re.compile(r"\\u00[01]")
_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "maximum": (1, 0),
    "minimum": (-1, 0),
    "exclusiveMaximum": (1, 1),
    "exclusiveMinimum": (-1, 1),
}
"""On which side of it nothing fits, and how far from it the first whole number is that does."""
_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
"""llguidance's whole numbers end there."""


def has_open_names(schema: Any) -> bool:
    """Whether an object may have other names beside those that say something about their values."""
    return any(
        (each.get("properties") or each.get("patternProperties")) and each.get("additionalProperties") is not False
        for each in _schemas(schema)
    )


def unenforceable(schema: Any) -> str | None:
    """What llguidance would take and not hold an answer to; None: nothing that is known."""
    if has_open_names(schema) and _CONTROL.search(json.dumps(schema, ensure_ascii=False)):
        return "control characters beside additionalProperties: names could be written in several ways"
    for each in _schemas(schema):
        if (number := _inexact(each)) is not None:
            return f"whole numbers over 2**53 are not held exactly: {number}"
        least, required = each.get("minProperties"), each.get("required")
        named = len(required) if isinstance(required, list) else 0
        # A name may come twice, and whoever reads the object finds it once.
        if isinstance(least, int) and least > named + 1:
            return f"minProperties ({least}) asks for more than one property beyond those that are required"
    return None


def _inexact(schema: Mapping[str, Any]) -> float | None:
    """A number of a schema that llguidance would round so that wrong answers fit."""
    values: list[Any] = [schema.get("const"), schema.get("enum")]
    while values:
        value = values.pop()
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int) and abs(value) > _EXACT:
            return value
    whole = schema.get("type") == "integer"
    for name, (side, away) in _BOUNDS.items():
        bound = schema.get(name)
        if isinstance(bound, int) and abs(bound) > _EXACT and not _is_held(bound, side, away if whole else None):
            return bound
    step = schema.get("multipleOf")
    return step if isinstance(step, int) and step > _EXACT else None


def _is_held(bound: int, side: int, away: int | None) -> bool:
    """Whether what llguidance makes of a bound lets nothing through that is beyond it. away: as in _BOUNDS, where only
    whole numbers fit."""
    try:
        held = float(bound)
    except OverflowError:
        return False
    if away is None:
        return side * int(held) <= side * bound
    last = min(max(int(held - side * away), _LEAST), _MOST)
    return side * last <= side * bound - away


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and all schemas in it, however deep."""
    left = [schema]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            yield each
            for key, value in each.items():
                if key in _NAMED and isinstance(value, dict):
                    left += value.values()
                elif key not in _DATA:
                    left.append(value)
