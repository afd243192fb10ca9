"""Workers that are killed under requests of every kind: clients notice a pause, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.asgi import told
from tests.e2e.chats import NEVER_ENDS, body
from tests.e2e.server import Server, until
from tests.speech import speak

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Seven ships sailed into the harbor this morning.",
    "Please open the window and close the door.",
    "My brother bought a new blue bicycle yesterday.",
)
SEEDED = {"temperature": 1.0, "seed": 5, "logit_bias": NEVER_ENDS}
PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 20},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["first_name", "colours", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 60}},
            "required": ["city"],
        },
    },
}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STORY = {"messages": [{"role": "user", "content": "Tell me a long story about the sea."}]}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (CHAT, body(**STORY, max_tokens=60)),
    "seeded, two choices": (CHAT, body(**STORY, max_tokens=50, n=2) | SEEDED),
    "stop": (CHAT, body(**STORY, max_tokens=60, stop=["ocean never", " and never", "once and"]) | SEEDED),
    "log-probabilities": (CHAT, body(**STORY, max_tokens=40, logprobs=True, top_logprobs=2)),
    "a schema": (
        CHAT,
        body(
            **STORY,
            max_tokens=80,
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        ),
    ),
    "a call": (CHAT, body(**STORY, max_tokens=80, tools=[WEATHER], tool_choice="required")),
    "completion": (COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 60} | SEEDED),
    "messages": ("/v1/messages", {**STORY, "model": "any", "max_tokens": 60, "temperature": 0}),
    "responses": ("/v1/responses", {"input": "Tell me a long story.", "max_output_tokens": 60, "temperature": 0}),
}


class Reader:
    """Streams answers and counts what they have said so far."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.said = 0
        self._lock = threading.Lock()

    def chat(self, asked: tuple[str, dict[str, Any]]) -> Any:
        path, fields = asked
        extra = {"stream_options": {"include_usage": True}} if path in (CHAT, COMPLETIONS) else {}
        seen = b""
        with httpx.stream("POST", self.server.url + path, json={**fields, **extra, "stream": True}, timeout=300) as got:
            assert got.status_code == 200, got.read()
            for chunk in got.iter_bytes():
                seen += chunk
                with self._lock:
                    self.said += chunk.count(b"data: ")
        return shown([event.data for event in told(seen)[0] if event.data != "[DONE]"])

    def speech(self, path: Path, **fields: str) -> tuple[list[str], Any]:
        """The deltas, and the last event without what differs from run to run."""
        seen = b""
        url = f"{self.server.url}/v1/audio/transcriptions"
        data = {"stream": "true", "response_format": "verbose_json", **fields}
        with path.open("rb") as file, httpx.stream("POST", url, files={"file": file}, data=data, timeout=300) as got:
            for chunk in got.iter_bytes():
                seen += chunk
                with self._lock:
                    self.said += chunk.count(b"transcript.text.delta")
        events = [event.data for event in told(seen)[0]]
        assert events[-1]["type"] == "transcript.text.done", events[-1]
        return [each["delta"] for each in events if each["type"] == "transcript.text.delta"], {
            **events[-1],
            "starling": None,
        }


def shown(events: list[dict[str, Any]]) -> Any:
    """An answer by what clients join; ids and times left out, log-probabilities rounded."""
    text: dict[Any, str] = {}
    logprobs: list[float] = []
    rest: list[Any] = []
    for event in events:
        assert "error" not in event or event["error"] is None, event
        for choice in event.get("choices", ()):
            delta = choice.get("delta", choice)
            key = choice["index"]
            text[key] = text.get(key, "") + (delta.get("content") or choice.get("text") or "")
            for call in delta.get("tool_calls") or ():
                call_key = (key, call["index"])
                function = call["function"]
                text[call_key] = text.get(call_key, "") + (function.get("name") or "") + function.get("arguments", "")
            logprobs += [round(each["logprob"], 2) for each in (choice.get("logprobs") or {}).get("content", ())]
            rest.append(choice.get("finish_reason"))
        delta = event.get("delta")
        if isinstance(delta, str):
            text["delta"] = text.get("delta", "") + delta
        elif isinstance(delta, dict):
            text["delta"] = text.get("delta", "") + delta.get("text", "") + str(delta.get("stop_reason", ""))
        usage = event.get("usage") or (event.get("response") or {}).get("usage")
        if usage:
            # What a cache held is no part of the answer.
            rest.append([usage.get(each) for each in ("prompt_tokens", "completion_tokens", "output_tokens")])
    assert events[-1].get("type") in (None, "message_stop", "response.completed", "response.incomplete"), events[-1]
    return text, logprobs, [each for each in rest if each is not None]


def killed(server: Server, reader: Reader, name: str, at: list[int], work: Callable[[], list[Any]]) -> list[Any]:
    """What comes of `work` while the worker is killed each time that so much more has been said."""
    with ThreadPoolExecutor(1) as pool:
        begun = reader.said
        working = pool.submit(work)
        for number in at:
            until(lambda number=number: reader.said - begun >= number or working.done(), f"{number} events", 200)
            for victim in server.workers(name):
                os.kill(victim.pid, signal.SIGKILL)
        return working.result()


def test_answers_of_all_kinds_survive_their_worker(talker: Server) -> None:
    """Undisturbed one by one; then all at once while the worker is killed three times."""
    reader = Reader(talker)
    expected = [reader.chat(each) for each in REQUESTS.values()]
    restarts = int(talker.stats("llm")["restarts"])

    def work() -> list[Any]:
        with ThreadPoolExecutor(len(REQUESTS)) as pool:
            return list(pool.map(reader.chat, REQUESTS.values()))

    found = killed(talker, reader, "llm", [1, 60, 220], work)
    for name, one, other in zip(REQUESTS, expected, found, strict=True):
        assert one == other, name
    assert int(talker.stats("llm")["restarts"]) == restarts + 3
    assert json.loads(found[list(REQUESTS).index("a schema")][0][0])


def test_recordings_survive_their_workers(talker: Server, tmp_path: Path) -> None:
    """One in order and one in pieces, while the worker is killed twice; and one whose decoder is killed."""
    pieces = [speak(sentence) for sentence in SENTENCES * 8]
    clip = tmp_path / "long.wav"
    soundfile.write(clip, np.concatenate([samples for samples, _ in pieces]), pieces[0][1])
    reader = Reader(talker)
    asked: list[dict[str, str]] = [
        {"timestamp_granularities[]": "word"},
        {"chunking_strategy": "auto"},
    ]
    expected = [reader.speech(clip, **each) for each in asked]
    assert "fox" in expected[0][1]["text"]

    def work() -> list[Any]:
        with ThreadPoolExecutor(len(asked)) as pool:
            return list(pool.map(lambda each: reader.speech(clip, **each), asked))

    found = killed(talker, reader, "whisper", [0, 3], work)
    assert found == expected
    assert killed(talker, reader, "media", [0], lambda: [reader.speech(clip, **asked[0])]) == expected[:1]
    until(lambda: not talker.spooled(), "the uploads are removed")
