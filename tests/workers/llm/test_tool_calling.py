"""Tools through the whole engine, on a model of random weights: what is demanded is called, whatever it would say."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from protocol.errors import Kind
from protocol.events import Delta, Failed, Generated
from protocol.jobs import Chat, ChatMessage, Shape
from protocol.tools import Tool, Tools
from tests.workers.llm import toy_tokenizers
from tests.workers.llm.tool_templates import HERMES, PLAIN
from tests.workers.llm.toy import Asked, Driver, chat, network

WEATHER = Tool(
    name="get_weather",
    description="The weather in a city",
    parameters={"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]},
)
CLOCK = Tool(
    name="get_time",
    description="The time in a zone",
    parameters={"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]},
)


@pytest.fixture(scope="module")
def tokenizer(fast_blas: Any) -> Any:
    return toy_tokenizers.byte_level(template=PLAIN, added=("<tool_call>", "</tool_call>"))


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return network(vocabulary=len(tokenizer))


@pytest.fixture
def driver(tokenizer: Any, model: Any) -> Driver:
    from workers.llm.language import ModelLanguage

    vocabulary = len(tokenizer)
    language = ModelLanguage(tokenizer, 8000, vocabulary=vocabulary, trace_text=False)
    return Driver(model, language, vocabulary=vocabulary)


def job(tokens: int = 200, logit_bias: Any = (), **tools: Any) -> Chat:
    made = chat("What is the weather in Paris?", tokens=tokens, logit_bias=logit_bias)
    return msgspec.structs.replace(made, tools=Tools(offered=(WEATHER, CLOCK), **tools))


def calls(asked: Asked, choice: int = 0) -> list[tuple[str, Any]]:
    found: dict[int, list[str]] = {}
    for event in asked.events:
        for part in event.calls if isinstance(event, Delta) and event.choice == choice else ():
            found.setdefault(part.index, [str(part.name), ""])[1] += part.arguments
    return [(name, json.loads(arguments)) for name, arguments in found.values()]


def test_what_is_demanded_is_called_and_nothing_else_is_said(driver: Driver) -> None:
    asked = driver.answer(job(choice="required", names=("get_time",), parallel=False))
    ((name, arguments),) = calls(asked)
    assert name == "get_time"
    assert arguments["zone"] in ("UTC", "CET")
    assert (asked.text(), asked.ended[0].reason) == ("", "tool_calls")
    assert isinstance(asked.last, Generated)
    assert (asked.last.grammar, asked.last.forced_tokens > 10) == ("enforced", True)


def test_arguments_come_as_they_are_decoded(driver: Driver) -> None:
    asked = driver.answer(job(choice="required", names=("get_weather",), parallel=False))
    parts = [part for event in asked.events if isinstance(event, Delta) for part in event.calls]
    assert len([part for part in parts if part.arguments]) > 2


def test_a_call_that_is_opened_is_one_that_is_offered(driver: Driver, tokenizer: Any) -> None:
    """Left to itself, but for its liking of the marker."""
    opening, end = tokenizer.convert_tokens_to_ids(["<tool_call>", "</s>"])
    asked = driver.answer(job(parallel=False, logit_bias=((opening, 100.0),)))
    ((name, arguments),) = calls(asked)
    assert {"get_weather": ["city"], "get_time": ["zone"]}[name] == list(arguments)
    assert (asked.text(), asked.ended[0].reason) == ("", "tool_calls")
    several = driver.answer(job(tokens=400, logit_bias=((opening, 100.0), (end, -100.0))))
    assert len(calls(several)) > 2
    assert (several.text(), several.ended[0].reason) == ("", "length")


def test_the_next_turn_reuses_all_of_a_call(driver: Driver) -> None:
    first = job(choice="required", names=("get_weather",), parallel=False)
    asked = driver.answer(first)
    ((name, arguments),) = calls(asked)
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    messages = (
        *first.messages,
        ChatMessage(role="assistant", tool_calls=(call,)),
        ChatMessage(role="tool", content="sunny", tool_call_id="c"),
    )
    second = driver.answer(msgspec.structs.replace(first, messages=messages, tools=Tools(offered=(WEATHER, CLOCK))))
    # All but the closing markup, which was forced and never went through the network.
    assert second.started.cached_tokens >= asked.started.prompt_tokens + asked.ended[0].tokens - len("}}\n</>") - 1


@pytest.mark.parametrize("more", [{"logprobs": 2}, {"stop": ("Z", "{")}, {"temperature": 1.0, "seed": 7, "n": 2}])
def test_other_wishes_stand_beside_a_demand(driver: Driver, more: dict[str, Any]) -> None:
    demanded = job(choice="required", names=("get_time",), parallel=False)
    sampling = {name: more.pop(name) for name in ("temperature", "seed") if name in more}
    generation = demanded.generation
    generation = msgspec.structs.replace(
        generation, sampling=msgspec.structs.replace(generation.sampling, **sampling), **more
    )
    asked = driver.answer(msgspec.structs.replace(demanded, generation=generation))
    for choice in range(generation.n):
        ((name, arguments),) = calls(asked, choice)
        assert (name, list(arguments), asked.text(choice)) == ("get_time", ["zone"], "")
    assert {each.reason for each in asked.ended} == {"tool_calls"}


def test_calls_share_a_batch_with_texts(driver: Driver) -> None:
    demanded = job(choice="required", names=("get_weather",), parallel=False)
    jobs = [demanded, chat("Hello"), job(tokens=9), job(choice="required", tokens=300)]
    alone = [calls_and_text(driver.answer(each)) for each in jobs]
    together = [driver.ask(each) for each in jobs]
    driver.run()
    assert [calls_and_text(each) for each in together] == alone
    assert len(alone[3][0]) > 0


def calls_and_text(asked: Asked) -> tuple[list[tuple[str, Any]], str]:
    return calls(asked), asked.text()


def test_what_cannot_be_enforced_is_refused_before_the_prompt_is_read(driver: Driver) -> None:
    odd = Tool(name="odd", parameters={"type": "object", "properties": {"a": {"type": "notatype"}}})
    asked = driver.answer(msgspec.structs.replace(job(), tools=Tools(offered=(odd,))))
    assert isinstance(asked.last, Failed)
    assert (asked.last.kind, asked.last.param) == (Kind.UNSUPPORTED_SCHEMA, "tools")
    assert driver.engine.stats().read == 0


def parse(text: str, tools: Any) -> Any:
    """Of a format that nobody knows a grammar of."""
    return json.loads(text)


@pytest.mark.parametrize("before", ["", "Let me see.\n\n\n"])
def test_a_call_in_other_words_than_the_template_s_is_reused_too(fast_blas: Any, before: str) -> None:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from workers.llm.language import ModelLanguage

    tokenizer: Any = TokenizerWrapper(
        toy_tokenizers.byte_level(template=HERMES.replace("<|im_end|>", "</s>"), added=())._tokenizer,
        tool_parser=parse,
        tool_call_start="<tool_call>",
        tool_call_end="</tool_call>",
    )
    vocabulary = len(tokenizer)
    language = ModelLanguage(tokenizer, 8000, vocabulary=vocabulary, trace_text=False)
    driver = Driver(network(vocabulary=vocabulary), language, vocabulary=vocabulary)
    said = before + '<tool_call>{"arguments":{"zone":"UTC"},"name":"get_time"}</tool_call>'
    first = job()

    def answer(text: str, *messages: ChatMessage) -> Asked:
        shape = Shape(kind="choice", text=json.dumps([text]))
        generation = msgspec.structs.replace(first.generation, shape=shape)
        return driver.answer(msgspec.structs.replace(first, messages=messages, generation=generation))

    asked = answer(said, *first.messages)
    assert calls(asked) == [("get_time", {"zone": "UTC"})]
    call = {"id": "c", "type": "function", "function": {"name": "get_time", "arguments": '{"zone":"UTC"}'}}
    messages = (*first.messages, ChatMessage(role="assistant", content=before.strip(), tool_calls=(call,)))
    for _ in range(2):
        messages += (ChatMessage(role="user", content="And now?"),)
        told = language.render(msgspec.structs.replace(first, messages=messages)).ids
        known = asked.started.prompt_tokens + asked.ended[0].tokens - 1
        asked = answer("Well.", *messages)
        assert asked.started.prompt_tokens == len(told) + len(said) - len(before.strip()) - len(call_told(before))
        # What was forced at the end of an answer went through the network only as part of the next prompt.
        assert asked.started.cached_tokens >= known - len(said)
        assert calls(asked) == []
        messages += (ChatMessage(role="assistant", content="Well."),)


def call_told(before: str) -> str:
    """How the template tells the call, and what it sets it apart with."""
    call = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
    return f"\n{call}" if before else call
