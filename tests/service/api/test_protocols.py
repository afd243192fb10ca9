"""What holds for Anthropic's Messages and OpenAI's Responses alike: nulls, both modes, any text, clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.events import ChoiceEnded, Delta, Started
from service.messages.request import MessagesRequest
from service.responses.request import ResponsesRequest
from tests.asgi import JSON, Reply, opened
from tests.conversing import GENERATED, HI, SAID, Conversing, conversing, events


@dataclass(frozen=True)
class Protocol:
    path: str
    fields: type[msgspec.Struct]
    least: dict[str, Any]
    """A body that is accepted."""

    @property
    def optional(self) -> list[str]:
        return [field.encode_name for field in msgspec.structs.fields(self.fields) if not field.required]

    def text(self, body: Any) -> str:
        """What the model said, of a whole answer."""
        blocks = body["content"] if "content" in body else body["output"][0]["content"]
        return "".join(block["text"] for block in blocks)


EDGES = (-1, 1e308, -1e308, 1 << 70, 0.5, "x" * 1000, "", True, [], {}, [[]], [None], [{}], {"": None})
PROTOCOLS = (
    Protocol("/v1/messages", MessagesRequest, {"max_tokens": 16, "messages": HI}),
    Protocol("/v1/responses", ResponsesRequest, {"input": "Hi"}),
)
each = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.path)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversing]:
    with conversing(tmp_path) as made:
        yield made


def post(talk: Conversing, protocol: Protocol, **fields: Any) -> Reply:
    return talk.post(protocol.path, {**protocol.least, **fields})


@each
def test_null_means_the_default_for_every_optional_field(talk: Conversing, protocol: Protocol) -> None:
    """REQ-12"""
    assert post(talk, protocol).status == 200
    plain = talk.job
    nulls = {name: None for name in protocol.optional if name not in protocol.least}
    assert len(nulls) > 20
    assert post(talk, protocol, **nulls).status == 200
    assert talk.job == plain


@each
@pytest.mark.parametrize(
    "value", [-1, 1e308, -1e308, 1 << 70, 0.5, "x" * 1000, "", True, [], {}, [[]], [None], {"": None}]
)
def test_no_value_of_any_field_is_an_error_of_the_server(talk: Conversing, protocol: Protocol, value: Any) -> None:
    """REQ-12"""
    for name in (*protocol.optional, *protocol.least):
        reply = post(talk, protocol, **{name: value})
        assert reply.status in (200, 400, 404), (name, reply.status)


@each
@pytest.mark.parametrize("value", ["\ud800", {"\ud800": "\ud800"}])
def test_halves_of_characters_are_refused(talk: Conversing, protocol: Protocol, value: Any) -> None:
    name = next(name for name in ("system", "instructions") if name in protocol.optional)
    for fields in ({name: value}, {"chat_template_kwargs": {"a": value}}, {"\ud800": value}, {"\ud800": 1}):
        assert post(talk, protocol, **fields).status == 400


@each
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.3, "top_p": 0, "seed": 5}, {"top_k": 4, "min_p": 0.1}])
def test_a_field_means_the_same_in_both_modes(talk: Conversing, protocol: Protocol, fields: dict[str, Any]) -> None:
    """REQ-11"""
    assert post(talk, protocol, **fields).status == 200
    collected = talk.job
    assert post(talk, protocol, **fields, stream=True).status == 200
    assert talk.job == collected


@each
@pytest.mark.parametrize("text", ["a\n\nb", "a\r\nb", "a\u2028b\u2029c\x85", "event: error\ndata: x\n\n", "🐦‍⬛"])
def test_any_text_arrives_as_it_was_said_in_one_line_of_data(tmp_path: Path, protocol: Protocol, text: str) -> None:
    """STR-07"""
    script = (Started(9, 0), Delta(0, text), ChoiceEnded(0, "stop", 1), GENERATED)
    with conversing(tmp_path, script) as talk:
        assert protocol.text(post(talk, protocol).json) == text
        reply = post(talk, protocol, stream=True)
        said = events(reply)
    deltas = [event.data["delta"] for event in said if "delta" in event.data]
    assert text in [delta if isinstance(delta, str) else delta.get("text") for delta in deltas]
    # A name, a line of data and an empty one for each event, whatever a client takes for the end of a line.
    assert len(reply.text.splitlines()) == 3 * len(said)


@each
def test_a_client_that_leaves_in_mid_stream_cancels_it(tmp_path: Path, protocol: Protocol) -> None:
    """STR-01"""
    never = asyncio.Event()

    async def main() -> None:
        with conversing(tmp_path, [*SAID[:2], never]) as talk:
            async with opened(talk.app, "POST", protocol.path, JSON) as exchange:
                exchange.send(json.dumps({**protocol.least, "stream": True}).encode(), more=False)
                await exchange.until(b'"Hel"')
                exchange.leave()
            assert talk.llm.cancelled == talk.llm.jobs
            assert talk.llm.running == 0

    asyncio.run(main())


@each
def test_a_client_that_does_not_read_is_given_up(tmp_path: Path, protocol: Protocol) -> None:
    """STR-09"""

    async def main() -> None:
        script = [Started(9, 0), *(Delta(0, "x" * 1000) for _ in range(1000)), ChoiceEnded(0, "stop", 1), GENERATED]
        with conversing(tmp_path, script, unread_s=0.1) as talk:
            async with opened(talk.app, "POST", protocol.path, JSON) as exchange:
                exchange.stops_at = b"xxx"
                exchange.send(json.dumps({**protocol.least, "stream": True}).encode(), more=False)
            assert talk.llm.cancelled == talk.llm.jobs

    asyncio.run(main())
