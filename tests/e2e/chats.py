"""Chats with the starter for tests from outside: bodies that are long, or that never end by themselves."""

from __future__ import annotations

from typing import Any

import httpx

from tests.e2e.server import Server

PATH = "/v1/chat/completions"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
NEVER_ENDS = {"2": -100, "0": -100}
"""A bias against the tokens with which the starter ends a text."""


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": CAPITAL, "temperature": 0, **fields}


def long(words: int, **fields: Any) -> dict[str, Any]:
    """A prompt of about so many tokens."""
    content = " ".join(str(number % 10) for number in range(words // 2))
    return body(messages=[{"role": "user", "content": f"{fields.pop('begin', 'Numbers:')} {content}"}], **fields)


def post(server: Server, fields: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(server.url + PATH, json=fields, headers=headers, timeout=300)


def running(server: Server) -> int:
    return int(server.stats("llm")["running"])
