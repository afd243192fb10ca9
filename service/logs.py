"""The service's log on stderr, as text or as one JSON object a line, with the ids of the requests that a line is about.

Knows formats; knows nobody who logs. Nothing that a client said is logged: no text, prompt or audio.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from protocol.lines import REQUESTS

Format = Literal["text", "json"]

FACTS = "facts"
"""The name of a record's members for programs, which the JSON form has beside the message."""


def to_stderr(level: str, form: Format) -> None:
    """From now on everything that is logged goes there."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # It would say its address again.
    logging.getLogger("hypercorn").setLevel(logging.WARNING)
    # It warns of every form that it refuses; so do we, to the client and in the request's line.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


def about(requests: tuple[str, ...] | None = None, **facts: Any) -> dict[str, Any]:
    """`extra` for a call of a logger. requests: where they are not those of the task that calls."""
    return {FACTS: facts} | ({} if requests is None else {"requests": requests})


def requests_of(record: logging.LogRecord) -> tuple[str, ...]:
    named: tuple[str, ...] | None = getattr(record, "requests", None)
    return REQUESTS.get() if named is None else named


class Text(logging.Formatter):
    """For people. The ids stand at the end, unless the message says them."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        named = " ".join(each for each in requests_of(record) if each not in record.message)
        return super().formatMessage(record) + (f" [{named}]" if named else "")


class Json(logging.Formatter):
    """For programs. `time` in UTC; `request_id`, or `request_ids` where a line is about several."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        requests = requests_of(record)
        if len(requests) == 1:
            told["request_id"] = requests[0]
        elif requests:
            told["request_ids"] = requests
        facts: Mapping[str, Any] = getattr(record, FACTS, {})
        told |= facts
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()
