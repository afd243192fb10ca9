"""Every way in which a request can fail, as classes that both sides of the pipe know.

Knows kinds and messages; knows no HTTP status (service/errors.py has that table).

    Failure
    ├── InvalidRequest          the request is wrong and would be wrong again
    │   ├── InvalidValue  MissingField  UnsupportedValue  UnsupportedTask  WrongModelKind
    │   ├── UndecodableAudio  EmptyAudio
    │   ├── UnsupportedContent  UnsupportedSchema  ContextLengthExceeded
    │   ├── PayloadTooLarge  AudioTooLong
    │   └── UnsupportedMediaType
    ├── NotFound                there is no such route, model, session, …
    │   └── ModelNotFound  UnknownSession  UnknownAdapter  UnknownResponse
    ├── MethodNotAllowed
    ├── InvalidApiKey           who asks has not said a key that is known here
    ├── Forbidden               where it comes from is not let in
    │   └── ForbiddenHost  ForbiddenOrigin
    ├── Conflict                what a session is at forbids it, and would forbid it again
    │   └── SessionFinishing  SessionFailed  SequenceGap
    ├── QueueFull               too much is waiting; later is better
    ├── TooManySessions
    ├── TooManyRequests         of this client, or of all
    ├── Unavailable             a part of the house cannot serve now
    │   ├── ModelNotConfigured  WorkerCrashed  WorkerStarting  DiskFull  ShuttingDown
    ├── RequestTimeout
    ├── RequestCancelled        the client went away; only the log sees it
    └── InternalError           a bug of ours
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Kind(StrEnum):
    """The name a failure has on the pipe and, as `code`, in an error body."""

    INVALID_REQUEST = "invalid_request"
    INVALID_VALUE = "invalid_value"
    MISSING_FIELD = "missing_field"
    UNSUPPORTED_VALUE = "unsupported_value"
    UNSUPPORTED_TASK = "unsupported_task"
    WRONG_MODEL_KIND = "wrong_model_kind"
    UNDECODABLE_AUDIO = "undecodable_audio"
    EMPTY_AUDIO = "empty_audio"
    UNSUPPORTED_CONTENT = "unsupported_content"
    UNSUPPORTED_SCHEMA = "unsupported_schema"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    AUDIO_TOO_LONG = "audio_too_long"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    UNKNOWN_SESSION = "unknown_session"
    UNKNOWN_ADAPTER = "unknown_adapter"
    UNKNOWN_RESPONSE = "unknown_response"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    INVALID_API_KEY = "invalid_api_key"
    FORBIDDEN_HOST = "forbidden_host"
    FORBIDDEN_ORIGIN = "forbidden_origin"
    SESSION_FINISHING = "session_finishing"
    SESSION_FAILED = "session_failed"
    SEQUENCE_GAP = "sequence_gap"
    TOO_MANY_SESSIONS = "too_many_sessions"
    TOO_MANY_REQUESTS = "too_many_requests"
    QUEUE_FULL = "queue_full"
    MODEL_NOT_CONFIGURED = "model_not_configured"
    WORKER_CRASHED = "worker_crashed"
    WORKER_STARTING = "worker_starting"
    DISK_FULL = "disk_full"
    SHUTTING_DOWN = "shutting_down"
    REQUEST_TIMEOUT = "request_timeout"
    REQUEST_CANCELLED = "request_cancelled"
    INTERNAL_ERROR = "internal_error"


class Failure(Exception):
    """A request's failure, worded for the person who made the request.

    `param` names the field at fault, where there is one. `retry` says whether the same request
    may succeed later; None leaves the answer to the kind.
    """

    kind: ClassVar[Kind]

    def __init__(self, message: str, *, param: str | None = None, retry: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry = retry


class InvalidRequest(Failure):
    kind = Kind.INVALID_REQUEST


class InvalidValue(InvalidRequest):
    kind = Kind.INVALID_VALUE


class MissingField(InvalidRequest):
    kind = Kind.MISSING_FIELD


class UnsupportedValue(InvalidRequest):
    kind = Kind.UNSUPPORTED_VALUE


class UnsupportedTask(InvalidRequest):
    kind = Kind.UNSUPPORTED_TASK


class WrongModelKind(InvalidRequest):
    kind = Kind.WRONG_MODEL_KIND


class UndecodableAudio(InvalidRequest):
    kind = Kind.UNDECODABLE_AUDIO


class EmptyAudio(InvalidRequest):
    kind = Kind.EMPTY_AUDIO


class UnsupportedContent(InvalidRequest):
    kind = Kind.UNSUPPORTED_CONTENT


class UnsupportedSchema(InvalidRequest):
    """A schema or grammar that is wrong, or that cannot be enforced."""

    kind = Kind.UNSUPPORTED_SCHEMA


class ContextLengthExceeded(InvalidRequest):
    kind = Kind.CONTEXT_LENGTH_EXCEEDED


class PayloadTooLarge(InvalidRequest):
    kind = Kind.PAYLOAD_TOO_LARGE


class AudioTooLong(InvalidRequest):
    kind = Kind.AUDIO_TOO_LONG


class UnsupportedMediaType(InvalidRequest):
    kind = Kind.UNSUPPORTED_MEDIA_TYPE


class NotFound(Failure):
    kind = Kind.NOT_FOUND


class ModelNotFound(NotFound):
    kind = Kind.MODEL_NOT_FOUND


class UnknownSession(NotFound):
    kind = Kind.UNKNOWN_SESSION


class UnknownAdapter(NotFound):
    kind = Kind.UNKNOWN_ADAPTER


class UnknownResponse(NotFound):
    kind = Kind.UNKNOWN_RESPONSE


class MethodNotAllowed(Failure):
    kind = Kind.METHOD_NOT_ALLOWED


class InvalidApiKey(Failure):
    kind = Kind.INVALID_API_KEY


class Forbidden(Failure):
    """The common parent of what a 403 says; it has no kind of its own."""


class ForbiddenHost(Forbidden):
    kind = Kind.FORBIDDEN_HOST


class ForbiddenOrigin(Forbidden):
    kind = Kind.FORBIDDEN_ORIGIN


class Conflict(Failure):
    """The common parent of what a 409 says; it has no kind of its own."""


class SessionFinishing(Conflict):
    kind = Kind.SESSION_FINISHING


class SessionFailed(Conflict):
    kind = Kind.SESSION_FAILED


class SequenceGap(Conflict):
    kind = Kind.SEQUENCE_GAP


class TooManySessions(Failure):
    kind = Kind.TOO_MANY_SESSIONS


class QueueFull(Failure):
    kind = Kind.QUEUE_FULL


class TooManyRequests(Failure):
    kind = Kind.TOO_MANY_REQUESTS


class Unavailable(Failure):
    """The common parent of what a 503 says; it has no kind of its own."""


class ModelNotConfigured(Unavailable):
    kind = Kind.MODEL_NOT_CONFIGURED


class WorkerCrashed(Unavailable):
    kind = Kind.WORKER_CRASHED


class WorkerStarting(Unavailable):
    kind = Kind.WORKER_STARTING


class DiskFull(Unavailable):
    kind = Kind.DISK_FULL


class ShuttingDown(Unavailable):
    kind = Kind.SHUTTING_DOWN


class RequestTimeout(Failure):
    kind = Kind.REQUEST_TIMEOUT


class RequestCancelled(Failure):
    kind = Kind.REQUEST_CANCELLED


class InternalError(Failure):
    kind = Kind.INTERNAL_ERROR


def _leaves(parent: type[Failure]) -> list[type[Failure]]:
    """`parent` and all its descendants that have a kind."""
    found = [parent] if "kind" in parent.__dict__ else []
    return found + [leaf for child in parent.__subclasses__() for leaf in _leaves(child)]


BY_KIND: dict[Kind, type[Failure]] = {leaf.kind: leaf for leaf in _leaves(Failure)}
