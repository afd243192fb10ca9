"""POST /admin/…/unload over pools that are fakes: what is unloaded, what is not, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.asgi import ask
from tests.service.api.test_several_models import Several, several

LLM = "/admin/llm/unload"
SPEECH = "/admin/transcription/unload"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Several]:
    with several(tmp_path) as made:
        for pool in made.pools.values():
            pool.rss_bytes = 100
        yield made


def resident(service: Several) -> list[str]:
    return [name for name, pool in service.pools.items() if pool.state == "ready"]


def test_all_models_of_a_kind_are_unloaded_where_none_is_named(service: Several) -> None:
    reply = ask(service.app, "POST", LLM)
    assert reply.status == 200
    assert (reply.json["unloaded"], reply.json["reason"], reply.json["freed_bytes"]) == (True, None, 200)
    assert [(line["name"], line["state"], line["rss_bytes"]) for line in reply.json["workers"]] == [
        ("llm", "idle", 0),
        ("llm:x/llama", "idle", 0),
    ]
    assert resident(service) == [name for name in service.pools if not name.startswith("llm")]
    assert service.chat().status == 200


def test_of_a_speech_model_its_oracle_goes_too(service: Several) -> None:
    reply = service.post(SPEECH, model="dictation")
    assert reply.json["models"] == [{"id": "whisper-large", "unloaded": True, "reason": None, "freed_bytes": 200}]
    assert resident(service) == ["media", "live", "whisper", "oracle", "llm", "llm:x/llama"]


def test_a_model_with_a_request_in_flight_is_not_unloaded(service: Several) -> None:
    service.pools["oracle:whisper-large"].running = 1
    reply = service.post(SPEECH, model="whisper-large")
    assert (reply.status, reply.json["unloaded"]) == (200, False)
    assert reply.json["reason"] == "1 of its jobs is under way; try again later"
    assert "whisper:whisper-large" in resident(service)


def test_of_two_models_the_one_that_is_busy_stays(service: Several) -> None:
    service.pools["llm"].running = 2
    body = ask(service.app, "POST", LLM).json
    assert (body["unloaded"], body["reason"]) == (True, None)
    assert [(model["id"], model["unloaded"], model["reason"]) for model in body["models"]] == [
        ("smol", False, "2 of its jobs are under way; try again later"),
        ("x/llama", True, None),
    ]


def test_unloading_again_says_that_there_is_nothing_to_unload(service: Several) -> None:
    service.post(LLM, model="smol")
    body = service.post(LLM, model="smol").json
    assert (body["unloaded"], body["reason"], body["freed_bytes"]) == (False, "it is not loaded", 0)


@pytest.mark.parametrize(
    ("path", "model", "status", "code"),
    [
        (LLM, "unheard-of", 404, "model_not_found"),
        (SPEECH, "unheard-of", 404, "model_not_found"),
        (LLM, "whisper-base", 400, "wrong_model_kind"),
        (SPEECH, "gpt-4o", 400, "wrong_model_kind"),
        (LLM, 5, 400, "invalid_value"),
    ],
)
def test_no_other_model_is_unloaded_for_one_that_is_not_there(
    service: Several, path: str, model: str | int, status: int, code: str
) -> None:
    reply = service.post(path, model=model)
    assert (reply.status, reply.json["error"]["code"], reply.json["error"]["param"]) == (status, code, "model")
    assert resident(service) == list(service.pools)


def test_unknown_fields_are_named(service: Several) -> None:
    assert service.post(LLM, force=True).headers["x-starling-ignored"] == "force"


def test_without_a_language_model_there_is_nothing_to_unload(tmp_path: Path) -> None:
    with several(tmp_path, language=False) as service:
        body = ask(service.app, "POST", LLM).json
    assert (body["unloaded"], body["reason"], body["models"]) == (False, "no language model is configured", [])
