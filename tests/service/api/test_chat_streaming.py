"""`stream=true` on both completion routes: chunks, usage, late failures, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from protocol.errors import WorkerCrashed
from protocol.events import ChoiceEnded, Delta, Generated, Said, Started
from protocol.jobs import Complete
from tests.asgi import JSON, opened, told
from tests.conversing import GENERATED, HI, SAID, SPENT, USAGE, Conversing, chunks, conversing, events

ROUTES = ("/v1/chat/completions", "/v1/completions")


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversing]:
    with conversing(tmp_path) as made:
        yield made


def same(chunk: dict[str, Any]) -> dict[str, Any]:
    """What all chunks of a stream have in common."""
    return {name: chunk[name] for name in ("id", "object", "created", "model", "system_fingerprint")}


def test_a_chat_s_chunks_are_openai_s(talk: Conversing) -> None:
    said = chunks(talk.chat(stream=True))
    assert [chunk["choices"] for chunk in said] == [
        [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "", "refusal": None},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
        [{"index": 0, "delta": {"content": "Hel"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "lo."}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
    ]
    assert all(same(chunk) == same(said[0]) for chunk in said)
    assert said[0]["id"].startswith("chatcmpl-")
    assert (said[0]["object"], said[0]["model"]) == ("chat.completion.chunk", "smol")
    assert [set(chunk) - set(same(chunk)) for chunk in said] == [{"choices"}] * 3 + [{"choices", "starling"}]
    assert said[-1]["starling"]["timings"]["decode"] == 6


def test_a_completion_s_chunks_are_openai_s(talk: Conversing) -> None:
    said = chunks(talk.complete(stream=True))
    assert [chunk["choices"] for chunk in said] == [
        [{"text": "Hel", "index": 0, "logprobs": None, "finish_reason": None}],
        [{"text": "lo.", "index": 0, "logprobs": None, "finish_reason": None}],
        [{"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}],
    ]
    assert said[0]["object"] == "text_completion"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_usage_comes_to_nobody_who_did_not_ask(talk: Conversing, path: str, options: Any) -> None:
    """STR-08"""
    body = {"messages": HI, "prompt": "Once", "stream": True, "stream_options": options}
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks(talk.post(path, body)))


@pytest.mark.parametrize("path", ROUTES)
def test_usage_comes_in_one_last_chunk_without_choices(talk: Conversing, path: str) -> None:
    """STR-08"""
    body = {"messages": HI, "prompt": "Once", "stream": True, "stream_options": {"include_usage": True}}
    *said, last = chunks(talk.post(path, body))
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in said)
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert same(last) == same(said[0])


def test_each_choice_begins_and_ends_by_itself(tmp_path: Path) -> None:
    script = (
        Started(9, 0),
        Delta(1, "b"),
        Delta(0, "a"),
        ChoiceEnded(1, "length", 1),
        ChoiceEnded(0, "stop", 2),
        GENERATED,
    )
    with conversing(tmp_path, script) as talk:
        said = [chunk["choices"][0] for chunk in chunks(talk.chat(stream=True, n=2))]
    assert [
        (each["index"], each["delta"].get("role"), each["delta"].get("content"), each["finish_reason"]) for each in said
    ] == [
        (1, "assistant", "", None),
        (1, None, "b", None),
        (0, "assistant", "", None),
        (0, None, "a", None),
        (1, None, None, "length"),
        (0, None, None, "stop"),
    ]


def test_an_empty_answer_still_begins_and_ends(tmp_path: Path) -> None:
    with conversing(tmp_path, [Started(9, 0), ChoiceEnded(0, "stop", 1), GENERATED]) as talk:
        said = [chunk["choices"][0] for chunk in chunks(talk.chat(stream=True))]
        assert talk.chat().json["choices"][0]["message"]["content"] == ""
    assert [(each["delta"].get("role"), each["finish_reason"]) for each in said] == [
        ("assistant", None),
        (None, "stop"),
    ]


def test_reasoning_and_logprobs_stream_too(tmp_path: Path) -> None:
    token = Said("y", b"y", -0.5)
    script = (
        Started(9, 0),
        Delta(0, reasoning="Hm"),
        Delta(0, said=(token,)),
        Delta(0),
        Delta(0, "y", said=(token, token)),
        ChoiceEnded(0, "stop", 3, 1),
        GENERATED,
    )
    with conversing(tmp_path, script) as talk:
        _, *said, _ = (chunk["choices"][0] for chunk in chunks(talk.chat(stream=True, logprobs=True)))
    assert [each["delta"] for each in said] == [{"reasoning_content": "Hm"}, {"content": ""}, {"content": "y"}]
    assert [len((each["logprobs"] or {"content": ()})["content"]) for each in said] == [0, 1, 2]


def test_a_streamed_completion_counts_its_tokens_places_on(tmp_path: Path) -> None:
    script = (
        Started(9, 0),
        Delta(0, "one", said=(Said("one", b"one", -0.5),)),
        Delta(0, " two", said=(Said(" ", b" ", -0.5), Said("two", b"two", -0.5))),
        ChoiceEnded(0, "length", 3),
        GENERATED,
    )
    with conversing(tmp_path, script) as talk:
        said = [chunk["choices"][0]["logprobs"] for chunk in chunks(talk.complete(stream=True, logprobs=1))]
    assert [each and each["text_offset"] for each in said] == [[0], [3, 4], None]


def test_several_prompts_share_a_stream(tmp_path: Path) -> None:
    def script(job: Complete) -> list[Any]:
        return [Started(2, 1), Delta(0, str(job.prompt)), ChoiceEnded(0, "stop", 1), Generated(2, 1, 1, SPENT)]

    with conversing(tmp_path, script) as talk:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *said, last = chunks(talk.complete(prompt=["a", "b", "c"], **options))
    texts = dict.fromkeys(range(3), "")
    for chunk in said:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "a", 1: "b", 2: "c"}
    assert sum(chunk["choices"][0]["finish_reason"] == "stop" for chunk in said) == 3
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (6, 3)


@pytest.mark.parametrize(
    "text", ["a\n\nb", "a\r\nb", "a\rb", "a\u2028b\u2029c\x85", "x" * 100_000, "data: [DONE]\n\n", "🐦‍⬛"]
)
def test_any_text_arrives_as_it_was_said_in_one_line_of_data(tmp_path: Path, text: str) -> None:
    """STR-07"""
    script = (Started(9, 0), Delta(0, text), ChoiceEnded(0, "stop", 1), GENERATED)
    with conversing(tmp_path, script) as talk:
        reply = talk.chat(stream=True)
        said = chunks(reply)
        assert said[1]["choices"][0]["delta"]["content"] == text
        assert talk.chat().json["choices"][0]["message"]["content"] == text
    # One line of data and one empty line for each event, whatever a client takes for the end of a line.
    assert len(reply.text.splitlines()) == 2 * (len(said) + 1)


def test_streamed_and_collected_say_the_same(talk: Conversing) -> None:
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks(talk.chat(stream=True)))
    assert streamed == talk.chat().json["choices"][0]["message"]["content"] == "Hello."


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": None},
        {"temperature": 0.3, "seed": 5, "max_tokens": 10, "stop": ["a"], "logit_bias": {"1": 2}, "n": 1},
        {"top_k": 4, "min_p": 0.1, "xtc_probability": 0.2, "repetition_penalty": 1.1, "reasoning_effort": "low"},
    ],
)
def test_a_field_means_the_same_in_both_modes(talk: Conversing, fields: dict[str, Any]) -> None:
    """REQ-11"""
    talk.chat(**fields)
    collected = talk.job
    talk.chat(**fields, stream=True)
    assert talk.job == collected


@pytest.mark.parametrize("fields", [{"temperature": 3}, {"messages": []}, {"n": 0}, {"tools": [{}]}, {"adapter": 1}])
def test_a_wrong_request_is_refused_the_same_in_both_modes(talk: Conversing, fields: dict[str, Any]) -> None:
    """REQ-11"""
    collected, streamed = talk.chat(**fields), talk.chat(**fields, stream=True)
    assert (streamed.status, streamed.json) == (collected.status, collected.json)
    assert streamed.status in (400, 404)


def test_a_failure_after_the_first_token_is_the_stream_s_last_event(tmp_path: Path) -> None:
    with conversing(tmp_path, [*SAID[:2], WorkerCrashed("the worker crashed")]) as talk:
        said = events(talk.chat(stream=True, stream_options={"include_usage": True}))
    assert [event.data.get("choices", [{}])[0].get("delta", {}).get("content") for event in said] == ["", "Hel", None]
    assert (said[-1].name, said[-1].data["error"]) == (
        "error",
        {
            "message": "the worker crashed",
            "type": "service_unavailable_error",
            "param": None,
            "code": "worker_crashed",
        },
    )


def test_the_headers_of_a_stream_name_the_model_and_what_was_ignored(talk: Conversing) -> None:
    headers = talk.chat(stream=True, mood="good").headers
    assert (headers["x-starling-model"], headers["x-starling-ignored"]) == ("smol", "mood")


def test_a_silent_stream_is_kept_awake_by_comments(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def main() -> None:
        with conversing(tmp_path, [*SAID[:2], gate, *SAID[2:]], keepalive_s=0.05) as talk:
            async with opened(talk.app, "POST", "/v1/chat/completions", JSON) as exchange:
                exchange.send(json.dumps({"messages": HI, "stream": True}).encode(), more=False)
                await exchange.until(b": still here\n\n")
                gate.set()
            said, comments = told(exchange.body)
        assert said[-1].data == "[DONE]"
        assert set(comments) == {"still here"}

    asyncio.run(main())


def test_a_client_that_leaves_in_mid_stream_cancels_it(tmp_path: Path) -> None:
    """STR-01"""
    never = asyncio.Event()

    async def main() -> None:
        with conversing(tmp_path, [*SAID[:2], never]) as talk:
            async with opened(talk.app, "POST", "/v1/chat/completions", JSON) as exchange:
                exchange.send(json.dumps({"messages": HI, "stream": True}).encode(), more=False)
                await exchange.until(b'"Hel"')
                exchange.leave()
            assert talk.llm.cancelled == talk.llm.jobs
            assert talk.llm.running == 0

    asyncio.run(main())


def test_a_client_that_leaves_before_the_first_token_cancels_all_its_jobs(tmp_path: Path) -> None:
    asked, never = asyncio.Semaphore(0), asyncio.Event()

    def script(job: Complete) -> list[Any]:
        asked.release()
        return [Started(9, 0), never]

    async def main() -> None:
        with conversing(tmp_path, script) as talk:
            async with opened(talk.app, "POST", "/v1/completions", JSON) as exchange:
                exchange.send(json.dumps({"prompt": ["a"] * 9, "stream": True}).encode(), more=False)
                async with asyncio.timeout(10):
                    for _ in range(8):
                        await asked.acquire()
                exchange.leave()
            assert len(talk.llm.cancelled) == len(talk.llm.jobs) == 8
            assert talk.llm.running == 0

    asyncio.run(main())


def test_a_client_that_does_not_read_is_given_up(tmp_path: Path) -> None:
    """STR-09"""

    async def main() -> None:
        script = [Started(9, 0), *(Delta(0, "x" * 1000) for _ in range(1000)), ChoiceEnded(0, "stop", 1), GENERATED]
        with conversing(tmp_path, script, unread_s=0.1) as talk:
            async with opened(talk.app, "POST", "/v1/chat/completions", JSON) as exchange:
                exchange.stops_at = b"xxx"
                exchange.send(json.dumps({"messages": HI, "stream": True}).encode(), more=False)
            assert talk.llm.cancelled == talk.llm.jobs

    asyncio.run(main())


def test_the_openai_client_reads_the_chunks(talk: Conversing) -> None:
    types = openai.types.chat
    for chunk in chunks(talk.chat(stream=True, stream_options={"include_usage": True})):
        types.ChatCompletionChunk.model_validate(chunk, strict=True)
    types.ChatCompletion.model_validate(talk.chat().json, strict=True)
    for chunk in chunks(talk.complete(stream=True)):
        assert chunk["choices"][0]["finish_reason"] in (None, "stop")
