"""Failures as HTTP answers: the one table from kinds to statuses, and the error body.

Knows no endpoint. No other file names the status of a failure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

import msgspec
from starlette.responses import Response

from protocol.errors import Failure, Kind


@dataclass(frozen=True)
class Answer:
    """How a kind of failure is told. `wait_s` goes into the retry hints; `again` False asks SDKs not to retry."""

    status: int
    type: str
    wait_s: float | None = None
    again: bool | None = None


class Error(TypedDict):
    """What went wrong. `param`: the field at fault; `code`: what kind of failure it is."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(TypedDict):
    """OpenAI's shape."""

    error: Error


class AnthropicError(TypedDict):
    type: str
    message: str


class AnthropicErrorBody(TypedDict):
    """Anthropic's shape; also the last event of its streams when they fail."""

    type: Literal["error"]
    error: AnthropicError


_INVALID = Answer(400, "invalid_request_error")
_TOO_LARGE = Answer(413, "invalid_request_error")
_NOT_FOUND = Answer(404, "not_found_error")
_FORBIDDEN = Answer(403, "permission_error")
_CONFLICT = Answer(409, "conflict_error", again=False)

STATUS: dict[Kind, Answer] = {
    Kind.INVALID_REQUEST: _INVALID,
    Kind.INVALID_VALUE: _INVALID,
    Kind.MISSING_FIELD: _INVALID,
    Kind.UNSUPPORTED_VALUE: _INVALID,
    Kind.UNSUPPORTED_TASK: _INVALID,
    Kind.WRONG_MODEL_KIND: _INVALID,
    Kind.UNDECODABLE_AUDIO: _INVALID,
    Kind.EMPTY_AUDIO: _INVALID,
    Kind.UNSUPPORTED_CONTENT: _INVALID,
    Kind.UNSUPPORTED_SCHEMA: _INVALID,
    Kind.CONTEXT_LENGTH_EXCEEDED: _INVALID,
    Kind.PAYLOAD_TOO_LARGE: _TOO_LARGE,
    Kind.AUDIO_TOO_LONG: _TOO_LARGE,
    Kind.UNSUPPORTED_MEDIA_TYPE: Answer(415, "invalid_request_error"),
    Kind.NOT_FOUND: _NOT_FOUND,
    Kind.MODEL_NOT_FOUND: _NOT_FOUND,
    Kind.UNKNOWN_SESSION: _NOT_FOUND,
    Kind.UNKNOWN_ADAPTER: _NOT_FOUND,
    Kind.UNKNOWN_RESPONSE: _NOT_FOUND,
    Kind.METHOD_NOT_ALLOWED: Answer(405, "invalid_request_error"),
    Kind.INVALID_API_KEY: Answer(401, "authentication_error"),
    Kind.FORBIDDEN_HOST: _FORBIDDEN,
    Kind.FORBIDDEN_ORIGIN: _FORBIDDEN,
    Kind.SESSION_FINISHING: _CONFLICT,
    Kind.SESSION_FAILED: _CONFLICT,
    Kind.SEQUENCE_GAP: _CONFLICT,
    Kind.TOO_MANY_SESSIONS: Answer(429, "rate_limit_error", wait_s=10),
    Kind.TOO_MANY_REQUESTS: Answer(429, "rate_limit_error", wait_s=1),
    Kind.QUEUE_FULL: Answer(429, "rate_limit_error", wait_s=2),
    Kind.MODEL_NOT_CONFIGURED: Answer(503, "service_unavailable_error", wait_s=60, again=False),
    Kind.WORKER_CRASHED: Answer(503, "service_unavailable_error", wait_s=1),
    Kind.WORKER_STARTING: Answer(503, "service_unavailable_error", wait_s=5),
    Kind.DISK_FULL: Answer(503, "service_unavailable_error", wait_s=30),
    Kind.SHUTTING_DOWN: Answer(503, "service_unavailable_error", wait_s=5),
    Kind.REQUEST_TIMEOUT: Answer(504, "timeout_error"),
    Kind.REQUEST_CANCELLED: Answer(499, "request_cancelled"),
    # A bug meets the same request again; a retry would only upload the file once more.
    Kind.INTERNAL_ERROR: Answer(500, "server_error", again=False),
}

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
"""Anthropic's type for a status; what has none is an api_error."""

CLIENT_GONE = STATUS[Kind.REQUEST_CANCELLED].status
"""The status that only the log sees."""


def body(error: Failure) -> Error:
    """The value of the key `error`, with all four keys, as OpenAI's SDK reads it."""
    return {
        "message": error.message,
        "type": STATUS[error.kind].type,
        "param": error.param,
        "code": error.kind.value,
    }


def body_for_anthropic(error: Failure) -> AnthropicErrorBody:
    """The whole body of a failure, as Anthropic's SDK reads it; also the last event of a stream that fails."""
    kind = _ANTHROPIC.get(STATUS[error.kind].status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def speaks_anthropic(path: str) -> bool:
    """Whether a client that asks for this path expects Anthropic's errors. It need not be a path that there is."""
    parts = [part for part in path.split("/") if part not in ("", "v1")]
    return parts[:1] == ["messages"]


def headers(error: Failure) -> dict[str, str]:
    """The retry hints, and how to say who asks; empty where the status alone says it."""
    answer = STATUS[error.kind]
    again = answer.again if error.retry is None else error.retry
    hints: dict[str, str] = {}
    if answer.wait_s is not None:
        hints["retry-after"] = str(math.ceil(answer.wait_s))
        # A crowd that was refused at once does not come back at once.
        hints["retry-after-ms"] = str(round(answer.wait_s * 1000 * random.uniform(0.5, 1.0)))
    if again is False:
        hints["x-should-retry"] = "false"
    if error.kind is Kind.INVALID_API_KEY:
        hints["www-authenticate"] = "Bearer"
    return hints


def response(
    error: Failure, more: Mapping[str, object] | None = None, *, allow: str | None = None, path: str = ""
) -> Response:
    """The whole answer, in the shape that a client of `path` expects.

    `more` stands beside `error` in the body; `allow` is a 405's header.
    """
    extra = {"allow": allow} if allow is not None else {}
    told: Mapping[str, object] = body_for_anthropic(error) if speaks_anthropic(path) else {"error": body(error)}
    return Response(
        msgspec.json.encode({**told, **(more or {})}),
        STATUS[error.kind].status,
        headers(error) | extra,
        media_type="application/json",
    )
