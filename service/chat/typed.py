"""JSON members into a typed struct; what is wrong is named by its place in the body, as `messages[0].role`.

The counterpart of service/forms.py for bodies that have depth. Knows types; knows no field's meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from protocol.errors import InvalidValue, MissingField
from service import forms

T = TypeVar("T", bound=msgspec.Struct)

_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]+)`")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|([^.\[\]]+)")


def decode(
    kind: type[T], members: Mapping[str, Any], unheeded: type[msgspec.Struct] | None = None
) -> tuple[T, list[str]]:
    """The typed value, and the names of members that it does not have, at any depth.

    null means the default. `unheeded` has the top-level members that are known and have no effect.
    Raises MissingField or InvalidValue, with the place as `param`.
    """
    made, unknown = _decoded(kind, members)
    if unheeded is None:
        return made, unknown
    known = {name: value for name, value in members.items() if name in unheeded.__struct_fields__}
    return made, [name for name in unknown if name not in known] + _decoded(unheeded, known)[1]


def _decoded(kind: type[T], members: Mapping[str, Any]) -> tuple[T, list[str]]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    types = {field.name: field.type for field in info.fields}
    values = {
        name: _whole(value, types[name]) for name, value in members.items() if name in types and value is not None
    }
    unknown = list(_unknown(members, info, ""))
    try:
        made = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _worded(str(error), values, info) from None
    _check_sendable(values)
    return made, unknown


def _whole(value: Any, kind: inspect.Type) -> Any:
    """JSON knows one kind of number: 1e9 is an integer where one is wanted."""
    wanted = any(isinstance(option, inspect.IntType) for option in _options(kind))
    return int(value) if wanted and isinstance(value, float) and value.is_integer() else value


def _worded(error: str, values: Mapping[str, Any], info: inspect.Type) -> InvalidValue | MissingField:
    """msgspec's error in the words of service/forms.py."""
    found = _PLACE.search(error)
    place = found[1] if found else ""
    if missing := _MISSING.search(error):
        name = f"{place}.{missing[1]}" if place else missing[1]
        return MissingField(f"{name} is missing", param=name)
    value: Any = values
    for index, name in _STEP.findall(place):
        if index == "...":
            # A member of an object whose names are the client's own: msgspec does not say which.
            place = place.partition("[...]")[0]
            break
        value = value[int(index)] if index else value.get(name)
        info = _below(info, index=bool(index), name=name)
    return forms.wrong(place, value, _allowed(info))


def _below(kind: inspect.Type, *, index: bool, name: str) -> inspect.Type:
    """The type of an entry or a member."""
    for option in _options(kind):
        if index and isinstance(option, inspect.VarTupleType):
            return option.item_type
        if not index and isinstance(option, inspect.StructType):
            return next((field.type for field in option.fields if field.encode_name == name), inspect.AnyType())
    return inspect.AnyType()


def _allowed(kind: inspect.Type) -> str:
    """In words: the type's own description where it has one."""
    if isinstance(kind, inspect.Metadata):
        said = (kind.extra_json_schema or {}).get("description")
        return str(said) if said else _allowed(kind.type)
    match kind:
        case inspect.UnionType():
            options = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
            return " or ".join(_allowed(option) for option in options)
        case inspect.DictType() if not isinstance(kind.value_type, inspect.AnyType):
            named = _allowed(kind.key_type)
            names = "" if named == "a string" else f"names are each {named} and whose "
            return f"an object whose {names}members are each {_allowed(kind.value_type)}"
        case inspect.StructType() | inspect.DictType():
            return "an object"
        case inspect.VarTupleType():
            bounds = [f"at least {kind.min_length}"] if kind.min_length else []
            bounds += [f"at most {kind.max_length}"] if kind.max_length is not None else []
            entries = "".join(f"{bound} " for bound in bounds) if len(bounds) < 2 else f"{' and '.join(bounds)} "
            return f"a list of {entries}entries" if bounds else "a list"
        case inspect.StrType():
            return "a string" + ("" if kind.max_length is None else f" of at most {kind.max_length} characters")
        case _:
            return forms.describe(kind)


def _options(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(kind, inspect.Metadata):
        return _options(kind.type)
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _unknown(value: Any, kind: inspect.Type, place: str) -> Iterator[str]:
    """The names of members that no struct has, in the body's order."""
    for option in _options(kind):
        if isinstance(value, Mapping) and isinstance(option, inspect.StructType):
            types = {field.encode_name: field.type for field in option.fields}
            for name, member in value.items():
                inner = f"{place}.{name}" if place else name
                if name in types:
                    yield from _unknown(member, types[name], inner)
                else:
                    yield inner
        elif isinstance(value, list) and isinstance(option, inspect.VarTupleType):
            for index, entry in enumerate(value):
                yield from _unknown(entry, option.item_type, f"{place}[{index}]")


def _check_sendable(values: Mapping[str, Any]) -> None:
    """JSON can say what no worker can be told: halves of surrogate pairs and endless integers. Raises InvalidValue."""
    for name, value in values.items():
        try:
            msgspec.msgpack.encode(value)
        except UnicodeEncodeError:
            raise InvalidValue(f"{name} is no valid Unicode: it has half a surrogate pair", param=name) from None
        except OverflowError:
            raise InvalidValue(f"{name} has a number of more than 64 bits", param=name) from None
