"""Calls of tools in an answer: found in every format, never leaked, given back as text where they do not parse.

Each text is what a model says, a character for each token unless a marker is one, so that every marker is split too.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from protocol.events import Said
from protocol.tools import CallPart, Tool
from tests.workers.llm import toy_tokenizers
from workers.llm.calls import Calling
from workers.llm.formats import BARE, JSON, Format
from workers.llm.text import Piece, Voice

WEATHER = Tool(
    name="get_weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)
TIME = Tool(name="time", parameters={"type": "object", "properties": {}})
TOOLS = (WEATHER, TIME)
GRAZ = {"city": "Graz", "days": 2}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Graz", "days": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(fast_blas: Any) -> Any:
    return toy_tokenizers.byte_level(added=("<think>", "</think>", "<tool_call>"))


def known(name: str) -> Format:
    """A format of mlx-lm's, by its name there."""
    import importlib

    parser = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    return Format(name, parser.tool_call_start, parser.tool_call_end, parser.parse_tool_call)


class Heard:
    """An answer said token by token."""

    def __init__(
        self, tokenizer: Any, text: str, *stop: str, calling: Calling, logprobs: bool = False, cut: bool = False
    ) -> None:
        self.voice = Voice(tokenizer, stop=stop, thinking=False, logprobs=logprobs, calling=calling)
        self.pieces: list[Piece] = []
        self.tokens = 0
        for token in tokenizer.encode(text, add_special_tokens=False):
            self.pieces.append(self.voice.feed(token))
            self.tokens += 1
            if self.voice.stopped is not None or self.voice.enough:
                break
        self.pieces.append(self.voice.end(cut=cut))

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def parts(self) -> list[CallPart]:
        return [part for piece in self.pieces for part in piece.calls]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """(name, arguments) of each."""
        found: dict[int, list[str]] = {}
        for part in self.parts:
            found.setdefault(part.index, [str(part.name), ""])[1] += part.arguments
        assert list(found) == list(range(len(found)))
        return [(name, json.loads(arguments)) for name, arguments in found.values()]

    @property
    def said(self) -> list[Said]:
        return [said for piece in self.pieces for said in piece.said]


def hear(tokenizer: Any, text: str, *stop: str, form: Format = JSON, parallel: bool = True, **fields: Any) -> Heard:
    rules = {name: fields.pop(name, False) for name in ("guaranteed", "demanded")}
    calling = Calling(form, fields.pop("tools", TOOLS), parallel, **rules)
    return Heard(tokenizer, text, *stop, calling=calling, **fields)


SAID = {
    "json_tools": CALL,
    "qwen3_coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nGraz\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    "glm47": (
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Graz</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
    ),
    "longcat": (
        "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>Graz</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
        "<longcat_arg_value>2</longcat_arg_value>\n</longcat_tool_call>"
    ),
    "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "Graz", "days": 2}',
    "pythonic": "<|tool_call_start|>[get_weather(city='Graz', days=2)]<|tool_call_end|>",
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Graz</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "minicpm5": '<function name="get_weather"><param name="city">Graz</param><param name="days">2</param></function>',
    "muse_spark": (
        '<atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Graz</atem:parameter>\n'
        '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Graz", "days": 2}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"'
        '<|sep|>Graz<|close|>argument<|sep|><|open|>argument key="days" type="integer"<|sep|>2<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Graz<|"|>,days:2}<tool_call|>',
    "function_gemma": ("<start_function_call>call:get_weather{city:<escape>Graz<escape>,days:2}<end_function_call>"),
}


def test_every_format_of_mlx_lm_is_among_these() -> None:
    import pkgutil

    import mlx_lm.tool_parsers

    # Laguna's is glm47's under another name.
    assert {each.name for each in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)} == SAID.keys() | {"laguna"}


@pytest.mark.parametrize("name", SAID)
def test_a_call_is_found_in_every_format_and_nothing_of_it_is_text(tokenizer: Any, name: str) -> None:
    heard = hear(tokenizer, f"Let me see.\n\n{SAID[name]}", form=known(name))
    assert heard.text == "Let me see."
    assert heard.calls == [("get_weather", GRAZ)]
    assert heard.voice.called


@pytest.mark.parametrize("name", [name for name in SAID if name != "mistral"])
def test_two_calls_are_two_in_every_format_that_closes_them(tokenizer: Any, name: str) -> None:
    heard = hear(tokenizer, f"{SAID[name]}\n{SAID[name]}\n", form=known(name))
    assert (heard.text, heard.calls) == ("", [("get_weather", GRAZ)] * 2)
    ids = [part.id for part in heard.parts]
    assert name == "kimi_k2" or len(set(ids)) == 2


def test_mistral_s_calls_follow_one_another(tokenizer: Any) -> None:
    text = '[TOOL_CALLS]time[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "Graz", "days": 2}'
    assert hear(tokenizer, text, form=known("mistral")).calls == [("time", {}), ("get_weather", GRAZ)]
    older = '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Graz", "days": 2}, "id": "a1B2c3D4e"}]'
    heard = hear(tokenizer, older, form=known("mistral"))
    assert (heard.calls, heard.parts[0].id) == ([("get_weather", GRAZ)], "a1B2c3D4e")


def test_ids_look_like_openai_s_unless_the_model_has_its_own(tokenizer: Any) -> None:
    (part,) = hear(tokenizer, CALL).parts
    assert part.id is not None and part.id.startswith("call_") and len(part.id) > 20
    (part,) = hear(tokenizer, SAID["kimi_k2"], form=known("kimi_k2")).parts
    assert part.id == "functions.get_weather:0"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get_weather", "parameters": {"city": "Graz", "days": 2}}',
        ' {"name":"get_weather","parameters":{"city":"Graz","days":2}}\n',
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Graz", "days": 2}}',
        '{\n  "name": "get_weather",\n  "parameters": {"city": "Graz", "days": 2}\n}',
    ],
)
def test_llama_s_answer_is_the_call_itself(tokenizer: Any, text: str) -> None:
    heard = hear(tokenizer, text, form=BARE)
    assert (heard.text, heard.calls) == ("", [("get_weather", GRAZ)])


def test_llama_s_calls_are_set_apart_by_semicolons(tokenizer: Any) -> None:
    call = '{"name": "time", "parameters": {}}'
    assert hear(tokenizer, f"{call}; {call}", form=BARE).calls == [("time", {}), ("time", {})]


@pytest.mark.parametrize(
    "text", ['{"answer": 42}', '{"name": "Bo"}', "{", "[1, 2]", 'So: {"name": "time"}', "  ", "<|py"]
)
def test_other_objects_are_llama_s_text(tokenizer: Any, text: str) -> None:
    heard = hear(tokenizer, text, form=BARE)
    assert (heard.text, heard.calls) == (text, [])


# What is no call.


@pytest.mark.parametrize(
    "text",
    [
        "2 < 3 and <tool_cal> is none",
        "  padded  \n",
        "<tool_call>\nnot json\n</tool_call>",
        "<tool_call>{}</tool_call> and so on",
        '<tool_call>\n{"name": "unheard_of", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "time", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "time", "arguments": {"a": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "time", "argum',
        "<tool_call>",
        "<tool_call>" + "[" * 5000 + "</tool_call>",
        "<tool_call>\n\n<tool_call></tool_call>",
        "one <tool_call",
    ],
)
def test_what_does_not_parse_is_given_back_as_text(tokenizer: Any, text: str) -> None:
    heard = hear(tokenizer, text)
    assert (heard.text, heard.parts) == (text, [])
    assert not heard.voice.called


@pytest.mark.parametrize("name", list(SAID))
def test_a_broken_call_is_text_in_every_format(tokenizer: Any, name: str) -> None:
    form = known(name)
    text = f"Well.\n{form.start} ??? {form.end}"
    heard = hear(tokenizer, text, form=form)
    assert (heard.text, heard.parts) == (text, [])


@pytest.mark.parametrize("name", SAID)
def test_a_call_that_is_cut_off_is_no_call(tokenizer: Any, name: str) -> None:
    text = SAID[name][: len(SAID[name]) - len(known(name).end) - 3]
    heard = hear(tokenizer, text, form=known(name))
    assert (heard.text, heard.parts) == (text, [])


def test_a_call_without_its_closing_marker_is_one_all_the_same(tokenizer: Any) -> None:
    assert hear(tokenizer, CALL.removesuffix("\n</tool_call>")).calls == [("get_weather", GRAZ)]


def test_a_call_after_one_that_does_not_parse_is_found(tokenizer: Any) -> None:
    bad = "<tool_call>oops</tool_call>"
    heard = hear(tokenizer, f"{bad}\n{CALL}")
    assert (heard.text, heard.calls) == (bad, [("get_weather", GRAZ)])


def test_a_closing_marker_in_an_argument_closes_nothing(tokenizer: Any) -> None:
    arguments = {"city": 'say "</tool_call>" \\ twice </tool_call>', "days": 1}
    text = f"<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': arguments})}\n</tool_call>"
    for guaranteed in (False, True):
        heard = hear(tokenizer, text, guaranteed=guaranteed)
        assert (heard.text, heard.calls) == ("", [("get_weather", arguments)])


def test_arguments_in_other_forms_are_an_object(tokenizer: Any) -> None:
    for arguments in ('"{\\"city\\": \\"Graz\\", \\"days\\": 2}"', '{"city":"Graz","days":2}'):
        text = f'<tool_call>{{"name":"get_weather","arguments":{arguments}}}</tool_call>'
        assert hear(tokenizer, text).calls == [("get_weather", GRAZ)]
    for rest in ("", ', "arguments": null', ', "arguments": ""', ', "parameters": {}'):
        assert hear(tokenizer, f'<tool_call>{{"name": "time"{rest}}}</tool_call>').calls == [("time", {})]


def test_half_a_surrogate_pair_stays_escaped(tokenizer: Any) -> None:
    (part,) = hear(tokenizer, CALL.replace("Graz", "\\ud800")).parts
    assert "\\ud800" in part.arguments
    part.arguments.encode()


# Text around calls.


def test_text_streams_until_a_marker_begins(tokenizer: Any) -> None:
    heard = hear(tokenizer, f"Let me see. {CALL}")
    before = len("Let me see.")
    assert [piece.text for piece in heard.pieces[:before]] == ["L", "e", "t", "", " m", "e", "", " s", "e", "e", "."]


def test_text_after_a_call_is_text(tokenizer: Any) -> None:
    heard = hear(tokenizer, f"{CALL}\nDone.")
    assert (heard.text, len(heard.calls)) == ("\nDone.", 1)


def test_one_call_is_enough_where_no_more_are_wanted(tokenizer: Any) -> None:
    heard = hear(tokenizer, CALL + CALL, parallel=False)
    assert (heard.calls, heard.text) == ([("get_weather", GRAZ)], "")
    assert heard.tokens < len(tokenizer.encode(CALL)) + 2
    two = SAID["kimi_k2"].replace("<|tool_calls_section_end|>", "") + SAID["kimi_k2"].removeprefix(
        "<|tool_calls_section_begin|>"
    )
    assert len(hear(tokenizer, two, form=known("kimi_k2")).calls) == 2
    assert len(hear(tokenizer, two, form=known("kimi_k2"), parallel=False).calls) == 1


def test_stop_strings_end_text_and_not_calls(tokenizer: Any) -> None:
    assert hear(tokenizer, CALL, "Graz", "\n").calls == [("get_weather", GRAZ)]
    heard = hear(tokenizer, f"{CALL} no STOP {CALL}", "STOP")
    assert (heard.text, len(heard.calls), heard.voice.stopped) == (" no ", 1, "STOP")
    heard = hear(tokenizer, f"x ST{CALL}OP", "STOP")
    assert (heard.text, heard.voice.stopped) == ("x STOP", None)


def test_reasoning_calls_nothing(tokenizer: Any) -> None:
    heard = hear(tokenizer, f"<think>perhaps {CALL}</think>\n\n{CALL}")
    assert (heard.text, heard.calls) == ("", [("get_weather", GRAZ)])
    assert "<tool_call>" in "".join(piece.reasoning for piece in heard.pieces)


def test_a_call_s_tokens_are_neither_text_s_nor_reasoning_s(tokenizer: Any) -> None:
    heard = hear(tokenizer, f"<think>hm</think>Hi {CALL}", logprobs=True)
    assert [said.token for said in heard.said] == ["H", "i"]
    assert heard.voice.reasoning_tokens == 4
    bad = "<tool_call>no"
    heard = hear(tokenizer, bad, logprobs=True)
    assert "".join(said.token for said in heard.said) == bad


FRAGMENTS = (CALL, "<tool_c", "</tool_call>", "<", "{", "\n", " ", "x", "é", "tool_call>", '"name": "time"')


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8), st.booleans())
def test_calls_leave_and_everything_else_stays(tokenizer: Any, fragments: list[str], guaranteed: bool) -> None:
    text = "".join(fragments)
    assume(text.count("<tool_call>") == fragments.count(CALL))
    heard = hear(tokenizer, text, guaranteed=guaranteed)
    assert len(heard.calls) == fragments.count(CALL)
    assert "".join(heard.text.split()) == "".join(text.replace(CALL, "").split())
    if not heard.calls:
        assert heard.text == text


# Calls that a grammar guarantees are told as they come.

GUARANTEED = {
    "json": CALL,
    "json_tools": CALL,
    "mistral": SAID["mistral"],
    "kimi_k2": SAID["kimi_k2"],
    "bare": '{"name": "get_weather", "parameters": {"city": "Graz", "days": 2}}',
}


@pytest.mark.parametrize("name", GUARANTEED)
def test_arguments_stream_where_their_form_is_guaranteed(tokenizer: Any, name: str) -> None:
    form = {"json": JSON, "bare": BARE}.get(name) or known(name)
    heard = hear(tokenizer, GUARANTEED[name], form=form, guaranteed=True)
    first, *rest = heard.parts
    assert (first.index, first.name, first.arguments) == (0, "get_weather", "")
    assert first.id is not None
    assert all(part.id is None and part.name is None for part in rest)
    assert [part.arguments for part in rest] == list('{"city": "Graz", "days": 2}')
    assert (heard.text, heard.voice.called) == ("", True)


def test_several_guaranteed_calls_are_counted(tokenizer: Any) -> None:
    heard = hear(tokenizer, f"{CALL}\n{CALL.replace('Graz', '{]}')}", guaranteed=True)
    assert heard.calls == [("get_weather", GRAZ), ("get_weather", {"city": "{]}", "days": 2})]
    text = SAID["mistral"] + SAID["mistral"]
    assert len(hear(tokenizer, text, form=known("mistral"), guaranteed=True).calls) == 2
    text = SAID["kimi_k2"].replace("<|tool_calls_section_end|>", "") + SAID["kimi_k2"].removeprefix(
        "<|tool_calls_section_begin|>"
    )
    assert len(hear(tokenizer, text, form=known("kimi_k2"), guaranteed=True).calls) == 2
    call = GUARANTEED["bare"]
    assert len(hear(tokenizer, f"{call}; {call}", form=BARE, guaranteed=True).calls) == 2


def test_a_guaranteed_call_that_is_cut_off_leaves_no_markup(tokenizer: Any) -> None:
    for end in range(1, len(CALL)):
        heard = hear(tokenizer, f"Hm. {CALL[:end]}", guaranteed=True, cut=True)
        assert heard.text.startswith("Hm.") and "name" not in heard.text
        assert "".join(part.arguments for part in heard.parts) in '{"city": "Graz", "days": 2}'


@pytest.mark.parametrize("name", SAID)
def test_a_demanded_call_that_is_cut_off_anywhere_is_no_text(tokenizer: Any, name: str) -> None:
    text = f"{SAID[name]}\n{SAID[name]}"
    for end in range(1, len(text)):
        heard = hear(tokenizer, text[:end], form=known(name), guaranteed=True, demanded=True, cut=True)
        assert heard.text == "", text[:end]


def test_the_beginning_of_a_further_call_is_no_text(tokenizer: Any) -> None:
    for end in range(1, len(CALL)):
        heard = hear(tokenizer, f"{CALL}\n{CALL[:end]}", guaranteed=True, cut=True)
        assert heard.text == ""
    assert hear(tokenizer, f"{CALL}\n<tool", guaranteed=True).text == "\n<tool"


@pytest.mark.parametrize(
    "text",
    ["<tool_call> is how a call begins.", "<tool_call>x</tool_call> is none", CALL.replace("weather", "whether")],
)
def test_what_escaped_its_grammar_is_text_all_the_same(tokenizer: Any, text: str) -> None:
    heard = hear(tokenizer, text, guaranteed=True)
    assert (heard.text, heard.parts) == (text, [])
