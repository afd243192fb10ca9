"""The log: for people and for programs, each line with the requests that it is about."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from protocol import lines
from protocol.lines import naming
from service import logs
from tests.asgi import ask
from tests.scripted import Scripted


def record(message: str, *arguments: object, extra: dict[str, Any] | None = None) -> logging.LogRecord:
    return logging.getLogger("starling.x").makeRecord(
        "starling.x", logging.WARNING, "file", 1, message, arguments, None, extra=extra
    )


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = logs.Json().format(made)
    assert "\n" not in line
    told: dict[str, Any] = json.loads(line)
    assert told.pop("time").endswith("Z")
    return told


def test_a_line_of_json_has_what_programs_look_for() -> None:
    with naming("req_1"):
        told = as_json(record("%d of\n%s", 3, "7", extra=logs.about(status=200)))
    assert told == {
        "level": "warning",
        "logger": "starling.x",
        "message": "3 of\n7",
        "request_id": "req_1",
        "status": 200,
    }


def test_a_line_of_no_request_names_none_and_one_of_several_names_all() -> None:
    assert "request_id" not in as_json(record("it starts"))
    assert as_json(record("a crash", extra=logs.about(("a", "b"))))["request_ids"] == ["a", "b"]


def test_a_traceback_is_a_member_of_its_line() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        made = record("it failed")
        made.exc_info = sys.exc_info()
    assert "ValueError: wrong" in as_json(made)["exception"]


@pytest.mark.parametrize(
    ("message", "shown"), [("it is slow", "it is slow [req_1]"), ("GET / 200 req_1", "GET / 200 req_1")]
)
def test_text_for_people_ends_with_the_id_once(message: str, shown: str) -> None:
    with naming("req_1"):
        assert logs.Text().format(record(message)).endswith(f" WARNING starling.x: {shown}")


@pytest.mark.parametrize("ids", [(), ("req_1",), ("a b]", "%]: ERROR x"), ("~" * 128,)])
def test_a_worker_s_line_is_read_as_it_was_written_whatever_the_client_s_id(ids: tuple[str, ...]) -> None:
    with naming(*ids):
        written = lines.Formatter().format(record("it is [so]: %s", "yes"))
    assert lines.parse(written) == lines.Line(logging.WARNING, "starling.x", ids, "it is [so]: yes")


@pytest.mark.parametrize(
    "printed", ["", "hello", "INFO", "INFO: no", "Traceback (most recent call last):", "INFO a b: c"]
)
def test_what_a_worker_prints_otherwise_is_no_line(printed: str) -> None:
    assert lines.parse(printed) is None


def test_what_is_logged_within_a_request_is_about_it(
    service: Scripted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> dict[str, int]:
        named.append(lines.REQUESTS.get())
        return counts()

    named: list[tuple[str, ...]] = []
    counts: Callable[[], dict[str, int]] = service.app.state.house.sessions.counts
    monkeypatch.setattr(service.app.state.house.sessions, "counts", said)
    caplog.set_level(logging.INFO, "starling.http")
    ask(service.app, "GET", "/stats", {"x-request-id": "r-7"})
    assert named == [("r-7",)]
    (line,) = caplog.records
    assert logs.requests_of(line) == ("r-7",)
    assert as_json(line)["path"] == "/stats"
    assert lines.REQUESTS.get() == ()
