"""What may be asked of a chat and of a completion: every field, its limits, and the place that an error names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.errors import Failure
from protocol.jobs import Chat, ChatMessage, Complete, Generation, Sampling
from service.chat.request import read_chat, read_completion
from tests.conversing import HI

PROSE = {"prompt": "Once"}
BOTH = [(read_chat, {"messages": HI}), (read_completion, PROSE)]


def chat(**fields: Any) -> Chat:
    request, ignored = read_chat({"messages": HI, **fields})
    assert ignored == []
    return request.job("me", trace=False)


def completions(**fields: Any) -> tuple[Complete, ...]:
    request, ignored = read_completion({**PROSE, **fields})
    assert ignored == []
    return request.jobs("me", trace=False)


def refused(read: Any, fields: dict[str, Any]) -> Failure:
    with pytest.raises(Failure) as caught:
        request, _ = read(fields)
        request.job("me", trace=False) if hasattr(request, "job") else request.jobs("me", trace=False)
    return caught.value


def wrong(**fields: Any) -> tuple[str, str | None]:
    failure = refused(read_chat, {"messages": HI, **fields})
    return failure.kind.value, failure.param


def wrong_text(**fields: Any) -> tuple[str, str | None]:
    failure = refused(read_completion, {**PROSE, **fields})
    return failure.kind.value, failure.param


def message(**fields: Any) -> ChatMessage:
    (made,) = chat(messages=[fields]).messages
    return made


# --------------------------------------------------------------------------------------------------- fields


def test_nothing_but_messages_means_the_defaults() -> None:
    assert chat() == Chat((ChatMessage(role="user", content="Hi"),), Generation(client="me"))


def test_nothing_but_a_prompt_means_the_defaults() -> None:
    assert completions() == (Complete("Once", Generation(client="me", max_tokens=16)),)


def test_every_field_arrives() -> None:
    asked: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "repetition_penalty": 1.1,
        "repetition_context_size": 64,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "logit_bias": {"13": -100, "7": 0.5},
        "seed": -7,
    }
    sampling = Sampling(**{**asked, "logit_bias": ((13, -100.0), (7, 0.5))})
    generation = Generation(
        sampling=sampling, max_tokens=64, stop=("END", "\n"), n=8, logprobs=20, client="me", pin="talk"
    )
    rest = {"max_tokens": 64, "stop": ["END", "\n"], "n": 8, "session_id": "talk"}
    assert chat(**asked, **rest, logprobs=True, top_logprobs=20).generation == generation
    (job,) = completions(**asked, **rest, logprobs=5, echo=False)
    assert job.generation == msgspec.structs.replace(generation, logprobs=5)


CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
NAMELESS = {"function": {"arguments": "{}"}}

OPTIONAL = [
    "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop", "n", "stream", "logprobs",
    "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "tools", "tool_choice",
    "parallel_tool_calls", "response_format", "stream_options", "reasoning_effort", "top_k", "min_p",
    "xtc_probability", "xtc_threshold", "repetition_penalty", "repetition_context_size", "chat_template_kwargs",
    "adapter", "guided_grammar", "guided_regex", "guided_choice", "guided_json", "structured_outputs", "session_id",
    "prompt_cache_key", "user", "store", "metadata", "service_tier", "safety_identifier", "prediction", "modalities",
    "audio",
]  # fmt: skip


@pytest.mark.parametrize("name", OPTIONAL)
def test_null_is_as_good_as_absent(name: str) -> None:
    """REQ-12"""
    assert chat(**{name: None}) == chat()


def test_all_of_them_null_too() -> None:
    """REQ-12"""
    assert chat(**dict.fromkeys(OPTIONAL)) == chat()
    nulls = dict.fromkeys([name for name in OPTIONAL if name in read_completion(PROSE)[0].__struct_fields__])
    assert len(nulls) > 20
    assert completions(**nulls, best_of=None, echo=None, suffix=None) == completions()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_tokens", value) for value in (0, -1, 1.5, "16", True, [], {})],
        *[("max_completion_tokens", value) for value in (0, "16")],
        *[("temperature", value) for value in (-1, 2.1, "hot", True, [])],
        *[("top_p", value) for value in (-0.1, 1.1, "0.5", True)],
        *[("top_k", value) for value in (-1, 0.5, "1")],
        *[("min_p", value) for value in (-0.1, 1.1)],
        *[("n", value) for value in (0, 9, 1.5, "1", True)],
        *[("seed", value) for value in (0.5, "1", True, 1 << 70)],
        *[("stream", value) for value in (1, "true", [])],
        *[("stop", value) for value in (1, {}, list("abcde"))],
        *[("presence_penalty", value) for value in (-2.1, 2.1, "0")],
        *[("frequency_penalty", value) for value in (-2.1, 2.1)],
        *[("repetition_penalty", value) for value in (0, -1)],
        *[("repetition_context_size", value) for value in (0, 0.5)],
        *[("xtc_probability", value) for value in (-0.1, 1.1)],
        *[("xtc_threshold", value) for value in (-0.1, 0.6)],
        *[("logit_bias", value) for value in (1, [], "x", {"x": 1}, {"-1": 1}, {"1.5": 1}, {"٣": 1})],
        *[("adapter", value) for value in (1, [])],
        *[("session_id", value) for value in (1, "x" * 513)],
        *[("prompt_cache_key", value) for value in (1, "x" * 513)],
        *[("model", value) for value in (1, ["a"])],
        *[("response_format", value) for value in ("json", 1, [])],
    ],
)
@pytest.mark.parametrize(("read", "given"), BOTH, ids=["chat", "completion"])
def test_a_wrong_value_is_refused_by_name(read: Any, given: dict[str, Any], name: str, value: Any) -> None:
    """REQ-12, LLM-06"""
    if name == "max_completion_tokens" and read is read_completion:
        assert read({**given, name: value})[1] == [name]
        return
    failure = refused(read, {**given, name: value})
    assert (failure.kind.value, failure.param) == ("invalid_value", name)
    assert name in failure.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
        ({"logit_bias": {"5": True}}, "logit_bias.5"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": 1 << 70}}, "chat_template_kwargs"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": [["a"]]}, "stop[0]"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"tools": 1}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [*HI, {"role": "foo", "content": "x"}]}, "messages[1].role"),
        ({"messages": [*HI, {"role": "function", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "song"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x", "name": 1}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"messages": [{**HI[0], "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ],
)  # fmt: skip
def test_a_wrong_value_in_a_chat_is_named_by_its_place(fields: dict[str, Any], param: str) -> None:
    assert wrong(**fields) == ("invalid_value", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 0}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 1, "best_of": 2, "stream": True}, "best_of"),
        ({"echo": 1}, "echo"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, [1]]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": [1 << 70]}, "prompt"),
    ],
)
def test_a_wrong_value_in_a_completion_is_named_by_its_place(fields: dict[str, Any], param: str) -> None:
    assert wrong_text(**fields) == ("invalid_value", param)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"content": "Hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([*HI, {"role": "user", "content": [{"text": "Hi"}]}], "messages[1].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "tool", "content": "4"}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": [NAMELESS]}], "messages[0].tool_calls[0].function.name"),
    ],
)  # fmt: skip
def test_what_a_message_lacks_is_named_by_its_place(messages: list[Any], param: str) -> None:
    assert wrong(messages=messages) == ("missing_field", param)


def test_messages_and_a_prompt_there_must_be() -> None:
    for read, name in ((read_chat, "messages"), (read_completion, "prompt")):
        failure = refused(read, {})
        assert (failure.kind.value, failure.param) == ("missing_field", name)
    assert refused(read_chat, {"messages": None}).param == "messages"
    assert completions(prompt=None)[0].prompt == ""


def test_the_message_says_the_value_and_what_is_allowed() -> None:
    failure = refused(read_chat, {"messages": [{"role": "foo", "content": "x"}]})
    assert failure.message == "messages[0].role must be one of assistant, developer, system, tool, user, not 'foo'"
    assert refused(read_chat, {"messages": HI, "n": 9}).message == "n must be an integer from 1 to 8, not '9'"
    assert refused(read_chat, {"messages": []}).message == "messages must be a list of at least 1 entries, not '[]'"
    assert refused(read_chat, {"messages": HI, "stop": 1}).message == (
        "stop must be a string or a list of at most 4 strings, not '1'"
    )
    long = refused(read_chat, {"messages": [{"role": "x" * 1000, "content": ""}]})
    assert len(long.message) < 300


# ------------------------------------------------------------------------------------------- what a field means


@pytest.mark.parametrize("many", [10**9, 10**18, 1e9])
def test_more_tokens_than_any_context_has_are_a_wish_like_any_other(many: Any) -> None:
    """REQ-12"""
    assert (chat(max_tokens=many).generation.max_tokens or 0) >= 10**9
    msgspec.msgpack.encode(chat(max_tokens=many))


def test_max_completion_tokens_is_the_newer_name_and_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).generation.max_tokens == 7
    assert chat(max_completion_tokens=7).generation.max_tokens == 7
    assert chat(max_tokens=5).generation.max_tokens == 5


@pytest.mark.parametrize(
    ("stop", "told"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ("", ()), (["", "a"], ("a",)), ([], ()), (list("abcd"), tuple("abcd"))],
)
def test_stop_is_a_string_or_up_to_four(stop: Any, told: tuple[str, ...]) -> None:
    """LLM-06"""
    assert chat(stop=stop).generation.stop == told


def test_logprobs_of_a_chat_are_a_switch_and_a_number() -> None:
    assert chat(logprobs=True).generation.logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).generation.logprobs == 3
    assert chat(logprobs=False).generation.logprobs is None
    assert completions(logprobs=0)[0].generation.logprobs == 0


def test_a_top_p_of_nothing_leaves_the_likeliest_token() -> None:
    assert chat(top_p=0).generation.sampling.top_p == 1e-9


def test_reasoning_effort_is_the_template_s_affair() -> None:
    assert chat(reasoning_effort="none").template_kwargs == {"enable_thinking": False, "reasoning_effort": "none"}
    assert chat(reasoning_effort="low").template_kwargs == {"enable_thinking": True, "reasoning_effort": "low"}
    given = {"enable_thinking": False, "documents": [1]}
    assert chat(reasoning_effort="low", chat_template_kwargs=given).template_kwargs == {
        "enable_thinking": False,
        "reasoning_effort": "low",
        "documents": [1],
    }


def test_a_conversation_is_pinned_under_either_name() -> None:
    assert chat(prompt_cache_key="key").generation.pin == "key"
    assert chat(session_id="id", prompt_cache_key="key").generation.pin == "id"
    assert chat(session_id="", prompt_cache_key="").generation.pin is None


def test_the_worker_is_told_the_adapter_and_knows_which_there_are() -> None:
    assert [chat(adapter=name).generation.adapter for name in ("none", "", None, "mine")] == ["none", "", "", "mine"]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"parallel_tool_calls": False},
        {"modalities": ["text"]},
        {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "flex", "safety_identifier": "x"},
        {"prediction": {"type": "content", "content": "x"}, "verbosity": "low", "prompt_cache_retention": "24h"},
    ],
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", 1),
        ("store", "x"),
        ("metadata", 3),
        ("service_tier", "nonsense"),
        ("safety_identifier", []),
        ("prediction", 3),
        ("verbosity", "foo"),
    ],
)
def test_what_changes_nothing_must_still_be_right(name: str, value: Any) -> None:
    assert wrong(**{name: value}) == ("invalid_value", name)


@pytest.mark.parametrize("name", ["draft_model", "num_draft_tokens", "kv_bits", "kv_group_size", "quantized_kv_start"])
def test_draft_models_and_quantized_caches_are_refused(name: str) -> None:
    assert wrong(**{name: 3}) == ("unsupported_value", name)
    assert wrong_text(**{name: 3}) == ("unsupported_value", name)
    assert chat(**{name: None}) == chat()


def test_an_answer_in_audio_is_refused() -> None:
    assert wrong(modalities=["text", "audio"]) == ("unsupported_value", "modalities")
    assert wrong(audio={"voice": "alloy"}) == ("unsupported_value", "modalities")


def test_a_completion_is_neither_filled_in_nor_weighed_as_a_whole() -> None:
    assert wrong_text(suffix="the end") == ("unsupported_value", "suffix")
    assert wrong_text(echo=True, logprobs=1) == ("unsupported_value", "logprobs")
    assert completions(suffix="", echo=True) == (Complete("Once", Generation(client="me", max_tokens=16), echo=True),)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        ([""], [""]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, told: list[Any]) -> None:
    assert [job.prompt for job in completions(prompt=prompt)] == told


# ------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_role_is_told_as_it_is(role: str) -> None:
    assert message(role=role, content="x") == ChatMessage(role=role, content="x")  # type: ignore[arg-type]


def test_a_developer_speaks_as_the_system() -> None:
    """LLM-01"""
    assert message(role="developer", content="x") == ChatMessage(role="system", content="x")


def test_a_tool_s_answer_names_its_call() -> None:
    asked = {"role": "assistant", "tool_calls": [CALL]}
    _, told = chat(messages=[asked, {"role": "tool", "content": "4", "tool_call_id": "call_1"}]).messages
    assert told == ChatMessage(role="tool", content="4", tool_call_id="call_1")


@pytest.mark.parametrize("before", [[], [{"role": "assistant", "tool_calls": [CALL | {"id": "call_2"}]}], HI])
def test_an_answer_to_a_call_that_nobody_made_is_refused(before: list[Any]) -> None:
    answer = {"role": "tool", "content": "4", "tool_call_id": "call_1"}
    assert wrong(messages=[*before, answer]) == ("invalid_value", f"messages[{len(before)}].tool_call_id")


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_an_assistant_may_have_called_tools_and_said_nothing(content: dict[str, Any]) -> None:
    """LLM-02"""
    assert message(role="assistant", tool_calls=[CALL], **content) == ChatMessage(role="assistant", tool_calls=(CALL,))


def test_text_parts_are_joined() -> None:
    """LLM-02"""
    parts = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "world"}]
    assert message(role="user", content=parts).content == "Hello, world"
    assert message(role="assistant", content=[{"type": "refusal", "refusal": "No."}]).content == "No."


def test_null_is_an_empty_content() -> None:
    assert message(role="user", content=None).content == ""


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
    ],
)
def test_a_part_that_is_no_text_is_refused(part: dict[str, Any]) -> None:
    """LLM-02"""
    content = [{"type": "text", "text": "What is this?"}, part]
    assert wrong(messages=[{"role": "user", "content": content}]) == ("unsupported_content", "messages[0].content[1]")


def test_an_answer_may_be_sent_back_as_it_came() -> None:
    answer = {"role": "assistant", "content": "Hi", "refusal": None, "annotations": [], "reasoning_content": "Hm"}
    assert message(**answer, audio=None, function_call=None) == ChatMessage(
        role="assistant", content="Hi", reasoning_content="Hm"
    )


def test_names_that_nobody_knows_are_listed_with_their_place() -> None:
    body = {
        "messages": [{**HI[0], "mood": 1, "content": [{"type": "text", "text": "Hi", "cache_control": {}}]}],
        "stream": True,
        "stream_options": {"include_usage": True, "hurry": True},
        "num_ctx": 1,
        "user": "me",
    }
    assert read_chat(body)[1] == [
        "messages[0].content[0].cache_control",
        "messages[0].mood",
        "stream_options.hurry",
        "num_ctx",
    ]
