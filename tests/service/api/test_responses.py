"""/v1/responses over HTTP: bodies, the order of events, and conversations that are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types import responses as types
from pydantic import TypeAdapter

from protocol.errors import ContextLengthExceeded, WorkerCrashed
from protocol.events import ChoiceEnded, Counted, Delta, Generated, Said, Started
from protocol.jobs import Chat, ChatMessage, CountTokens
from protocol.tools import CallPart
from tests.asgi import JSON, Reply, ask
from tests.conversing import GENERATED, READY, SAID, SPENT, Conversing, conversing, events
from tests.fakes import FakeWorker
from tests.scripted import scripted

PATH = "/v1/responses"
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 12,
}
CALLING = (
    Started(9, 4),
    Delta(0, reasoning="Hm"),
    Delta(0, reasoning="."),
    Delta(0, "Let me "),
    Delta(0, "see.", calls=(CallPart(0, "call_a", "weather"), CallPart(0, arguments='{"city"'))),
    Delta(0, calls=(CallPart(0, arguments=': "Graz"}'), CallPart(1, "call_b", "time", "{}"))),
    ChoiceEnded(0, "tool_calls", 20, reasoning_tokens=2),
    Generated(9, 4, 20, SPENT),
)
EVENT: TypeAdapter[Any] = TypeAdapter(types.ResponseStreamEvent)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversing]:
    with conversing(tmp_path) as made:
        yield made


def post(talk: Conversing, **fields: Any) -> Reply:
    return talk.post(PATH, {"input": "Hi", **fields})


def get(talk: Conversing, path: str, method: str = "GET") -> Reply:
    return ask(talk.app, method, f"{PATH}/{path}", JSON)


def streamed(reply: Reply) -> list[dict[str, Any]]:
    """The data of events that are as the API describes them."""
    said = events(reply)
    assert [event.name for event in said] == [event.data["type"] for event in said]
    assert [event.data["sequence_number"] for event in said] == list(range(len(said)))
    for event in said:
        EVENT.validate_python(event.data)
    return [event.data for event in said]


def test_a_response_is_openai_s(talk: Conversing) -> None:
    body = post(talk, model="gpt-5", metadata={"a": "b"}, instructions="Be brief.").json
    types.Response.model_validate(body, strict=True)
    assert re.fullmatch(r"resp_[0-9a-f]{24}", body.pop("id"))
    (item,) = body.pop("output")
    assert re.fullmatch(r"msg_[0-9a-f]{24}", item.pop("id"))
    assert item == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}],
    }
    assert body["created_at"] > 1_700_000_000 and body["completed_at"] >= body["created_at"]
    expected = {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "model": "smol",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": USAGE,
    }
    assert {name: body[name] for name in expected} == expected
    assert body["starling"]["timings"]["decode"] == 6


def test_a_text_s_events_come_in_order(talk: Conversing) -> None:
    said = streamed(post(talk, stream=True))
    assert [event["type"].removeprefix("response.") for event in said] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert (said[0]["response"]["status"], said[0]["response"]["output"]) == ("in_progress", [])
    added, part = said[2], said[3]
    assert (added["item"]["status"], added["item"]["content"]) == ("in_progress", [])
    assert part["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert [event["delta"] for event in said if "delta" in event] == ["Hel", "lo."]
    assert said[6]["text"] == "Hello."
    assert said[8]["item"] == said[-1]["response"]["output"][0]
    assert {event["item_id"] for event in said if "item_id" in event} == {added["item"]["id"]}


def test_thoughts_text_and_calls_are_items_in_order(tmp_path: Path) -> None:
    with conversing(tmp_path, CALLING) as talk:
        whole = post(talk).json
        said = streamed(post(talk, stream=True))
    types.Response.model_validate(whole, strict=True)
    thought, text, first, second = whole["output"]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert text["content"][0]["text"] == "Let me see."
    assert first | {"id": ""} == {
        "id": "",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_a",
        "name": "weather",
        "arguments": '{"city": "Graz"}',
    }
    assert (second["call_id"], second["arguments"]) == ("call_b", "{}")
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    assert [(event["type"].removeprefix("response."), event["output_index"]) for event in said[2:-1]] == [
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("output_item.added", 3),
        ("function_call_arguments.delta", 3),
        ("function_call_arguments.done", 3),
        ("output_item.done", 3),
    ]
    added = [event["item"] for event in said if event["type"] == "response.output_item.added"]
    assert (added[0]["content"], added[2]["arguments"]) == ([], "")


def test_an_answer_that_is_cut_off_is_incomplete(tmp_path: Path) -> None:
    script = (Started(9, 0), Delta(0, "x"), ChoiceEnded(0, "length", 1), GENERATED)
    with conversing(tmp_path, script) as talk:
        body = post(talk, max_output_tokens=1).json
        last = streamed(post(talk, stream=True))[-1]
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def test_a_call_that_is_whole_is_one_even_if_the_answer_is_cut_behind_it(tmp_path: Path) -> None:
    for arguments, status in (('{"a": 1}', "completed"), ('{"a": 1', "incomplete"), ("", "incomplete")):
        call = CallPart(0, "call_1", "f", arguments)
        script = (Started(9, 0), Delta(0, calls=(call,)), ChoiceEnded(0, "length", 1), GENERATED)
        with conversing(tmp_path, script) as talk:
            body = post(talk, tools=[{"type": "function", "name": "f"}]).json
            done = streamed(post(talk, tools=[{"type": "function", "name": "f"}], stream=True))[-2]
        assert (body["status"], body["output"][0]["status"]) == ("incomplete", status)
        assert done["item"]["status"] == status


def test_an_empty_answer_is_an_empty_message(tmp_path: Path) -> None:
    with conversing(tmp_path, (Started(9, 0), Delta(0), ChoiceEnded(0, "stop", 1), GENERATED)) as talk:
        (item,) = post(talk).json["output"]
        streamed(post(talk, stream=True))
    assert item["content"][0]["text"] == ""


def test_log_probabilities_come_where_they_were_asked_for(tmp_path: Path) -> None:
    script = (Started(9, 0), Delta(0, "y", said=(Said("y", b"y", -0.5),)), ChoiceEnded(0, "stop", 1), GENERATED)
    expected = [{"token": "y", "logprob": -0.5, "bytes": [121], "top_logprobs": []}]
    with conversing(tmp_path, script) as talk:
        include = ["message.output_text.logprobs"]
        assert post(talk, include=include).json["output"][0]["content"][0]["logprobs"] == expected
        said = streamed(post(talk, include=include, stream=True))
    assert [event["logprobs"] for event in said if "logprobs" in event] == [expected, expected]


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_keeps_its_status(tmp_path: Path, stream: bool) -> None:
    with conversing(tmp_path, [ContextLengthExceeded("too long", param="messages")]) as talk:
        assert post(talk, stream=stream).error == (400, "context_length_exceeded", "input")


def test_a_late_failure_is_told_twice_and_the_sdk_raises_it(tmp_path: Path) -> None:
    with conversing(tmp_path, [*SAID[:2], WorkerCrashed("the worker crashed")]) as talk:
        *_, failed, error = streamed(post(talk, stream=True))
        assert get(talk, failed["response"]["id"]).status == 404
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "the worker crashed"}
    assert (error["type"], error["code"], error["message"]) == ("error", "worker_crashed", "the worker crashed")
    assert error["error"]["type"] == "service_unavailable_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_what_was_kept(tmp_path: Path, stream: bool) -> None:
    def answered(talk: Conversing, **fields: Any) -> dict[str, Any]:
        reply = post(talk, stream=stream, **fields)
        body: dict[str, Any] = streamed(reply)[-1]["response"] if stream else reply.json
        return body

    with conversing(tmp_path) as talk:
        first = answered(talk, instructions="Be brief.")
        second = answered(talk, input="And?", previous_response_id=first["id"])
    with conversing(tmp_path) as talk:  # Another service on the same folder.
        third = answered(talk, input=[{"role": "user", "content": "So?"}], previous_response_id=second["id"])
        assert talk.job.messages == (
            ChatMessage(role="user", content="Hi"),
            ChatMessage(role="assistant", content="Hello."),
            ChatMessage(role="user", content="And?"),
            ChatMessage(role="assistant", content="Hello."),
            ChatMessage(role="user", content="So?"),
        )
        assert third["previous_response_id"] == second["id"]
        assert get(talk, first["id"]).json == first


def test_results_of_calls_go_back_by_their_ids_alone(tmp_path: Path) -> None:
    with conversing(tmp_path, CALLING) as talk:
        first = post(talk).json
        output = {"type": "function_call_output", "call_id": "call_a", "output": "rain"}
        assert post(talk, input=[output], previous_response_id=first["id"]).status == 200
        _, asked, told = talk.job.messages
        assert [call["id"] for call in asked.tool_calls] == ["call_a", "call_b"]
        assert (asked.reasoning_content, told.role, told.content) == ("Hm.", "tool", "rain")
        assert post(talk, input=[output]).error == (400, "invalid_value", "input[0].call_id")


def test_an_item_may_be_referred_to_by_its_id(talk: Conversing) -> None:
    item = post(talk).json["output"][0]["id"]
    post(talk, input=[{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": item}, {"id": item}])
    assert [each.content for each in talk.job.messages] == ["Hi", "Hello.Hello."]
    reply = post(talk, input=[{"type": "item_reference", "id": "msg_x"}])
    assert reply.error == (404, "unknown_response", "input[0].id")
    assert post(talk, input=[{"type": "item_reference"}]).error == (400, "missing_field", "input[0].id")


def test_what_is_not_to_be_stored_is_not(talk: Conversing) -> None:
    body = post(talk, store=False).json
    assert body["store"] is False
    assert get(talk, body["id"]).error == (404, "unknown_response", None)
    reply = post(talk, previous_response_id=body["id"])
    assert reply.error == (404, "unknown_response", "previous_response_id")


def test_a_response_is_deleted_once(talk: Conversing) -> None:
    id = post(talk).json["id"]
    assert get(talk, id, "DELETE").json == {"id": id, "object": "response", "deleted": True}
    assert get(talk, id, "DELETE").error == (404, "unknown_response", None)
    assert get(talk, id).status == get(talk, f"{id}/input_items").status == 404


def test_the_input_s_items_are_listed_in_pages(talk: Conversing) -> None:
    given = [{"role": "user", "content": str(number)} for number in range(3)]
    id = post(talk, input=given).json["id"]
    page = get(talk, f"{id}/input_items?limit=2").json
    types.ResponseItemList.model_validate(page, strict=True)
    assert [item["content"][0]["text"] for item in page["data"]] == ["2", "1"]
    assert page["has_more"] is True and page["last_id"] == page["data"][-1]["id"]
    rest = get(talk, f"{id}/input_items?limit=2&after={page['last_id']}").json
    assert ([item["content"][0]["text"] for item in rest["data"]], rest["has_more"]) == (["0"], False)
    assert get(talk, f"{id}/input_items?order=asc").json["data"] == [*rest["data"], *reversed(page["data"])]
    for query in ("limit=0", "limit=x", "order=up", "after=nothing"):
        assert get(talk, f"{id}/input_items?{query}").error == (400, "invalid_value", query.partition("=")[0])
    for wanted in ("true", "True", "1", "x"):
        assert get(talk, f"{id}?stream={wanted}").error == (400, "unsupported_value", "stream")
    assert get(talk, f"{id}?stream=false").status == 200


def test_a_prompt_is_counted_with_what_came_before(tmp_path: Path) -> None:
    llm = FakeWorker("llm", {CountTokens: [Counted(17)], Chat: SAID}, ready=READY)
    with scripted(tmp_path, llm=llm) as parts:
        talk = Conversing(parts.app, llm)
        first = post(talk).json
        body = {"input": "And?", "previous_response_id": first["id"]}
        reply = talk.post(f"{PATH}/input_tokens", body)
        assert reply.json == {"object": "response.input_tokens", "input_tokens": 17}
        assert [each.content for each in talk.job.chat.messages] == ["Hi", "Hello.", "And?"]
