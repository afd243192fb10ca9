"""/openapi.json and /docs: a valid document of every route, made from the types that validate."""

from __future__ import annotations

import re
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from protocol.errors import Kind
from service.api import ROUTES
from service.errors import STATUS
from service.openapi.document import PATH_PART, UNROUTED
from tests import promised
from tests.asgi import ask
from tests.scripted import Scripted

Schema = dict[str, Any]


def operations() -> list[tuple[str, Schema]]:
    """Each with its method and path."""
    return [
        (f"{method.upper()} {path}", operation)
        for path, item in promised.document()["paths"].items()
        for method, operation in item.items()
    ]


def body(path: str, media_type: str = "application/json") -> Schema:
    found: Schema = promised.document()["paths"][path]["post"]["requestBody"]["content"][media_type]["schema"]
    return found


def test_the_document_is_valid_openapi_3_1(service: Scripted) -> None:
    document = ask(service.app, "GET", "/openapi.json").json
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"] == "3.1.0"


def test_the_document_is_made_once(service: Scripted) -> None:
    house = service.app.state.house
    ask(service.app, "GET", "/openapi.json")
    assert house.document.json is house.document.json


def test_it_has_every_route_and_no_other() -> None:
    known = {f"{each.method} {PATH_PART.sub('{id}', each.path)}" for each in ROUTES}
    assert {name for name, _ in operations()} == known


@pytest.mark.parametrize(("name", "operation"), operations(), ids=[name for name, _ in operations()])
def test_a_route_says_what_it_does_takes_and_answers(name: str, operation: Schema) -> None:
    assert operation["summary"] and operation["tags"]
    statuses = set(operation["responses"])
    assert statuses & {"200", "201", "204"} and "500" in statuses
    if "requestBody" in operation:
        assert statuses >= {"400", "413", "415", "504"}
    for status, answer in operation["responses"].items():
        assert answer["description"] and "x-request-id" in answer["headers"]
        assert ("content" in answer) == (status != "204")
        for media_type, media in answer.get("content", {}).items():
            assert media_type != "application/json" or media["schema"].keys() & {"$ref", "anyOf", "type"}


def test_every_kind_of_failure_is_an_answer_of_some_route() -> None:
    told = {code for _, operation in operations() for each in operation["responses"].values() for code in codes(each)}
    assert told == {kind.value for kind in Kind if kind not in UNROUTED} | {"not_found"}


def codes(answer: Schema) -> list[str]:
    found: list[str] = answer.get("x-starling-codes", [])
    return found


def test_failures_stand_under_their_status_in_the_protocol_s_shape() -> None:
    for name, operation in operations():
        shape = "AnthropicErrorBody" if "/v1/messages" in name else "ErrorBody"
        for status, answer in operation["responses"].items():
            for code in codes(answer):
                assert STATUS[Kind(code)].status == int(status)
            if codes(answer) and name != "GET /ready":
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith(f"/{shape}")


def test_a_refusal_for_now_says_when_to_come_back() -> None:
    answer = promised.document()["paths"]["/v1/chat/completions"]["post"]["responses"]["429"]
    assert {"retry-after", "retry-after-ms"} <= set(answer["headers"])


FIELDS = {
    "file", "model", "language", "languages", "prompt", "vocabulary", "keywords", "hotwords", "temperature",
    "beam_size", "best_of", "patience", "length_penalty", "response_format", "timestamp_granularities", "stream",
    "condition_on_previous_text", "no_speech_threshold", "logprob_threshold", "compression_ratio_threshold",
    "without_timestamps", "hallucination_silence_threshold", "vad", "vad_threshold", "vad_min_speech_ms", "vad_trim",
    "chunking_strategy", "audio_ctx", "include", "faithful",
}  # fmt: skip


def test_a_recording_is_a_form_with_all_fields_of_the_contract() -> None:
    form = body("/v1/audio/transcriptions", "multipart/form-data")
    assert set(form["properties"]) == FIELDS
    assert form["required"] == ["file"]
    assert form["properties"]["file"]["format"] == "binary"


def test_a_recording_in_json_is_base64_under_one_of_three_names() -> None:
    members = body("/v1/audio/transcriptions")
    assert set(members["properties"]) == FIELDS | {"input_audio", "audio"}
    assert members["anyOf"] == [{"required": [name]} for name in ("file", "input_audio", "audio")]


def test_limits_and_defaults_are_those_of_the_type_that_validates() -> None:
    fields = body("/v1/audio/transcriptions")["properties"]
    assert fields["beam_size"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 16,
        "default": 1,
        "description": "At temperature 0 only.",
    }
    assert fields["no_speech_threshold"] == {
        "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"const": "off"}],
        "default": 0.6,
        "description": "A window that is likelier than this to be without speech, and failed, is silence.",
    }


def test_what_a_session_s_request_cannot_have_is_not_in_its_body() -> None:
    assert set(body("/v1/audio/sessions")["properties"]) == FIELDS - {
        "file", "stream", "chunking_strategy", "vad_trim", "faithful",
    } | {"task", "segmentation", "vad_silence_ms", "partials"}  # fmt: skip


def test_an_object_of_biases_is_described_as_clients_send_it() -> None:
    biases = body("/v1/chat/completions")["properties"]["logit_bias"]
    assert (biases["type"], biases["additionalProperties"]["maximum"]) == ("object", 100)


def test_fields_without_effect_are_known() -> None:
    user = {"type": "string", "description": "Accepted, without effect."}
    assert body("/v1/chat/completions")["properties"]["user"] == user
    assert "Unheeded" not in str(promised.document())


def test_patterns_are_javascript_s() -> None:
    assert not re.search(r"\\\\Z", str(promised.document()))


def test_chunks_are_bytes_of_several_types() -> None:
    content = promised.document()["paths"]["/v1/audio/sessions/{id}/audio"]["post"]["requestBody"]["content"]
    assert set(content) == {"audio/pcm", "audio/l16", "application/octet-stream", "multipart/form-data"}


def test_streams_name_their_events() -> None:
    answer = promised.document()["paths"]["/v1/audio/sessions/{id}/events"]["get"]["responses"]["200"]
    data = answer["content"]["text/event-stream"]["schema"]["properties"]["data"]
    events = data["contentSchema"]["anyOf"]
    assert [each["$ref"].rpartition("/")[2] for each in events] == [
        "SessionCreated", "SpeechStarted", "SpeechStopped", "Partial", "Delta", "Done", "VerboseDone", "Failed",
        "SessionClosed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "content_type", "told", "wrong"),
    [
        (202, "application/json", b'{"status":"ok"}', "is not promised"),
        (200, "text/html", b"ok", "promises no text/html"),
        (200, "application/json", b'{"status":"ok","more":1}', "Additional properties"),
        (200, "application/json", b"{}", "required property"),
        (500, "application/json", b'{"error":{"message":"","type":"","param":null,"code":"disk_full"}}', "disk_full"),
    ],
)
def test_an_answer_that_is_not_promised_is_found(status: int, content_type: str, told: bytes, wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        promised.check("GET", "/health", status, {"content-type": content_type, "x-request-id": "r"}, told)


def test_the_page_needs_nothing_from_elsewhere(service: Scripted) -> None:
    reply = ask(service.app, "GET", "/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"https?:|src=|@import|\burl\(|innerHTML|style=", reply.text)


def test_the_page_may_do_nothing_but_read_the_document(service: Scripted) -> None:
    policy = dict(each.split(" ", 1) for each in policies(ask(service.app, "GET", "/docs").headers))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", policy["script-src"])
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", policy["style-src"])


def policies(headers: dict[str, str]) -> list[str]:
    return headers["content-security-policy"].split("; ")
