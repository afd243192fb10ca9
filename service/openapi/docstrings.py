"""What the source says below a field: the one place where it is explained. Knows Python's syntax; knows no field."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping


class Docstrings:
    """Looks each module up once. Where there is no source there is no text."""

    def __init__(self) -> None:
        self._modules: dict[str, Mapping[str, Mapping[str, str]]] = {}

    def of(self, cls: type) -> dict[str, str]:
        """The text of each field that has one, inherited fields too."""
        found: dict[str, str] = {}
        for each in reversed(cls.__mro__):
            found |= self._module(each.__module__).get(each.__qualname__, {})
        return found

    def _module(self, name: str) -> Mapping[str, Mapping[str, str]]:
        if name not in self._modules:
            self._modules[name] = dict(_classes(name)) if name.startswith(("service.", "protocol.")) else {}
        return self._modules[name]


def _classes(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, dict(_fields(node))


def _fields(cls: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in zip(cls.body, cls.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
