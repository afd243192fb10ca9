"""OpenAI's own client against a real service with the starter: every field of a chat and a completion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.e2e.server import Server

pytestmark = [pytest.mark.model, pytest.mark.port]

MODEL = "smollm2-135m-instruct"
CAPITAL: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
STORY: list[Any] = [{"role": "user", "content": "Tell me a story about a cat."}]
COUNT = "one two three four"


@pytest.fixture(scope="module")
def client(talker: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{talker.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def chat(client: openai.OpenAI, messages: list[Any] = CAPITAL, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "temperature": 0, **fields})


def text(client: openai.OpenAI, messages: list[Any] = CAPITAL, **fields: Any) -> str:
    said: str = chat(client, messages, **fields).choices[0].message.content
    return said


def complete(client: openai.OpenAI, prompt: Any = COUNT, **fields: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": prompt, "temperature": 0, **fields})


def chunks(client: openai.OpenAI, messages: list[Any] = CAPITAL, **fields: Any) -> list[Any]:
    return list(chat(client, messages, stream=True, **fields))


def said(chunks: list[Any], choice: int = 0) -> str:
    parts = [each for chunk in chunks for each in chunk.choices if each.index == choice]
    return "".join(part.delta.content or "" for part in parts)


# What an answer is.


def test_an_answer_is_openai_s(client: openai.OpenAI) -> None:
    answer = chat(client)
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", PARIS)
    assert (choice.finish_reason, choice.logprobs, choice.message.tool_calls) == ("stop", None, None)
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", MODEL, "chatcmpl-")
    assert abs(answer.created - time.time()) < 60
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens == 8  # seven of text and the end
    assert answer._request_id


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    came = chunks(client)
    assert said(came) == PARIS
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in came}) == 1
    assert (came[0].choices[0].delta.role, came[0].choices[0].delta.content) == ("assistant", "")
    assert [chunk.choices[0].finish_reason for chunk in came] == [None] * (len(came) - 1) + ["stop"]
    assert len(came) > 6


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_usage_comes_to_nobody_who_did_not_ask(client: openai.OpenAI, options: Any) -> None:
    """STR-08"""
    came = chunks(client, max_tokens=2, stream_options=options)
    assert all(chunk.choices and chunk.usage is None for chunk in came)


def test_usage_is_one_last_chunk_with_the_collected_totals(client: openai.OpenAI) -> None:
    """STR-08"""
    *before, last = chunks(client, stream_options={"include_usage": True})
    assert last.choices == []
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in before)
    usage = chat(client).usage
    assert last.usage.completion_tokens == usage.completion_tokens
    assert (last.usage.prompt_tokens, last.usage.total_tokens) == (usage.prompt_tokens, usage.total_tokens)


def test_the_client_s_own_accumulation_of_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=CAPITAL, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.content == PARIS
    assert {"chunk", "content.delta", "content.done"} <= kinds


def test_a_completion_is_openai_s(client: openai.OpenAI) -> None:
    answer = complete(client, max_tokens=4)
    assert (answer.object, answer.id[:5], answer.choices[0].finish_reason) == ("text_completion", "cmpl-", "length")
    streamed = list(complete(client, max_tokens=4, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.text for chunk in streamed for part in chunk.choices) == answer.choices[0].text
    assert streamed[-1].usage.completion_tokens == answer.usage.completion_tokens == 4


def test_a_completion_takes_texts_and_tokens_and_echoes(client: openai.OpenAI) -> None:
    alone = complete(client, max_tokens=3).choices[0].text
    several = complete(client, ["The sky is", COUNT], max_tokens=3, n=2, echo=True)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in several.choices[2:]] == [COUNT + alone] * 2
    ids = complete(client, [[504, 253]], max_tokens=2, echo=True)
    assert ids.usage.prompt_tokens == 2
    assert ids.choices[0].text == complete(client, [504, 253], max_tokens=2, echo=True).choices[0].text


# Log-probabilities.


def test_logprobs_spell_the_text_and_stream_the_same(client: openai.OpenAI) -> None:
    fields = {"logprobs": True, "top_logprobs": 3}
    content = chat(client, **fields).choices[0].logprobs.content
    assert "".join(token.token for token in content) == PARIS
    assert bytes(byte for token in content for byte in token.bytes).decode() == PARIS
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in content)
    # Greedily the likeliest is what was said.
    assert all(token.top_logprobs[0].token == token.token for token in content)
    for token in content:
        likely = [other.logprob for other in token.top_logprobs]
        assert likely == sorted(likely, reverse=True)
    streamed = [part for chunk in chunks(client, **fields) for part in chunk.choices if part.logprobs]
    came = [token for part in streamed for token in part.logprobs.content]
    assert [token.token for token in came] == [token.token for token in content]
    assert [token.logprob for token in came] == pytest.approx([token.logprob for token in content], abs=1e-3)


def test_logprobs_without_others(client: openai.OpenAI) -> None:
    content = chat(client, logprobs=True).choices[0].logprobs.content
    assert [token.top_logprobs for token in content] == [[]] * len(content)


def test_a_completion_s_logprobs_are_lists(client: openai.OpenAI) -> None:
    choice = complete(client, max_tokens=4, logprobs=2).choices[0]
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text
    assert found.text_offset == [len("".join(found.tokens[:place])) for place in range(4)]
    assert [others[token] for others, token in zip(found.top_logprobs, found.tokens, strict=True)] == (
        found.token_logprobs
    )


# Choices and seeds.


def test_choices_differ_and_each_streams_by_itself(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"n": 3, "temperature": 1, "seed": 7, "max_tokens": 10}
    answer = chat(client, STORY, **fields)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert answer.usage.completion_tokens == 30
    came = chunks(client, STORY, **fields)
    assert [said(came, choice) for choice in range(3)] == texts
    assert text(client, STORY, **{**fields, "n": 1}) == texts[0]


def test_a_seed_says_the_same_again_and_another_something_else(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 1, "max_tokens": 16}
    first = text(client, STORY, seed=1, **fields)
    assert text(client, STORY, seed=1, **fields) == first
    assert text(client, STORY, seed=2, **fields) != first


def test_a_seed_says_the_same_alone_and_among_seven(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "max_tokens": 16}
    seeds = list(range(20, 24))
    alone = [text(client, STORY, seed=seed, **fields) for seed in seeds]
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(text, client, STORY, seed=seed, **fields) for seed in range(4)]
        among = [pool.submit(text, client, STORY, seed=seed, **fields) for seed in seeds]
        assert [each.result() for each in among] == alone
        assert all(each.result() for each in others)


# What bounds and bends an answer.


@pytest.mark.parametrize("stop", ["Paris", ["xyz", " is Pa", "q", "z"], "ce is P"])
def test_a_stop_string_ends_the_text_and_is_never_said(client: openai.OpenAI, stop: Any) -> None:
    """LLM-06"""
    wanted = min((PARIS.split(each)[0] for each in ([stop] if isinstance(stop, str) else stop)), key=len)
    choice = chat(client, stop=stop).choices[0]
    assert (choice.message.content, choice.finish_reason) == (wanted, "stop")
    came = chunks(client, stop=stop)
    assert (said(came), came[-1].choices[0].finish_reason) == (wanted, "stop")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_is_cut_at_its_most_tokens(client: openai.OpenAI, field: str) -> None:
    """REQ-12"""
    answer = chat(client, **{field: 1})
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 1)
    assert answer.choices[0].message.content == "The"
    assert text(client, **{field: 10**9}) == PARIS


def test_a_bias_forbids_and_forces_tokens(client: openai.OpenAI) -> None:
    paris = chat(client, logprobs=True).choices[0].logprobs.content[5]
    assert paris.token == " Paris"
    answer = complete(client, "The capital of France is", max_tokens=1, logprobs=1)
    assert answer.choices[0].text == " Paris"
    # 7042 is " Paris" in the starter's vocabulary.
    assert complete(client, "The capital of France is", max_tokens=1, logit_bias={"7042": -100}).choices[0].text != (
        " Paris"
    )
    assert complete(client, COUNT, max_tokens=3, logit_bias={"7042": 100}).choices[0].text == " Paris" * 3


def test_penalties_are_on_what_was_generated(client: openai.OpenAI) -> None:
    """A loop stays one without them; the prompt's own words are not held against the answer."""
    prompt, line = "The cat sat. The cat sat. The cat sat. The cat sat.", " The cat sat."
    assert complete(client, prompt, max_tokens=12).choices[0].text == line * 3
    for field in ("frequency_penalty", "presence_penalty"):
        bent = complete(client, prompt, max_tokens=12, **{field: 2}).choices[0].text
        assert bent.startswith(line)
        assert not bent.startswith(line * 2)


def test_fields_of_other_servers_pass_through_the_client(client: openai.OpenAI) -> None:
    fields = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0, "session_id": "s"}
    assert text(client, temperature=2, extra_body=fields) == PARIS


# Roles and forms of content.


def test_a_developer_speaks_as_the_system(client: openai.OpenAI) -> None:
    """LLM-01"""
    asked = {"role": "user", "content": "Who are you?"}
    answers = [
        chat(client, [{"role": role, "content": "You are a cat named Tom."}, asked], max_tokens=12)
        for role in ("developer", "system")
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_turn_of_calls_alone_is_kept(client: openai.OpenAI, content: dict[str, Any]) -> None:
    """LLM-02"""
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turns = [
        *CAPITAL,
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ]
    answer = chat(client, turns, max_tokens=2)
    # The call and its answer are in the prompt.
    assert answer.usage.prompt_tokens > chat(client, max_tokens=2).usage.prompt_tokens + 20


def test_parts_of_text_are_joined(client: openai.OpenAI) -> None:
    """LLM-02"""
    whole = CAPITAL[0]["content"]
    parts = [{"type": "text", "text": whole[:9]}, {"type": "text", "text": whole[9:]}]
    assert text(client, [{"role": "user", "content": parts}]) == PARIS


def test_a_special_token_that_is_spelt_out_ends_no_message(client: openai.OpenAI) -> None:
    """It takes as many tokens as it has pieces, not one."""

    def tokens(content: str) -> int:
        asked = [{"role": "user", "content": content}]
        return int(client.chat.completions.create(model=MODEL, messages=asked, max_tokens=1).usage.prompt_tokens)  # type: ignore[arg-type,union-attr]

    assert tokens("a<|im_end|>") - tokens("a") == 7


# Refusals.

IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"stop": list("abcde")}, "invalid_value", "stop"),
        ({"n": 9}, "invalid_value", "n"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"logit_bias": {"99999": 1}}, "invalid_value", "logit_bias"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "foo", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": IMAGE}, "unsupported_content", "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, "context_length_exceeded", "messages"),
        ({"model": "whisper-1"}, "wrong_model_kind", "model"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refusal_is_a_bad_request_streamed_or_not(
    client: openai.OpenAI, fields: dict[str, Any], code: str, param: str, stream: bool
) -> None:
    """REQ-11, LLM-01, LLM-02, LLM-06, LLM-10"""
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **{"stream": stream, **fields})
    assert (caught.value.code, caught.value.param, caught.value.type) == (code, param, "invalid_request_error")


@pytest.mark.timeout(300)
def test_a_word_of_five_megabytes_is_refused_in_seconds(client: openai.OpenAI, talker: Server) -> None:
    """LLM-10"""
    (before,) = talker.workers("llm")
    began = time.monotonic()
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, [{"role": "user", "content": "a" * 5_000_000}])
    assert time.monotonic() - began < 20
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert "8192" in str(caught.value)
    assert talker.workers("llm") == [before]


def test_an_unknown_model_is_served_by_ours_and_the_answer_says_so(client: openai.OpenAI) -> None:
    assert chat(client, model="gpt-4o").model == MODEL


# Models, several clients, the asynchronous client.


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    found: Any = client.models.retrieve(MODEL)
    assert found == listed[MODEL]
    assert found.capabilities["chat_completions"] is True
    assert (found.context_window, found.owned_by, found.object) == (8192, "starling", "model")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


def test_two_clients_are_answered_at_the_same_time(client: openai.OpenAI, talker: Server) -> None:
    def times(question: str) -> tuple[str, list[float]]:
        with openai.OpenAI(base_url=f"{talker.url}/v1", api_key="x", max_retries=0) as own:
            came = [(time.monotonic(), chunk) for chunk in chat(own, ask(question), stream=True, max_tokens=30)]
        return said([chunk for _, chunk in came]), [at for at, _ in came]

    def ask(question: str) -> list[Any]:
        return [{"role": "user", "content": question}]

    questions = ["Tell me about the sea.", "Tell me about the moon."]
    with ThreadPoolExecutor(2) as pool:
        (one, first), (two, second) = pool.map(times, questions)
    assert max(first[0], second[0]) < min(first[-1], second[-1])
    assert [one, two] == [text(client, ask(question), max_tokens=30) for question in questions]


def test_the_asynchronous_client_asks_four_things_at_once(talker: Server) -> None:
    async def main() -> tuple[list[Any], str]:
        async with openai.AsyncOpenAI(base_url=f"{talker.url}/v1", api_key="x", max_retries=0) as client:

            async def ask() -> Any:
                return await client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0)

            answers = await asyncio.gather(*(ask() for _ in range(4)))
            stream = await client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, stream=True)
            return answers, said([chunk async for chunk in stream])

    answers, streamed = asyncio.run(main())
    assert [each.choices[0].message.content for each in answers] == [PARIS] * 4
    assert streamed == PARIS


# Conversations.


def test_every_earlier_token_of_a_conversation_is_reused(client: openai.OpenAI) -> None:
    """Also at a temperature at which the model spells words as its tokenizer would not."""
    turns: list[Any] = [{"role": "user", "content": "Invent five strange names for a dog."}]
    known = 0
    for turn in range(4):
        answer = chat(client, turns, temperature=1.3, seed=turn, max_tokens=24)
        usage = answer.usage
        # All but the last token of the last answer, which never went through the network, where it was cut off.
        assert known - 1 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
        known = usage.total_tokens - (answer.choices[0].finish_reason == "stop")
        turns += [{"role": "assistant", "content": answer.choices[0].message.content}]
        turns += [{"role": "user", "content": "And another?"}]


def test_a_turn_after_any_choice_reuses_the_whole_prompt(client: openai.OpenAI) -> None:
    """Of several choices the first one's keys and values are kept: the prompt's are in them."""
    turns: list[Any] = [{"role": "user", "content": "Name a colour of the rainbow, please."}]
    answer = chat(client, turns, n=3, temperature=1, seed=3, max_tokens=8)
    for choice in answer.choices:
        more = [{"role": "assistant", "content": choice.message.content}, {"role": "user", "content": "Why?"}]
        usage = chat(client, [*turns, *more], max_tokens=1).usage
        assert usage.prompt_tokens_details.cached_tokens >= answer.usage.prompt_tokens
