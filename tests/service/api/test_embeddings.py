"""POST /v1/embeddings over scripted workers: what is asked of them, how vectors are told, and every refusal."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.errors import ContextLengthExceeded
from protocol.events import Backend, Embedded, Model, Progress, Read, Ready, Vectors
from protocol.jobs import Embed
from tests.asgi import JSON, Reply, ask, opened
from tests.conversing import SMOL
from tests.fakes import FakeWorker
from tests.scripted import scripted

MINI = Model("mini", "embedding", (), False, 22, "float32", 256, embedding_width=2)
HALF = struct.pack("<2f", 0.5, -0.5)
ONE = struct.pack("<2f", 1.0, 0.0)


def two(_: Any) -> Any:
    """Vectors of two inputs, the second one's first."""
    return [Progress(1, 2), Vectors((1,), ONE), Vectors((0,), HALF), Embedded(7, Read(1.0, 2.0, 3.5))]


def each(job: Embed) -> Any:
    places = tuple(range(len(job.inputs)))
    return [Vectors(places, ONE * len(places)), Embedded(len(places))]


@dataclass
class Embedding:
    app: Any
    mini: FakeWorker
    llm: FakeWorker

    def post(self, body: Any = None, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
        sent = json.dumps(fields if body is None else body).encode()
        return ask(self.app, "POST", "/v1/embeddings", JSON | (headers or {}), sent)

    @property
    def job(self) -> Any:
        return self.mini.jobs[-1]


@contextmanager
def embedding(folder: Path, script: Any = each, **settings: Any) -> Iterator[Embedding]:
    mini = FakeWorker("embedding", {Embed: script}, ready=Ready(64, Backend("cpu"), MINI))
    llm = FakeWorker("llm", {Embed: script}, ready=Ready(64, Backend("cpu"), SMOL))
    with scripted(folder, llm=llm, embedding=mini, **settings) as parts:
        yield Embedding(parts.app, mini, llm)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Embedding]:
    with embedding(tmp_path) as made:
        yield made


def test_the_body_is_openais_to_the_letter(tmp_path: Path) -> None:
    with embedding(tmp_path, two) as talk:
        reply = talk.post(model="text-embedding-3-small", input=["a", "b"], user="me", frills=1)
    body = json.loads(reply.body)
    timings = body["starling"].pop("timings")
    assert body == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -0.5]},
            {"object": "embedding", "index": 1, "embedding": [1.0, 0.0]},
        ],
        "model": "mini",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
        "starling": {"model": "mini"},
    }
    assert (timings["queue"], timings["tokenize"], timings["embed"]) == (1.0, 2.0, 3.5)
    assert (reply.headers["x-starling-model"], reply.headers["x-starling-ignored"]) == ("mini", "frills")


def test_base64_is_float32_little_endian(tmp_path: Path) -> None:
    with embedding(tmp_path, two) as talk:
        data = json.loads(talk.post(input=["a", "b"], encoding_format="base64").body)["data"]
    assert [base64.b64decode(entry["embedding"]) for entry in data] == [HALF, ONE]


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", ("a",)),
        (["a", " "], ("a", " ")),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_every_form_of_input_is_told_to_the_worker(talk: Embedding, given: Any, inputs: Any) -> None:
    reply = talk.post(input=given, dimensions=1, headers={"x-starling-client": "me"})
    assert reply.status == 200
    assert talk.job == Embed(inputs, 1, "me")


def test_an_adapter_is_told_to_the_worker_and_the_answer_says_which_it_was(tmp_path: Path) -> None:
    with embedding(tmp_path, lambda job: [Vectors((0,), ONE), Embedded(1, adapter=job.adapter or None)]) as talk:
        body = json.loads(talk.post(input="a", model="smol", adapter="pirate").body)
        assert (talk.llm.jobs[-1].adapter, body["starling"]["adapter"]) == ("pirate", "pirate")
        assert "adapter" not in json.loads(talk.post(input="a", model="smol").body)["starling"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "missing_field", "input"),
        ({"input": None}, "missing_field", "input"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": [[]]}, "invalid_value", "input[0]"),
        ({"input": ["a", ""]}, "invalid_value", "input[1]"),
        ({"input": ["a", 1]}, "invalid_value", "input[1]"),
        ({"input": [1, [1]]}, "invalid_value", "input[1]"),
        ({"input": [[1], [1.5]]}, "invalid_value", "input[1][0]"),
        ({"input": [True]}, "invalid_value", "input[0]"),
        ({"input": {"text": "a"}}, "invalid_value", "input"),
        ({"input": 5}, "invalid_value", "input"),
        ({"input": ["a"] * 2049}, "invalid_value", "input"),
        ({"input": [1 << 70]}, "invalid_value", "input"),
        ({"input": "a", "encoding_format": "int8"}, "invalid_value", "encoding_format"),
        ({"input": "a", "dimensions": 0}, "invalid_value", "dimensions"),
        ({"input": "a", "dimensions": "x"}, "invalid_value", "dimensions"),
        ({"input": "a", "model": 5}, "invalid_value", "model"),
        ({"input": "a", "adapter": 5}, "invalid_value", "adapter"),
        ({"input": "a", "model": "whisper-1"}, "wrong_model_kind", "model"),
        ({"input": "a", "model": "whisper-base"}, "wrong_model_kind", "model"),
    ],
)
def test_what_is_wrong_is_named(talk: Embedding, fields: dict[str, Any], code: str, param: str) -> None:
    reply = talk.post(fields)
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["type"], error["code"], error["param"]) == (400, "invalid_request_error", code, param)
    assert talk.mini.jobs == []


@pytest.mark.parametrize(("given", "param"), [("a", "input"), ([1, 2], "input"), (["a"], "input[0]")])
def test_what_the_worker_refuses_is_named_as_the_client_sent_it(tmp_path: Path, given: Any, param: str) -> None:
    refusal = ContextLengthExceeded("the limit is 256 tokens, but input[0] has 300", param="input[0]")
    with embedding(tmp_path, [refusal]) as talk:
        reply = talk.post(input=given)
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert error["message"] == f"the limit is 256 tokens, but {param} has 300"


def test_a_name_chooses_the_model(tmp_path: Path) -> None:
    with embedding(tmp_path) as talk:
        for name in ("", "mini", "gpt-4o", "text-embedding-ada-002"):
            assert talk.post(input="a", model=name).headers["x-starling-model"] == "mini"
        assert talk.post(input="a", model="smol").headers["x-starling-model"] == "smol"
        assert (len(talk.mini.jobs), len(talk.llm.jobs)) == (4, 1)


def test_without_a_model_for_it_the_language_model_serves(tmp_path: Path) -> None:
    with embedding(tmp_path, embedding_model=()) as talk:
        assert talk.post(input="a", model="text-embedding-3-large").headers["x-starling-model"] == "smol"
        assert len(talk.llm.jobs) == 1


def test_without_any_model_the_answer_says_how_to_get_one(tmp_path: Path) -> None:
    with embedding(tmp_path, embedding_model=(), llm_model=()) as talk:
        reply = talk.post(input="a")
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (503, "model_not_configured")
    assert "--embedding-model" in error["message"] and "all-minilm-l6-v2" in error["message"]
    assert reply.headers["x-should-retry"] == "false"


def test_strict_names(tmp_path: Path) -> None:
    with embedding(tmp_path, strict_models=True) as talk:
        assert talk.post(input="a", model="text-embedding-3-small").status == 200
        reply = talk.post(input="a", model="mine")
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (404, "model_not_found")


def test_a_model_for_embeddings_does_not_chat(talk: Embedding) -> None:
    body = {"model": "mini", "messages": [{"role": "user", "content": "Hi"}]}
    reply = ask(talk.app, "POST", "/v1/chat/completions", JSON, json.dumps(body).encode())
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (400, "wrong_model_kind")


def test_the_models_say_what_makes_embeddings(talk: Embedding) -> None:
    listed = {each["id"]: each for each in json.loads(ask(talk.app, "GET", "/v1/models").body)["data"]}
    assert listed["mini"]["capabilities"] == {
        "chat_completions": False,
        "transcription": False,
        "translation": False,
        "embeddings": True,
        "adapters": False,
        "tools": False,
        "structured_outputs": False,
    }
    assert (listed["mini"]["context_window"], listed["mini"]["resident"]) == (256, True)
    # What the scripted language model says of itself has no width.
    assert listed["smol"]["capabilities"]["embeddings"] is False


def test_a_client_that_leaves_cancels_its_job(tmp_path: Path) -> None:
    started, never = asyncio.Event(), asyncio.Event()

    def script(_: Any) -> Any:
        started.set()
        return [Progress(0, 1), never]

    async def leave() -> None:
        with embedding(tmp_path, script) as talk:
            async with opened(talk.app, "POST", "/v1/embeddings", JSON) as exchange:
                exchange.send(json.dumps({"input": "a"}).encode(), more=False)
                await asyncio.wait_for(started.wait(), 5)
                exchange.leave()
            assert talk.mini.cancelled == [talk.job]

    asyncio.run(leave())


def test_null_means_the_default(talk: Embedding) -> None:
    """REQ-12"""
    reply = talk.post({"input": "a", "model": None, "encoding_format": None, "dimensions": None, "user": None})
    assert reply.status == 200
    assert talk.job == msgspec.structs.replace(talk.job, inputs=("a",), dimensions=None)
