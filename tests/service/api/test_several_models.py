"""Two models of each kind behind the routes: who serves what, and what is said of them. The workers are scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

from protocol.events import Backend, ChoiceEnded, Decoded, Delta, Generated, Model, Ready, Started
from protocol.jobs import Chat, Decode, Transcribe
from service.app import build, furnish
from service.config import Config
from service.dictation.store import Store
from service.house import House, Speech, Workers
from service.spool import Spool
from tests.asgi import FORM, JSON, Reply, ask, multipart
from tests.dictating import URL as SESSIONS
from tests.fakes import FakeWorker
from tests.scripted import HEARD, MULTILINGUAL, SEGMENTS, WAV

ALIASES = ("dictation=whisper-large", "gpt-4o=x/llama")


@dataclass
class Several:
    app: Starlette
    house: House
    pools: dict[str, FakeWorker]
    """By their names."""

    def transcribe(self, model: str | None = None, **fields: str) -> Reply:
        named = [] if model is None else [("model", model)]
        body = multipart([("file", WAV, "a.wav"), *named, *fields.items()])
        return ask(self.app, "POST", "/v1/audio/transcriptions", FORM, body)

    def chat(self, model: str | None = None) -> Reply:
        return self.post("/v1/chat/completions", model=model, messages=[{"role": "user", "content": "Hello"}])

    def post(self, path: str, **members: Any) -> Reply:
        return ask(self.app, "POST", path, JSON, json.dumps(members).encode())

    def get(self, path: str) -> Any:
        return ask(self.app, "GET", path).json

    @property
    def served(self) -> list[str]:
        """The pools that were asked something, the media ones aside."""
        return [name for name, pool in self.pools.items() if pool.jobs and name != "media"]


def heard(name: str, id: str) -> FakeWorker:
    model = msgspec.structs.replace(MULTILINGUAL, id=id)
    return FakeWorker(name, {Transcribe: [*SEGMENTS, HEARD]}, ready=Ready(1, Backend("cpu"), model))


def said(name: str, id: str) -> FakeWorker:
    model = Model(id, "llm", (), False, 1, "float32", 8192)
    script = [Started(3, 0), Delta(0, id), ChoiceEnded(0, "stop", 1), Generated(3, 0, 1)]
    return FakeWorker(name, {Chat: script}, ready=Ready(1, Backend("cpu"), model))


@contextmanager
def several(folder: Path, *, language: bool = True, **settings: Any) -> Iterator[Several]:
    config = Config(
        data_dir=str(folder),
        whisper_model=("whisper-base", "/models/whisper-large"),
        llm_model=("smol", "x/llama") if language else (),
        model_alias=ALIASES if language else (),
        **settings,
    )
    decoded = Decoded(samples=72_000, decoder="soundfile", container="WAV", elapsed_ms=7.0)
    whisper, large = heard("whisper", "whisper-base"), heard("whisper:whisper-large", "whisper-large")
    oracle, other = heard("oracle", "whisper-base"), heard("oracle:whisper-large", "whisper-large")
    workers = Workers(
        FakeWorker("media", {Decode: [decoded]}, ready=Ready(2)),
        FakeWorker("live", {}, ready=Ready(2)),
        {"whisper-base": Speech(whisper, oracle), "whisper-large": Speech(large, other)},
        {"smol": said("llm", "smol"), "x/llama": said("llm:x/llama", "x/llama")} if language else {},
    )
    with Spool(folder) as spool, Store(folder) as store:
        house = furnish(config, workers, spool, store)
        pools = {worker.name: worker for worker in workers if isinstance(worker, FakeWorker)}
        yield Several(build(house), house, pools)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Several]:
    with several(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("model", "pool", "id"),
    [
        (None, "whisper", "whisper-base"),
        ("whisper-1", "whisper", "whisper-base"),
        ("unheard-of", "whisper", "whisper-base"),
        ("whisper-large", "whisper:whisper-large", "whisper-large"),
        ("dictation", "whisper:whisper-large", "whisper-large"),
    ],
)
def test_the_model_of_a_recording_is_the_one_that_was_named(
    service: Several, model: str | None, pool: str, id: str
) -> None:
    reply = service.transcribe(model)
    assert (reply.status, service.served) == (200, [pool])
    assert (reply.headers["x-starling-model"], reply.json["starling"]["model"]) == (id, id)


def test_each_speech_model_has_an_oracle_of_its_own(service: Several) -> None:
    assert service.transcribe("dictation", faithful="true").status == 200
    assert service.served == ["oracle:whisper-large"]


@pytest.mark.parametrize(
    ("model", "id"), [(None, "smol"), ("gpt-5", "smol"), ("x/llama", "x/llama"), ("gpt-4o", "x/llama")]
)
def test_the_model_of_a_chat_is_the_one_that_was_named(service: Several, model: str | None, id: str) -> None:
    reply = service.chat(model)
    assert (reply.status, reply.json["choices"][0]["message"]["content"]) == (200, id)
    assert (reply.headers["x-starling-model"], reply.json["model"]) == (id, id)


def test_the_other_protocols_choose_in_the_same_way(service: Several) -> None:
    turn = [{"role": "user", "content": "Hello"}]
    message = service.post("/v1/messages", model="gpt-4o", max_tokens=5, messages=turn)
    assert (message.json["model"], message.json["content"][0]["text"]) == ("x/llama", "x/llama")
    response = service.post("/v1/responses", model="x/llama", input="Hello")
    assert (response.json["model"], response.json["output"][0]["content"][0]["text"]) == ("x/llama", "x/llama")


def test_a_model_of_the_wrong_kind_is_refused_wherever_it_is_named(service: Several) -> None:
    for reply in (service.transcribe("x/llama"), service.chat("dictation"), service.post(SESSIONS, model="gpt-4o")):
        error = reply.json["error"]
        assert (reply.status, error["code"], error["param"]) == (400, "wrong_model_kind", "model")
    assert service.served == []


def test_a_strict_service_knows_no_other_names(tmp_path: Path) -> None:
    with several(tmp_path, strict_models=True) as service:
        for reply in (service.transcribe("unheard-of"), service.chat("gpt-5")):
            assert (reply.status, reply.json["error"]["code"]) == (404, "model_not_found")
        assert [service.transcribe(name).status for name in ("whisper-1", "dictation")] == [200, 200]
        assert [service.chat(name).status for name in ("smol", "gpt-4o")] == [200, 200]


def test_the_list_has_each_model_once_with_what_is_known_of_it(service: Several) -> None:
    service.pools["llm:x/llama"].state = "idle"
    listed = [each for each in service.get("/v1/models")["data"] if each["configured"]]
    assert [
        (each["id"], each["resident"], each.get("transcription"), each.get("context_window")) for each in listed
    ] == [
        ("whisper-base", True, True, None),
        ("whisper-large", True, True, None),
        ("smol", True, None, 8192),
        ("x/llama", False, None, 8192),
    ]
    assert service.get("/v1/models/gpt-4o")["id"] == "x/llama"
    assert service.get("/v1/models/dictation")["id"] == "whisper-large"


def test_a_model_that_waits_to_be_asked_for_is_no_reason_not_to_be_ready(service: Several) -> None:
    service.pools["whisper:whisper-large"].state = "idle"
    body = service.get("/ready")
    assert (body["status"], [line["name"] for line in body["workers"]]) == (
        "ready",
        ["media", "live", "whisper", "whisper:whisper-large", "llm", "llm:x/llama"],
    )


def test_stats_have_a_line_for_each_pool_and_each_model(service: Several) -> None:
    service.pools["llm:x/llama"].state = "idle"
    body = service.get("/stats")
    assert [line["name"] for line in body["workers"]] == list(service.pools)
    assert body["models"] == [
        {"id": "whisper-base", "resident": True},
        {"id": "whisper-large", "resident": True},
        {"id": "smol", "resident": True},
        {"id": "x/llama", "resident": False},
    ]
    assert (body["model"]["id"], body["llm"]["id"]) == ("whisper-base", "smol")


def test_a_dictation_has_its_model_started_when_it_begins(service: Several) -> None:
    reply = service.post(SESSIONS, model="dictation")
    assert (reply.status, reply.json["model"]) == (201, "whisper-large")
    assert [name for name, pool in service.pools.items() if pool.touched] == ["whisper:whisper-large"]
