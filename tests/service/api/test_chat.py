"""Both completion routes, collected: bodies, what the worker is asked, models' names, refusals."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ContextLengthExceeded, Failure, ModelNotConfigured, QueueFull, WorkerCrashed
from protocol.events import Candidate, ChoiceEnded, Delta, Generated, Progress, Said, Started
from protocol.jobs import Chat, ChatMessage, Complete
from tests.asgi import FORM, JSON, ask, opened
from tests.conversing import GENERATED, HI, SAID, SPENT, USAGE, Conversing, conversing
from tests.scripted import Scripted, scripted


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversing]:
    with conversing(tmp_path) as made:
        yield made


# ------------------------------------------------------------------------------------------------ the bodies


def test_a_chat_s_body_is_openai_s(talk: Conversing) -> None:
    body = talk.chat(model="smol").json
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", body.pop("id"))
    assert body.pop("created") > 1_700_000_000
    assert re.fullmatch(r"fp_[0-9a-f]{10}", body.pop("system_fingerprint"))
    total = body["starling"]["timings"].pop("total")
    assert 0 < total < 60_000
    assert body == {
        "object": "chat.completion",
        "model": "smol",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello.", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        "starling": {
            "model": "smol",
            "cached_tokens": 4,
            "timings": {"queue": 1, "template": 2, "cache": 3, "prefill": 4, "first_token": 5, "decode": 6},
        },
    }


def test_a_completion_s_body_is_openai_s(talk: Conversing) -> None:
    body = talk.complete().json
    assert re.fullmatch(r"cmpl-[0-9a-f]{24}", body.pop("id"))
    assert set(body) == {"object", "created", "model", "system_fingerprint", "choices", "usage", "starling"}
    assert (body["object"], body["usage"]) == ("text_completion", USAGE)
    assert body["choices"] == [{"text": "Hello.", "index": 0, "logprobs": None, "finish_reason": "stop"}]


def test_reasoning_is_kept_apart_and_counted(tmp_path: Path) -> None:
    said = (
        Started(9, 0),
        Delta(0, reasoning="Hm, "),
        Delta(0, reasoning="yes."),
        Delta(0, "Yes"),
        ChoiceEnded(0, "length", 7, reasoning_tokens=4),
        Generated(9, 0, 7, SPENT),
    )
    with conversing(tmp_path, said) as talk:
        body = talk.chat().json
    (choice,) = body["choices"]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm, yes.", "Yes")
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4


def test_several_choices_come_in_order_whenever_they_end(tmp_path: Path) -> None:
    said = (
        Started(9, 0),
        Delta(1, "b"),
        Delta(0, "a"),
        ChoiceEnded(1, "length", 1),
        Delta(0, "A"),
        ChoiceEnded(0, "stop", 2),
        GENERATED,
    )
    with conversing(tmp_path, said) as talk:
        choices = talk.chat(n=2).json["choices"]
        assert talk.job.generation.n == 2
    assert [(each["index"], each["message"]["content"], each["finish_reason"]) for each in choices] == [
        (0, "aA", "stop"),
        (1, "b", "length"),
    ]


SWIFT = Said(" swift", b" swift", -0.5, (Candidate(" quick", b" quick", -0.25), Candidate("\ufffd", b"\xf0\x9f", -9e9)))


def test_a_chat_s_logprobs_are_openai_s(tmp_path: Path) -> None:
    said = (Started(9, 0), Delta(0, " swift", said=(SWIFT,)), ChoiceEnded(0, "stop", 2), GENERATED)
    with conversing(tmp_path, said) as talk:
        (choice,) = talk.chat(logprobs=True, top_logprobs=2).json["choices"]
        assert talk.job.generation.logprobs == 2
    assert choice["logprobs"] == {
        "content": [
            {
                "token": " swift",
                "logprob": -0.5,
                "bytes": [32, 115, 119, 105, 102, 116],
                "top_logprobs": [
                    {"token": " quick", "logprob": -0.25, "bytes": [32, 113, 117, 105, 99, 107]},
                    {"token": "\\xf0\\x9f", "logprob": -9999.0, "bytes": [240, 159]},
                ],
            }
        ],
        "refusal": None,
    }


def test_a_completion_s_logprobs_are_openai_s_and_count_characters(tmp_path: Path) -> None:
    bird = "🐦".encode()
    halves = (Said("\ufffd", bird[:2], -0.1), Said("\ufffd", bird[2:], -0.2), SWIFT)
    said = (Started(9, 0), Delta(0, "🐦 swift", said=halves), ChoiceEnded(0, "stop", 3), GENERATED)
    with conversing(tmp_path, said) as talk:
        (choice,) = talk.complete(logprobs=2).json["choices"]
        (plain,) = talk.complete(logprobs=0).json["choices"]
    assert choice["logprobs"] == {
        "tokens": ["bytes:\\xf0\\x9f", "bytes:\\x90\\xa6", " swift"],
        "token_logprobs": [-0.1, -0.2, -0.5],
        "top_logprobs": [
            {"bytes:\\xf0\\x9f": -0.1},
            {"bytes:\\x90\\xa6": -0.2},
            {" quick": -0.25, "bytes:\\xf0\\x9f": -9999.0, " swift": -0.5},
        ],
        "text_offset": [0, 0, 1],
    }
    assert plain["logprobs"]["top_logprobs"] is None


def test_several_prompts_are_a_job_each_and_one_answer(tmp_path: Path) -> None:
    def script(job: Complete) -> list[Any]:
        said = [Delta(choice, f"{job.prompt}{choice}") for choice in (1, 0)]
        return [Started(2, 1), *said, ChoiceEnded(0, "stop", 1), ChoiceEnded(1, "stop", 1), Generated(2, 1, 2, SPENT)]

    with conversing(tmp_path, script) as talk:
        body = talk.complete(prompt=list("abcdefghijkl"), n=2).json
        assert [job.prompt for job in talk.llm.jobs] == list("abcdefghijkl")
    assert [choice["text"] for choice in body["choices"]] == [
        f"{name}{place}" for name in "abcdefghijkl" for place in (0, 1)
    ]
    assert [choice["index"] for choice in body["choices"]] == list(range(24))
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (24, 24)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 12


def test_the_refusal_of_one_prompt_is_the_answer_and_ends_the_others(tmp_path: Path) -> None:
    never = asyncio.Event()

    def script(job: Complete) -> list[Any]:
        return [ContextLengthExceeded("too long", param="prompt")] if job.prompt == "b" else [Started(1, 0), never]

    with conversing(tmp_path, script) as talk:
        assert talk.complete(prompt=["a", "b", "c"]).error == (400, "context_length_exceeded", "prompt")
        assert sorted(job.prompt for job in talk.llm.cancelled) == ["a", "c"]
        assert talk.llm.running == 0


def test_best_of_answers_with_the_likeliest_on_average(tmp_path: Path) -> None:
    said = (
        Started(1, 0),
        Delta(0, "so so", said=(Said("so", b"so", -1.0), Said(" so", b" so", -1.0))),
        Delta(1, "sure", said=(Said("sure", b"sure", -0.1),)),
        Delta(2, "no", said=(Said("no", b"no", -1.5),)),
        *(ChoiceEnded(choice, "stop", 2) for choice in range(3)),
        Generated(1, 0, 6, SPENT),
    )
    with conversing(tmp_path, said) as talk:
        body = talk.complete(n=2, best_of=3).json
        assert (talk.job.generation.n, talk.job.generation.logprobs) == (3, 0)
    assert [(each["index"], each["text"], each["logprobs"]) for each in body["choices"]] == [
        (0, "sure", None),
        (1, "so so", None),
    ]
    assert body["usage"]["completion_tokens"] == 6


# ------------------------------------------------------------------------------- what the worker is asked


def test_the_worker_is_asked_for_what_the_client_wants(talk: Conversing) -> None:
    talk.chat(
        messages=[{"role": "developer", "content": "Be brief."}, *HI],
        seed=7,
        stop="END",
        max_tokens=64,
        temperature=0.5,
        session_id="talk",
        headers={"x-starling-client": "app"},
    )
    assert isinstance(talk.job, Chat)
    assert talk.job.messages == (
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Hi"),
    )
    generation = talk.job.generation
    assert (generation.max_tokens, generation.stop, generation.client, generation.pin) == (64, ("END",), "app", "talk")
    assert (generation.sampling.seed, generation.sampling.temperature, generation.sampling.top_p) == (7, 0.5, None)
    assert (generation.logprobs, generation.trace) == (None, False)


def test_without_a_name_a_client_is_its_connection(talk: Conversing) -> None:
    talk.chat(headers={"authorization": "Bearer none"})
    assert talk.job.generation.client == "127.0.0.1:1"


@pytest.mark.parametrize(("allowed", "header", "traced"), [(True, "1", True), (True, "0", False), (False, "1", False)])
def test_a_request_is_traced_where_the_operator_lets_it(
    tmp_path: Path, allowed: bool, header: str, traced: bool
) -> None:
    with conversing(tmp_path, allow_trace=allowed) as talk:
        talk.chat(headers={"x-starling-trace": header})
        assert talk.job.generation.trace is traced


def test_unknown_fields_are_ignored_and_listed(talk: Conversing) -> None:
    reply = talk.chat(messages=[{**HI[0], "mood": "good"}], ü=1, user="me", best_of=3)
    assert (reply.status, reply.headers["x-starling-ignored"]) == (200, "messages[0].mood, %C3%BC, best_of")
    assert (
        "x-starling-ignored" not in talk.chat(user="me", store=True, metadata={"a": "b"}, service_tier="flex").headers
    )


# ------------------------------------------------------------------------------------------- models' names


@pytest.mark.parametrize("name", ["smol", "gpt-4o-mini", "", None])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_any_name_is_served_and_the_answer_says_by_whom(talk: Conversing, path: str, name: str | None) -> None:
    reply = talk.post(path, {"messages": HI, "prompt": "Once", "model": name})
    assert (reply.status, reply.headers["x-starling-model"], reply.json["model"]) == (200, "smol", "smol")


@pytest.mark.parametrize("name", ["whisper-1", "whisper-base", "mlx-community/whisper-large-v3-turbo"])
def test_a_speech_model_s_name_is_the_wrong_kind(talk: Conversing, name: str) -> None:
    for reply in (talk.chat(model=name), talk.complete(model=name), talk.chat(model=name, stream=True)):
        assert reply.error == (400, "wrong_model_kind", "model")


def test_strict_models_are_asked_for_by_name(tmp_path: Path) -> None:
    with conversing(tmp_path, strict_models=True) as talk:
        assert talk.chat(model="smol").status == talk.chat().status == 200
        assert talk.chat(model="gpt-4o").error == (404, "model_not_found", "model")


def test_without_a_language_model_the_answer_says_how_to_get_one(service: Scripted) -> None:
    body = json.dumps({"messages": HI}).encode()
    reply = ask(service.app, "POST", "/v1/chat/completions", JSON, body)
    assert reply.error == (503, "model_not_configured", None)
    assert "--llm-model" in reply.json["error"]["message"]
    assert reply.headers["x-should-retry"] == "false"


def test_both_models_are_listed(talk: Conversing) -> None:
    listed = ask(talk.app, "GET", "/v1/models").json["data"]
    assert [(each["id"], each["capabilities"]["chat_completions"]) for each in listed[:2]] == [
        ("whisper-base", False),
        ("smol", True),
    ]
    one = ask(talk.app, "GET", "/v1/models/smol").json
    assert (one["context_window"], one["gen_defaults"]) == (8192, {"temperature": 0.7, "top_p": 0.9, "top_k": 40})


def test_ready_waits_for_the_language_model_too(talk: Conversing) -> None:
    assert ask(talk.app, "GET", "/ready").status == 200
    talk.llm.state = "starting"
    reply = ask(talk.app, "GET", "/ready")
    assert reply.error == (503, "worker_starting", None)
    assert [line["name"] for line in reply.json["workers"] if not line["ready"]] == ["llm"]


def test_stats_tell_of_the_language_model(talk: Conversing) -> None:
    body = ask(talk.app, "GET", "/stats").json
    assert body["llm"]["id"] == "smol"
    assert [line["name"] for line in body["workers"]] == ["media", "live", "whisper", "oracle", "llm"]


# ----------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (
            ContextLengthExceeded("9000 tokens are over 8192", param="messages"),
            (400, "context_length_exceeded", "messages"),
        ),
        (ModelNotConfigured("run `starling get x`"), (503, "model_not_configured", None)),
        (QueueFull("64 requests are waiting"), (429, "queue_full", None)),
        (WorkerCrashed("the worker crashed"), (503, "worker_crashed", None)),
    ],
    ids=lambda value: value.kind if isinstance(value, Failure) else "",
)
def test_what_fails_before_the_first_token_has_its_status(
    tmp_path: Path, failure: Failure, error: tuple[int, str, str | None], stream: bool
) -> None:
    for script in ([failure], [Progress(1, 2), Started(9, 0), failure]):
        with conversing(tmp_path, script) as talk:
            assert talk.chat(stream=stream).error == error


def test_a_failure_in_the_midst_of_a_collected_answer_is_the_answer(tmp_path: Path) -> None:
    with conversing(tmp_path, [*SAID[:2], WorkerCrashed("the worker crashed")]) as talk:
        assert talk.chat().error == (503, "worker_crashed", None)


@pytest.mark.parametrize(
    ("body", "headers", "error"),
    [
        (b"{", JSON, (400, "invalid_request", None)),
        (b"[]", JSON, (400, "invalid_request", None)),
        (b'"text"', JSON, (400, "invalid_request", None)),
        (b'{"messages": NaN}', JSON, (400, "invalid_request", None)),
        (b"[" * 100_000, JSON, (400, "invalid_request", None)),
        (b"", JSON, (400, "missing_field", "messages")),
        (b"{}", JSON, (400, "missing_field", "messages")),
        (b"{}", {"content-type": "text/plain"}, (415, "unsupported_media_type", None)),
        (b"--XbX--", FORM, (415, "unsupported_media_type", None)),
        (b"{}", {**JSON, "content-encoding": "gzip"}, (415, "unsupported_media_type", None)),
    ],
)
def test_a_body_that_is_no_request_is_refused(
    talk: Conversing, body: bytes, headers: dict[str, str], error: tuple[int, str, str | None]
) -> None:
    assert ask(talk.app, "POST", "/v1/chat/completions", headers, body).error == error


def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    with conversing(tmp_path, max_json_bytes=100) as talk:
        assert talk.chat(messages=[{"role": "user", "content": "x" * 100}]).error == (413, "payload_too_large", None)


def test_one_request_s_options_are_not_the_next_one_s(talk: Conversing) -> None:
    talk.chat()
    plain = talk.job
    talk.chat(temperature=2, stop=["a"], seed=1, logit_bias={"5": 3}, chat_template_kwargs={"a": 1}, max_tokens=3)
    assert talk.chat(model="whisper-1", temperature=1).status == 400
    talk.chat()
    assert talk.job == plain


# --------------------------------------------------------------------------------------- clients that leave


def test_a_client_that_leaves_cancels_its_answer(tmp_path: Path) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    def script(job: Chat) -> list[Any]:
        asked.set()
        return [*SAID[:2], never]

    async def main() -> None:
        with conversing(tmp_path, script) as talk:
            async with opened(talk.app, "POST", "/v1/chat/completions", JSON) as exchange:
                exchange.send(json.dumps({"messages": HI}).encode(), more=False)
                await asyncio.wait_for(asked.wait(), 10)
                exchange.leave()
            assert exchange.sent == []
            assert talk.llm.cancelled == talk.llm.jobs
            assert talk.llm.running == 0

    asyncio.run(main())


def test_scripted_services_have_no_language_model_unless_asked(tmp_path: Path) -> None:
    with scripted(tmp_path) as service:
        assert service.llm is None
