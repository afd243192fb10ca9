"""A service whose language model is a script, and ways to ask it. Knows no test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.events import Backend, ChoiceEnded, Delta, GenDefaults, Generated, Model, Ready, Spent, Started
from protocol.jobs import Chat, Complete
from tests.asgi import JSON, Reply, Told, ask, told
from tests.fakes import FakeWorker
from tests.scripted import scripted

SMOL = Model("smol", "llm", (), False, 134_515_008, "float32", 8192, GenDefaults(0.7, 0.9, 40))
READY = Ready(64, Backend("cpu", "0.32", "OpenBLAS 0.3"), SMOL)
SPENT = Spent(queue=1, template=2, cache=3, prefill=4, first_token=5, decode=6)
GENERATED = Generated(9, 4, 3, SPENT)
SAID = (Started(9, 4), Delta(0, "Hel"), Delta(0, "lo."), ChoiceEnded(0, "stop", 3), GENERATED)
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}
HI = [{"role": "user", "content": "Hi"}]


@dataclass
class Conversing:
    """The application, the script behind it, and two ways to ask."""

    app: Any
    llm: FakeWorker

    def chat(self, *, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
        return self.post("/v1/chat/completions", {"messages": HI, **fields}, headers)

    def complete(self, **fields: Any) -> Reply:
        return self.post("/v1/completions", {"prompt": "Once", **fields})

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        return ask(self.app, "POST", path, JSON | (headers or {}), encoded)

    @property
    def job(self) -> Any:
        """The last thing that the worker was asked."""
        return self.llm.jobs[-1]


def events(reply: Reply) -> list[Told]:
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    return told(reply.body)[0]


def chunks(reply: Reply) -> list[dict[str, Any]]:
    """The data of a stream that ended as it should."""
    *said, last = events(reply)
    assert last == Told("", "[DONE]")
    assert all(event.name == "" for event in said)
    return [event.data for event in said]


@contextmanager
def conversing(folder: Path, script: Any = SAID, **settings: Any) -> Iterator[Conversing]:
    llm = FakeWorker("llm", {Chat: script, Complete: script}, ready=READY)
    with scripted(folder, llm=llm, **settings) as parts:
        yield Conversing(parts.app, llm)
