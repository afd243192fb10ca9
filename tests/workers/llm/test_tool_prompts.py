"""Tools, calls and results in a prompt: through the templates of models that know them, and as text for the others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import InvalidValue
from protocol.jobs import Chat, ChatMessage
from protocol.tools import Tool, Tools
from tests.workers.llm import toy_tokenizers
from tests.workers.llm.tool_templates import HERMES, LLAMA, MISTRAL, NO_SYSTEM, PLAIN
from workers.llm import prompt
from workers.llm.formats import BARE, JSON, format_of
from workers.llm.prompt import Prompt

WEATHER = Tool(
    name="get_weather",
    description="Tells it",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
TIME = Tool(name="time", parameters={"type": "object", "properties": {}})
TOOLS = Tools(offered=(WEATHER, TIME))
SHOWN = (
    '{"type": "function", "function": {"name": "get_weather", "description": "Tells it", "parameters": '
    '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}'
)
SYSTEM = ChatMessage(role="system", content="Be brief.")
USER = ChatMessage(role="user", content="Weather?")


def with_template(template: str) -> Any:
    return toy_tokenizers.byte_level(template=template)


def called(*cities: str, content: str = "") -> ChatMessage:
    calls = [
        {
            "id": f"call_{city}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city}, ensure_ascii=False)},
        }
        for city in cities
    ]
    return ChatMessage(role="assistant", content=content, tool_calls=tuple(calls))


def result(city: str) -> ChatMessage:
    return ChatMessage(role="tool", content='{"sunny": true}', tool_call_id=f"call_{city}")


def render(template: str, *messages: ChatMessage, tools: Tools = TOOLS) -> Prompt:
    return prompt.render(with_template(template), Chat(messages, tools=tools), window=10_000)


def test_a_template_that_knows_tools_is_given_them(fast_blas: Any) -> None:
    text = str(render(HERMES, SYSTEM, USER).text)
    assert f"Be brief.\n\n# Tools\n\n<tools>\n{SHOWN}\n" in text
    assert render(HERMES, SYSTEM, USER, tools=Tools()).text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_one_that_does_not_has_them_in_its_system_message(fast_blas: Any) -> None:
    text = str(render(PLAIN, SYSTEM, USER).text)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert f"<tools>\n{SHOWN}\n" in text
    assert '{"name": <function-name>, "arguments": <args-json-object>}' in text
    alone = str(render(PLAIN, USER).text)
    assert alone.startswith("<|im_start|>system\n# Tools\n")
    assert alone.endswith("<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n")


def test_one_without_a_system_has_them_in_the_first_message(fast_blas: Any) -> None:
    text = str(render(NO_SYSTEM, USER).text)
    assert text.startswith("<start_of_turn>user\n# Tools\n")
    assert text.endswith("\n\nWeather?<end_of_turn>\n")
    with pytest.raises(InvalidValue, match="System role not supported"):
        render(NO_SYSTEM, SYSTEM, USER)


@pytest.mark.parametrize("template", [HERMES, LLAMA, MISTRAL, PLAIN])
def test_tools_that_must_not_be_called_are_not_shown(fast_blas: Any, template: str) -> None:
    made = render(template, USER, tools=Tools(offered=(WEATHER,), choice="none"))
    assert made == render(template, USER, tools=Tools())
    assert made.calling is None


@pytest.mark.parametrize(
    ("template", "kind", "start"),
    [
        (HERMES, "json_tools", "<tool_call>"),
        (MISTRAL, "mistral_list", "[TOOL_CALLS]"),
        (LLAMA, "bare", "<|python_tag|>"),
        (PLAIN, "json", "<tool_call>"),
    ],
)
def test_a_template_says_how_its_model_calls(fast_blas: Any, template: str, kind: str, start: str) -> None:
    form = format_of(loaded(template))
    assert (form.name, form.start, form.native) == (kind, start, form is not JSON)
    assert form.bare is (form is BARE)


def test_a_template_apart_for_tools_is_the_one_that_counts(fast_blas: Any) -> None:
    tokenizer = with_template(PLAIN)
    tokenizer.chat_template = {"default": PLAIN, "tool_use": HERMES}
    assert format_of(tokenizer) == replace(JSON, native=True)
    made = prompt.render(tokenizer, Chat((USER,), tools=TOOLS), window=10_000)
    assert made == render(HERMES, USER)


def loaded(template: str) -> Any:
    """As mlx-lm's `load` wraps a tokenizer with this template."""
    import importlib

    from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser

    tokenizer = with_template(template)
    kind = _infer_tool_parser(tokenizer)
    if kind is None:
        return tokenizer
    parser = importlib.import_module(f"mlx_lm.tool_parsers.{kind}")
    return TokenizerWrapper(
        tokenizer._tokenizer,
        tool_parser=parser.parse_tool_call,
        tool_call_start=parser.tool_call_start,
        tool_call_end=parser.tool_call_end,
    )


def test_calls_and_results_are_the_template_s_own(fast_blas: Any) -> None:
    text = str(render(HERMES, USER, called("Graz", "Wien", content="Let me see."), result("Graz"), result("Wien")).text)
    assert text.endswith(
        "<|im_start|>assistant\nLet me see.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Graz"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Wien"}}\n</tool_call><|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n{"sunny": true}\n</tool_response>\n'
        '<tool_response>\n{"sunny": true}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    )
    text = str(render(LLAMA, USER, called("Graz"), result("Graz")).text)
    assert '{"name": "get_weather", "parameters": {"city": "Graz"}}<|eot_id|><|start_header_id|>ipython' in text


def test_a_template_that_refuses_a_call_is_a_refusal(fast_blas: Any) -> None:
    with pytest.raises(InvalidValue, match="only supports single tool-calls") as refused:
        render(LLAMA, USER, called("Graz", "Wien"), result("Graz"), result("Wien"))
    assert refused.value.param == "messages"


def test_a_template_that_wants_ids_of_nine_letters_gets_them(fast_blas: Any) -> None:
    text = str(render(MISTRAL, USER, called("Graz"), result("Graz")).text)
    given = text.partition('"id": "')[2].partition('"')[0]
    assert len(given) == 9 and given.isalnum()
    assert f'"call_id": "{given}"' in text
    own = ChatMessage(role="assistant", tool_calls=({**called("Graz").tool_calls[0], "id": "a1B2c3D4e"},))
    back = ChatMessage(role="tool", content="1", tool_call_id="a1B2c3D4e")
    assert str(render(MISTRAL, USER, own, back).text).count('"a1B2c3D4e"') == 2


def test_the_prompt_says_what_may_be_called(fast_blas: Any) -> None:
    calling = render(PLAIN, USER, tools=Tools(offered=(WEATHER, TIME), names=("time",), parallel=False)).calling
    assert calling is not None
    assert (calling.tools, calling.parallel, calling.guaranteed) == ((TIME,), False, True)


@pytest.mark.parametrize("template", [HERMES, LLAMA, PLAIN])
def test_how_a_turn_will_be_told_is_how_the_next_prompt_begins(fast_blas: Any, template: str) -> None:
    tokenizer = toy_tokenizers.byte_level(template=template.replace("<|im_end|>", "</s>").replace("<|eot_id|>", "</s>"))
    job = Chat((SYSTEM, USER), tools=TOOLS)
    answer, ends = called("Graz", content="" if template == LLAMA else "Let me see."), tokenizer.eos_token_ids
    first = prompt.render(tokenizer, job, window=10_000)
    told = prompt.retold(tokenizer, job, first, answer, ends)
    assert told is not None and first.text is not None
    assert told.startswith(first.text) and told.endswith(("</tool_call>", "}"))
    after = Chat((SYSTEM, USER, answer, result("Graz")), tools=TOOLS)
    assert str(prompt.render(tokenizer, after, window=10_000).text).startswith(f"{told}</s>")


def test_how_a_turn_will_be_told_may_not_be_known(fast_blas: Any) -> None:
    tokenizer = with_template(LLAMA)
    job = Chat((USER,), tools=TOOLS)
    first = prompt.render(tokenizer, job, window=10_000)
    # The template refuses two calls; and no token of this tokenizer ends a message as the template does.
    for answer in (called("Graz", "Wien"), called("Graz")):
        assert prompt.retold(tokenizer, job, first, answer, tokenizer.eos_token_ids) is None
