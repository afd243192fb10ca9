"""What a client sent, into a typed struct: one pass that reads forms, one conversion, one pass that words the error.

Knows types and their limits; knows no endpoint and what no field means.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import inspect

from protocol.errors import InvalidValue

T = TypeVar("T", bound=msgspec.Struct)

MAX_IGNORED = 20
"""Names told in x-starling-ignored."""

SHOWN = 100
"""Characters of a wrong value that a message repeats."""

_BOOLS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_NAME = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")
_PATH = re.compile(r" - at `\$\.(\w+)")


@dataclass(frozen=True)
class Entry:
    """One field as it was sent. `name` as the client wrote it, brackets included."""

    name: str
    value: Any

    @property
    def base(self) -> str:
        found = _NAME.fullmatch(self.name)
        return found[1] if found else self.name

    @property
    def key(self) -> str | None:
        """The part in brackets that names a member: `type` of `chunking_strategy[type]`."""
        found = _NAME.fullmatch(self.name)
        inner = found[2] if found else None
        return None if not inner or inner.isdecimal() else inner


@dataclass(frozen=True)
class Given:
    """All fields of a request. In a form every value is text; JSON has types of its own."""

    entries: tuple[Entry, ...]
    form: bool


@dataclass
class _Slot:
    """What was given for one field of the struct. `said`: the name that the client used first."""

    said: str
    values: list[Any] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    """The values as a list's entries."""
    members: dict[str, Any] = field(default_factory=dict)


def decode(kind: type[T], given: Given, aliases: Mapping[str, str]) -> tuple[T, list[str]]:
    """The typed request, and the names of the fields that it does not have.

    `aliases` maps other names of a field to its own. Raises InvalidValue for the first field with a wrong value.
    """
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    types = {entry.name: entry.type for entry in info.fields}
    slots, ignored = _sort(given, types, aliases)
    values: dict[str, Any] = {}
    for name, slot in slots.items():
        value = _value(slot, types[name], given.form)
        if isinstance(value, dict):
            ignored += [f"{slot.said}.{key}" for key in value if key not in _members(types[name])]
        if value != [] or not _is_list(types[name]):
            values[name] = value
    try:
        return msgspec.convert(values, kind), ignored
    except msgspec.ValidationError as error:
        found = _PATH.search(str(error))
        assert found is not None, f"msgspec names no field: {error}"
        slot = slots[found[1]]
        told = slot.members or (slot.values[0] if len(slot.values) == 1 else slot.values)
        raise wrong(slot.said, told, describe(types[found[1]])) from None


def wrong(name: str, value: object, allowed: str) -> InvalidValue:
    """The message for a field with a wrong value: the field, the value (cut) and what is allowed."""
    shown = value if isinstance(value, str) else _shown(value)
    if len(shown) > SHOWN:
        shown = shown[:SHOWN] + "…"
    return InvalidValue(f"{name} must be {allowed}, not {shown!r}", param=name)


def kind_of(value: object) -> str:
    """What a value of JSON's is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _sort(
    given: Given, types: Mapping[str, inspect.Type], aliases: Mapping[str, str]
) -> tuple[dict[str, _Slot], list[str]]:
    """Entries by the field they belong to, without those that mean its default; and the names that belong to none."""
    slots: dict[str, _Slot] = {}
    ignored: list[str] = []
    times = Counter(entry.base for entry in given.entries)
    for entry in given.entries:
        name = aliases.get(entry.base, entry.base)
        if name not in types or (entry.key is not None and entry.key not in _members(types[name])):
            ignored.append(entry.name)
            continue
        if entry.value is None or entry.value == "" or (entry.value == [] and _is_list(types[name])):
            continue
        if isinstance(entry.value, str) and any("\ud800" <= letter <= "\udfff" for letter in entry.value):
            raise InvalidValue(f"{entry.base} is no valid UTF-8", param=entry.base)
        slot = slots.setdefault(name, _Slot(entry.base))
        if entry.key is None:
            slot.values.append(entry.value)
            slot.items += _items(entry.value, alone=times[entry.base] == 1)
        else:
            slot.members[entry.key] = entry.value
    return slots, ignored


def _value(slot: _Slot, kind: inspect.Type, form: bool) -> Any:
    """The value to convert. What cannot be read stays as it came, for the conversion to refuse."""
    if _is_list(kind):
        return [_read(item, kind.item_type, form) for item in slot.items]
    if slot.members:
        if slot.values:
            raise InvalidValue(f"{slot.said} was given as a whole and in parts", param=slot.said)
        return _read_members(slot.members, kind, form)
    first = slot.values[0]
    if any(value != first for value in slot.values[1:]):
        raise InvalidValue(f"{slot.said} was given {len(slot.values)} times with different values", param=slot.said)
    if isinstance(first, str) and first.lstrip().startswith("{") and _has_members(kind):
        try:
            return msgspec.json.decode(first)
        except (msgspec.DecodeError, RecursionError):
            return first
    return _read(first, kind, form)


def _items(value: Any, *, alone: bool) -> Iterable[Any]:
    """One value of a list field as entries: a list's are its own, a text `alone` under its name is split at commas."""
    if isinstance(value, str) and alone:
        value = value.split(",")
    inner = value if isinstance(value, list) else [value]
    return [item.strip() if isinstance(item, str) else item for item in inner if not _blank(item)]


def _blank(item: object) -> bool:
    return isinstance(item, str) and not item.strip()


def _read_members(members: Mapping[str, Any], kind: inspect.Type, form: bool) -> dict[str, Any]:
    types = _members(kind)
    return {key: _read(value, types[key], form) for key, value in members.items() if value != ""}


def _members(kind: inspect.Type) -> dict[str, inspect.Type]:
    """Of an object, by their names; none of anything else."""
    return {
        entry.name: entry.type
        for option in _options(kind)
        if isinstance(option, inspect.StructType)
        for entry in option.fields
    }


def _read(value: Any, kind: inspect.Type, form: bool) -> Any:
    """A form's text as the type's own value; JSON's values as they are, except that `off` ends a threshold."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if not isinstance(value, str):
        return value
    options = _options(kind)
    text = value.strip()
    numeric = any(isinstance(option, inspect.FloatType | inspect.IntType) for option in options)
    if numeric and text.lower() == "off" and any(isinstance(option, inspect.NoneType) for option in options):
        return None
    if not form:
        return value
    for option in options:
        match option:
            case inspect.BoolType():
                return _BOOLS.get(text.lower(), value)
            case inspect.IntType() if _INTEGER.fullmatch(text):
                return int(text)
            case inspect.FloatType() if (found := number(text)) is not None:
                return found
            case inspect.LiteralType() if text in option.values:
                return text
    return value


def number(text: str) -> float | None:
    """A form's finite number; None: it is none."""
    found = float(text) if _DECIMAL.fullmatch(text) else math.inf
    return found if math.isfinite(found) else None


def _options(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _is_list(kind: inspect.Type) -> TypeGuard[inspect.VarTupleType]:
    return isinstance(kind, inspect.VarTupleType)


def _has_members(kind: inspect.Type) -> bool:
    return any(isinstance(option, inspect.StructType) for option in _options(kind))


def describe(kind: inspect.Type) -> str:
    """What a field's type allows, in words; its limits come from the type alone."""
    match kind:
        case inspect.UnionType():
            said = [describe(option) for option in kind.types if not isinstance(option, inspect.NoneType)]
            numeric = any(isinstance(option, inspect.FloatType | inspect.IntType) for option in kind.types)
            return " or ".join(said + (['"off"'] if numeric and len(said) < len(kind.types) else []))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "an integer" + _limits(kind)
        case inspect.FloatType():
            return "a number" + _limits(kind)
        case inspect.LiteralType():
            names = ", ".join(str(value) for value in kind.values)
            return names if len(kind.values) == 1 else f"one of {names}"
        case inspect.VarTupleType():
            most = "" if kind.max_length is None else f"at most {kind.max_length} "
            return f"{describe(kind.item_type)}, or a list of {most}such"
        case inspect.StructType():
            return "an object {" + "; ".join(f"{entry.name}: {describe(entry.type)}" for entry in kind.fields) + "}"
        case _:
            return "text"


def _limits(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge:g} to {kind.le:g}"
    bounds = [("over", kind.gt), ("at least", kind.ge), ("under", kind.lt), ("at most", kind.le)]
    said = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
    return " " + " and ".join(said) if said else ""


def ignored_header(names: Iterable[str]) -> str | None:
    """The value of x-starling-ignored: names in the order given, each once, escaped; None when there are none."""
    known = list(dict.fromkeys(names))[:MAX_IGNORED]
    return ", ".join(quote(name[:SHOWN], safe="[]", errors="replace") or '""' for name in known) or None
