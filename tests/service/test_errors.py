"""Kinds of failure and the answers they become."""

from __future__ import annotations

import json

import pytest

from protocol.errors import (
    BY_KIND,
    DiskFull,
    InvalidValue,
    Kind,
    ModelNotConfigured,
    NotFound,
    QueueFull,
    SequenceGap,
    SessionFinishing,
    TooManySessions,
    WorkerCrashed,
)
from service import errors


@pytest.mark.parametrize(
    ("kind", "status", "type_"),
    [
        ("invalid_value", 400, "invalid_request_error"),
        ("missing_field", 400, "invalid_request_error"),
        ("undecodable_audio", 400, "invalid_request_error"),
        ("empty_audio", 400, "invalid_request_error"),
        ("unsupported_task", 400, "invalid_request_error"),
        ("wrong_model_kind", 400, "invalid_request_error"),
        ("model_not_found", 404, "not_found_error"),
        ("not_found", 404, "not_found_error"),
        ("unknown_session", 404, "not_found_error"),
        ("method_not_allowed", 405, "invalid_request_error"),
        ("session_finishing", 409, "conflict_error"),
        ("session_failed", 409, "conflict_error"),
        ("sequence_gap", 409, "conflict_error"),
        ("too_many_sessions", 429, "rate_limit_error"),
        ("payload_too_large", 413, "invalid_request_error"),
        ("audio_too_long", 413, "invalid_request_error"),
        ("unsupported_media_type", 415, "invalid_request_error"),
        ("queue_full", 429, "rate_limit_error"),
        ("request_cancelled", 499, "request_cancelled"),
        ("internal_error", 500, "server_error"),
        ("model_not_configured", 503, "service_unavailable_error"),
        ("worker_crashed", 503, "service_unavailable_error"),
        ("worker_starting", 503, "service_unavailable_error"),
        ("disk_full", 503, "service_unavailable_error"),
        ("shutting_down", 503, "service_unavailable_error"),
        ("request_timeout", 504, "timeout_error"),
    ],
)
def test_a_kind_has_the_status_and_type_of_the_contract(kind: str, status: int, type_: str) -> None:
    answer = errors.response(BY_KIND[Kind(kind)]("why"))
    assert answer.status_code == status
    assert json.loads(bytes(answer.body)) == {"error": {"message": "why", "type": type_, "param": None, "code": kind}}


def test_every_kind_has_a_status() -> None:
    assert set(errors.STATUS) == set(Kind)


def test_the_field_at_fault_is_named() -> None:
    assert errors.body(InvalidValue("no", param="beam_size"))["param"] == "beam_size"


@pytest.mark.parametrize("kind", [kind for kind, answer in errors.STATUS.items() if answer.status in (429, 503)])
def test_429_and_503_say_when_to_come_back(kind: Kind) -> None:
    hints = errors.headers(BY_KIND[kind]("later"))
    assert 1 <= int(hints["retry-after"]) <= 120
    assert 1 <= int(hints["retry-after-ms"]) <= int(hints["retry-after"]) * 1000


def test_a_crowd_that_is_refused_at_once_does_not_come_back_at_once() -> None:
    waits = [int(errors.headers(QueueFull("full"))["retry-after-ms"]) for _ in range(100)]
    assert 1000 <= min(waits) < max(waits) <= 2000
    assert len(set(waits)) > 50


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (ModelNotConfigured("get one"), "false"),
        (WorkerCrashed("poison", retry=False), "false"),
        (WorkerCrashed("bad luck"), None),
        (SequenceGap("3 is missing"), "false"),
        (SessionFinishing("no more"), "false"),
        (QueueFull("full"), None),
        (TooManySessions("64 are open"), None),
        (DiskFull("full"), None),
        (InvalidValue("no"), None),
    ],
)
def test_what_would_fail_again_asks_not_to_be_retried(failure: Exception, hint: str | None) -> None:
    assert errors.headers(failure).get("x-should-retry") == hint  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "theirs"),
    [
        ("/v1/messages", True),
        ("/v1/messages/", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/v1/messages", True),
        ("/messages", True),
        ("/v1/threads/a/messages", False),
        ("/v1/chat/completions", False),
        ("/", False),
    ],
)
def test_who_asks_for_messages_is_answered_as_by_anthropic(path: str, theirs: bool) -> None:
    assert errors.speaks_anthropic(path) is theirs
    body = json.loads(bytes(errors.response(NotFound("nothing"), path=path).body))
    assert ("type" in body, "code" in body["error"]) == (theirs, not theirs)
