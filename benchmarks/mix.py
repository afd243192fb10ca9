"""Requests of every kind with the answers that they must have: uploads, streams, dictations, chats.

Knows HTTP and what of an answer counts; knows nothing of what happens to the server meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import soundfile

from tests.asgi import told
from tests.e2e.server import Server
from tests.speech import speak

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Seven ships sailed into the harbor this morning.",
    "Please open the window and close the door.",
    "My brother bought a new blue bicycle yesterday.",
)
CLIPS = {"short": 1, "middle": 3, "long": 12}
"""Sentences in each recording, over and over."""
SEGMENTATIONS = ("vad", "window")
CHUNK = 8_000
"""Samples of a dictation's chunk: half a second."""
PATIENCE_S = 900.0
"""For one answer: workers are killed faster than they start at times."""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}},
            "required": ["city"],
        },
    },
}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "name": {"type": "string", "maxLength": 20}},
    "required": ["x", "name"],
    "additionalProperties": False,
}


class Wrong(Exception):
    """A request failed, or acknowledged audio was lost."""


@dataclass(frozen=True)
class Request:
    """One thing to ask. `ask` gives what must be the same every time, or raises Wrong."""

    kind: str
    name: str
    ask: Callable[[], Any]
    expected: Any = None

    def undisturbed(self) -> Request:
        """With the answer that it has now."""
        return replace(self, expected=self.ask())


def catalogue(server: Server, folder: Path) -> list[Request]:
    """All requests; their recordings are written to `folder`."""
    clips = {name: _clip(folder / f"{name}.wav", number) for name, number in CLIPS.items()}
    speech = f"{server.url}/v1/audio/transcriptions"
    found = [
        Request("upload", f"{name} {fields}", partial(_upload, speech, path, fields))
        for name, path in clips.items()
        for fields in ({}, {"chunking_strategy": "auto"}, {"temperature": "0.4", "best_of": "2"})
    ]
    found += [
        Request("stream", f"{name} {fields}", partial(_stream, speech, path, fields))
        for name, path in clips.items()
        for fields in ({}, {"timestamp_granularities[]": "word"})
    ]
    sessions = f"{server.url}/v1/audio/sessions"
    found += [Request("dictation", how, partial(_dictation, sessions, clips["middle"], how)) for how in SEGMENTATIONS]
    found += [
        Request("chat", f"{name}{', streamed' * streamed}", partial(_chat, server.url, fields, stream=streamed))
        for name, fields in _chats().items()
        for streamed in (False, True)
    ]
    return found


def _chats() -> dict[str, dict[str, Any]]:
    story = {"messages": [{"role": "user", "content": "Tell me a story about the sea."}], "max_tokens": 60}
    seeded = {"temperature": 1.0, "seed": 11}
    schema = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}
    return {
        "greedy": {**story, "temperature": 0},
        "seeded": {**story, **seeded},
        "two": {**story, **seeded, "n": 2},
        "stop": {**story, **seeded, "stop": [" and the", " sea never"]},
        "schema": {**story, "temperature": 0, "response_format": schema},
        "call": {**story, "temperature": 0, "tools": [WEATHER], "tool_choice": "required"},
    }


def _clip(path: Path, sentences: int) -> Path:
    pieces = [speak(SENTENCES[place % len(SENTENCES)]) for place in range(sentences)]
    soundfile.write(path, np.concatenate([samples for samples, _ in pieces]), pieces[0][1])
    return path


def _checked(answer: httpx.Response, *statuses: int) -> httpx.Response:
    if answer.status_code not in (statuses or (200,)):
        raise Wrong(f"{answer.request.url.path}: {answer.status_code} {answer.text[:300]}")
    return answer


def _upload(url: str, path: Path, fields: dict[str, str]) -> Any:
    with path.open("rb") as file:
        answer = _checked(httpx.post(url, files={"file": file}, data=fields, timeout=PATIENCE_S)).json()
    return answer["text"], answer["starling"]["duration"]


def _stream(url: str, path: Path, fields: dict[str, str]) -> Any:
    data = {"stream": "true", "response_format": "verbose_json", **fields}
    with path.open("rb") as file:
        answer = _checked(httpx.post(url, files={"file": file}, data=data, timeout=PATIENCE_S))
    events = [event.data for event in told(answer.content)[0]]
    last = events[-1]
    if last.get("type") != "transcript.text.done":
        raise Wrong(f"a stream ended with {json.dumps(last)[:300]}")
    deltas = [each["delta"] for each in events if each["type"] == "transcript.text.delta"]
    if "".join(deltas) != last["text"]:
        raise Wrong("the deltas are not the text")
    return deltas, last["segments"], last.get("words")


def _dictation(url: str, path: Path, how: str) -> str:
    samples = soundfile.read(path, dtype="int16")[0]
    with httpx.Client(timeout=PATIENCE_S) as client:
        fields = {"segmentation": how, "partials": how == "vad"}
        url = f"{url}/{_checked(client.post(url, json=fields), 201).json()['id']}"
        sent = 0
        for number, start in enumerate(range(0, len(samples), CHUNK)):
            chunk = samples[start : start + CHUNK]
            headers = {"content-type": "audio/pcm;encoding=s16le", "x-starling-seq": str(number)}
            answer = _checked(client.post(f"{url}/audio", content=chunk.tobytes(), headers=headers)).json()
            sent += len(chunk)
            if answer["samples"] != sent:
                raise Wrong(f"acknowledged audio was lost: {answer['samples']} of {sent} samples")
            time.sleep(0.05)
        text: str = _checked(client.post(f"{url}/finish")).json()["text"]
        heard = _checked(client.get(url)).json()
        if heard["samples"] != sent:
            raise Wrong(f"acknowledged audio was lost: {heard['samples']} of {sent} samples")
        _checked(client.delete(url), 204)
    return text


def _chat(url: str, fields: dict[str, Any], *, stream: bool) -> Any:
    url += "/v1/chat/completions"
    if not stream:
        answer = _checked(httpx.post(url, json=fields, timeout=PATIENCE_S)).json()
        return [
            (each["message"]["content"] or "", _calls(each["message"].get("tool_calls") or ()), each["finish_reason"])
            for each in answer["choices"]
        ]
    answer = _checked(httpx.post(url, json={**fields, "stream": True}, timeout=PATIENCE_S))
    events = [event.data for event in told(answer.content)[0]]
    if events[-1] != "[DONE]":
        raise Wrong(f"a stream ended with {json.dumps(events[-1])[:300]}")
    texts, calls, ends = [""] * fields.get("n", 1), [""] * fields.get("n", 1), [""] * fields.get("n", 1)
    for choice in (choice for event in events[:-1] for choice in event["choices"]):
        place, delta = choice["index"], choice["delta"]
        texts[place] += delta.get("content") or ""
        calls[place] += _calls(delta.get("tool_calls") or ())
        ends[place] = choice["finish_reason"] or ends[place]
    return list(zip(texts, calls, ends, strict=True))


def _calls(calls: Any) -> str:
    """Names and arguments; ids are new every time."""
    return "".join((each["function"].get("name") or "") + each["function"].get("arguments", "") for each in calls)
