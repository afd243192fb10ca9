"""Types as JSON schemas: msgspec's, with what its types cannot say. Knows types; knows no route."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from service.contract import ONE_OF, Sent
from service.openapi.docstrings import Docstrings

Schema = dict[str, Any]

REF = "#/components/schemas/"
WITHOUT_EFFECT = "Accepted, without effect."
FIRST = ("model", "messages", "prompt", "input")
"""Fields that stand before others, for readers."""
_EMPTY: tuple[Any, ...] = (None, "", [], ())
"""Defaults that say nothing to a reader."""


class Schemas:
    """The schemas of some types. `components` holds the classes that they refer to."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        known = _closed(kinds)
        made, components = msgspec.json.schema_components(known, ref_template=f"{REF}{{name}}")
        self._of = dict(zip(known, made, strict=True))
        self.components = components
        names = _names(known)
        docstrings = Docstrings()
        for name, cls in names.items():
            _explain(components[name], docstrings.of(cls))
        self._resolve()
        shorter = {name: _shorter(name) for name in components if "." in name}
        self.components = {shorter.get(name, name): _renamed(each, shorter) for name, each in components.items()}
        self._of = {kind: _renamed(each, shorter) for kind, each in self._of.items()}

    def of(self, kind: Any) -> Schema:
        schema: Schema = self._of[kind]
        return schema

    def sent(self, sent: Sent) -> Schema:
        """The schema of a body that is read into a struct: an object of its own."""
        name = self._of[sent.kind]["$ref"].removeprefix(REF)
        whole = self.components[name]
        properties = {
            name: _lenient(member, form=sent.is_form) if sent.lenient else member
            for name, member in whole["properties"].items()
            if name not in sent.hidden
        }
        properties |= {name: dict(member) for name, member in sent.members.items()}
        for each, meaning in sent.about.items():
            properties[each] = {**properties[each], "description": meaning}
        for alias, meant in sent.aliases.items():
            properties[alias] = {**properties[meant], "description": f"Another name of {meant}."}
        if sent.unheeded is not None:
            unheeded = self.components[self._of[sent.unheeded]["$ref"].removeprefix(REF)]["properties"]
            properties = {name: {**each, "description": WITHOUT_EFFECT} for name, each in unheeded.items()} | properties
        needs = {"anyOf": [{"required": [each]} for each in sent.needs]} if len(sent.needs) > 1 else {}
        alone = sent.needs if len(sent.needs) == 1 else ()
        required = [*(each for each in whole.get("required", ()) if each not in sent.hidden), *alone]
        first = (*required, *sent.needs, *FIRST)
        return {
            "title": f"{name}Form" if sent.is_form else name,
            "type": "object",
            "properties": dict(sorted(properties.items(), key=lambda member: member[0] not in first)),
            "required": required,
            **needs,
        }

    def drop(self, kinds: Iterable[Any]) -> None:
        """Leave out the components of bodies, which stand where they are used."""
        for kind in kinds:
            self.components.pop(self._of[kind]["$ref"].removeprefix(REF), None)

    def _resolve(self) -> None:
        """Puts references where `one_of` left types, and mends what msgspec leaves of Python in a schema."""
        for schema in _each([self.components, *self._of.values()]):
            if kinds := schema.pop(ONE_OF, None):
                schema["anyOf"] = [self._of[_named(kind)] for kind in kinds]
            if isinstance(pattern := schema.get("pattern"), str):
                schema["pattern"] = pattern.replace("\\Z", "$")  # JSON schemas have JavaScript's expressions.
            if "default" in schema and schema["default"] in _EMPTY:
                del schema["default"]


def _closed(kinds: Iterable[Any]) -> tuple[Any, ...]:
    """These types and those that `one_of` names below them, each once."""
    found: dict[Any, None] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop(0)
        if kind not in found:
            found[kind] = None
            made, components = msgspec.json.schema_components([kind])
            waiting += [_named(inner) for schema in _each([*made, components]) for inner in schema.get(ONE_OF, ())]
    return tuple(found)


def _named(name: str) -> Any:
    """The type that `one_of` has left the name of."""
    module, _, attribute = name.partition(":")
    return getattr(sys.modules[module], attribute)


def _each(value: Any) -> Iterator[Schema]:
    """Every object in a tree of JSON, the outer ones first."""
    if isinstance(value, dict):
        yield value
        for member in list(value.values()):
            yield from _each(member)
    elif isinstance(value, list):
        for entry in value:
            yield from _each(entry)


def _names(kinds: Iterable[Any]) -> dict[str, type]:
    """The classes behind the components, by the names that msgspec gives them: longer where short ones clash."""
    classes: dict[type, None] = {}
    for info in inspect.multi_type_info(kinds):
        _collect(info, classes)
    times = Counter(cls.__name__ for cls in classes)
    return {
        cls.__name__ if times[cls.__name__] == 1 else f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes
    }


def _collect(info: Any, found: dict[type, None]) -> None:
    match info:
        case inspect.Metadata():
            _collect(info.type, found)
        case inspect.UnionType():
            for option in info.types:
                _collect(option, found)
        case inspect.VarTupleType() | inspect.ListType():
            _collect(info.item_type, found)
        case inspect.TupleType():
            for option in info.item_types:
                _collect(option, found)
        case inspect.DictType():
            _collect(info.value_type, found)
        case inspect.StructType() | inspect.TypedDictType() if info.cls not in found:
            found[info.cls] = None
            for field in info.fields:
                _collect(field.type, found)


def _explain(component: Schema, texts: Mapping[str, str]) -> None:
    for name, member in component.get("properties", {}).items():
        if name in texts:
            member.setdefault("description", texts[name])


def _lenient(member: Schema, *, form: bool) -> Schema:
    """A member as service/forms.py takes it. A form has every value of a list in a part of its own."""
    options = [option for option in member.get("anyOf", ()) if option.get("type") != "null"]
    if options:
        nullable = len(options) < len(member["anyOf"])
        numeric = any(option.get("type") in ("number", "integer") for option in options)
        rest = {name: value for name, value in member.items() if name != "anyOf"}
        if nullable and numeric:
            options.append({"const": "off"})
        return {**options[0], **rest} if len(options) == 1 else {"anyOf": options, **rest}
    if member.get("type") == "array" and not form:
        about: Schema = {name: member[name] for name in member if name in ("description", "default")}
        whole = {name: value for name, value in member.items() if name not in about}
        return {"anyOf": [member["items"], whole], **about}
    return member


def _shorter(name: str) -> str:
    """`service.chat.written.Usage` as `chat.Usage`."""
    kept = [part for part in name.split(".")[1:-1] if part not in ("written", "request", "api")]
    return ".".join([*kept, name.rpartition(".")[2]])


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            name: f"{REF}{names.get(member.removeprefix(REF), member.removeprefix(REF))}"
            if name == "$ref" and isinstance(member, str)
            else _renamed(member, names)
            for name, member in value.items()
        }
    return [_renamed(entry, names) for entry in value] if isinstance(value, list) else value
