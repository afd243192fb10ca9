"""What formats that write arguments one by one need to know of a property's JSON schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
