"""What grammars of JSON, and formats that write arguments one by one, need to know of a JSON schema."""

from __future__ import annotations

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


def unenforceable(schema: Any) -> str | None:
    """What llguidance would take and not hold an answer to; None: nothing that is known."""
    for each in _schemas(schema):
        least, required = each.get("minProperties"), each.get("required")
        named = len(required) if isinstance(required, list) else 0
        # A name may come twice, and whoever reads the object finds it once.
        if isinstance(least, int) and least > named + 1:
            return f"minProperties ({least}) asks for more than one property beyond those that are required"
    return None


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
