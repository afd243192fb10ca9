"""A worker's log lines, which go to the service through the worker's stderr: whose work they are about.

    LEVEL logger [request request]: message

Knows text; knows neither process nor request. What a worker prints otherwise is no such line, and is logged as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple
from urllib.parse import quote, unquote

REQUESTS: ContextVar[tuple[str, ...]] = ContextVar("requests", default=())
"""Ids of the requests that this thread or task works for now."""

_LINE = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ([\w.]+)(?: \[([^\]\s]+(?: [^\]\s]+)*)\])?: ")


class Line(NamedTuple):
    """One line of a worker's. level: as `logging` counts."""

    level: int
    logger: str
    requests: tuple[str, ...]
    message: str


@contextmanager
def naming(*requests: str) -> Iterator[None]:
    """What is logged inside is about these requests; empty ids are none."""
    token = REQUESTS.set(tuple(filter(None, requests)))
    try:
        yield
    finally:
        REQUESTS.reset(token)


def parse(text: str) -> Line | None:
    """None for what is no such line."""
    found = _LINE.match(text)
    if found is None:
        return None
    requests = tuple(unquote(each) for each in (found[3] or "").split())
    return Line(logging.getLevelNamesMapping()[found[1]], found[2], requests, text[found.end() :])


class Formatter(logging.Formatter):
    """Writes what `parse` reads. Ids are clients' own, and are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        named = _escaped(REQUESTS.get())
        return f"{record.levelname} {record.name}{f' [{named}]' if named else ''}: {super().format(record)}"


def _escaped(requests: Iterable[str]) -> str:
    return " ".join(quote(each, safe="") for each in requests)
