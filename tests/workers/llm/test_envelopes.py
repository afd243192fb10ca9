"""Grammars of calls: what a format's calls may be, token by token, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import UnsupportedSchema
from protocol.jobs import Shape
from protocol.tools import Tool, Tools
from tests.workers.llm import toy_tokenizers
from tests.workers.llm.test_calls import SAID, hear, known
from workers.llm.envelopes import ENVELOPES, MAYBE, MOST_CALLS, shape_of
from workers.llm.formats import BARE, JSON, Format
from workers.llm.grammar import Grammar, compiled, refused, token_texts
from workers.llm.spelling import special_tokens

WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
TIME = Tool(name="time", parameters={"type": "object", "properties": {}})
FORMATS = {"json": JSON, "bare": BARE}
JSON_CITY, JSON_DAYS = '"city": "Graz"', ', "days": 2'
SAMPLES = {
    "json": (SAID["json_tools"], JSON_CITY, JSON_DAYS),
    "json_tools": (SAID["json_tools"], JSON_CITY, JSON_DAYS),
    "bare": ('{"name": "get_weather", "parameters": {"city": "Graz", "days": 2}}', JSON_CITY, JSON_DAYS),
    "mistral": (SAID["mistral"], JSON_CITY, JSON_DAYS),
    "mistral_list": (
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Graz", "days": 2}}]',
        JSON_CITY,
        JSON_DAYS,
    ),
    "kimi_k2": (SAID["kimi_k2"], JSON_CITY, JSON_DAYS),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>json type="object"<|sep|>'
        '{"city": "Graz", "days": 2}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        JSON_CITY,
        JSON_DAYS,
    ),
    "qwen3_coder": (
        SAID["qwen3_coder"],
        "<parameter=city>\nGraz\n</parameter>\n",
        "<parameter=days>\n2\n</parameter>\n",
    ),
    "glm47": (
        SAID["glm47"],
        "<arg_key>city</arg_key><arg_value>Graz</arg_value>",
        "<arg_key>days</arg_key><arg_value>2</arg_value>",
    ),
    "longcat": (
        SAID["longcat"],
        "<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Graz</longcat_arg_value>\n",
        "<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>2</longcat_arg_value>\n",
    ),
    "minimax_m2": (
        SAID["minimax_m2"],
        '<parameter name="city">Graz</parameter>\n',
        '<parameter name="days">2</parameter>\n',
    ),
    "minicpm5": (SAID["minicpm5"], '<param name="city">Graz</param>', '<param name="days">2</param>'),
    "muse_spark": (
        SAID["muse_spark"].replace(">Graz<", '>"Graz"<'),
        '<atem:parameter name="city">"Graz"</atem:parameter>\n',
        '<atem:parameter name="days">2</atem:parameter>\n',
    ),
    "pythonic": (SAID["pythonic"].replace("'", '"'), 'city="Graz"', ", days=2"),
    "gemma4": (SAID["gemma4"], 'city:<|"|>Graz<|"|>', ",days:2"),
    "function_gemma": (SAID["function_gemma"], "city:<escape>Graz<escape>", ",days:2"),
}
"""A call in each format; in it the argument that there must be, and the other."""
CALL = {name: sample[0] for name, sample in SAMPLES.items()}
QUOTED = ("qwen3_coder", "glm47", "longcat", "minimax_m2", "minicpm5", "gemma4", "function_gemma")
"""Formats that write a string as it is."""
MARKERS = {"<tool_call>": 258}
"""Of the tokenizer here."""


@pytest.fixture(scope="module")
def tokenizer(fast_blas: Any) -> Any:
    return toy_tokenizers.byte_level(added=("<tool_call>",))


@pytest.fixture(scope="module")
def texts(tokenizer: Any) -> Any:
    return token_texts(tokenizer, len(tokenizer), tokenizer.eos_token_ids)


def offered(*tools: Tool, **fields: Any) -> Tools:
    return Tools(offered=tools or (WEATHER, TIME), **fields)


def form_of(name: str) -> Format:
    if name == "mistral_list":
        return replace(known("mistral"), name=name)
    return FORMATS.get(name) or known(name)


def grammar(texts: Any, name: str, tools: Tools, answer: Shape | None = None) -> Grammar:
    shape = shape_of(form_of(name), tools, MARKERS, answer)
    assert shape is not None
    made = compiled(texts, shape)
    assert isinstance(made, Grammar), made
    return made


def accepts(tokenizer: Any, made: Grammar, text: str) -> bool:
    """Whether it may be said from the start to the end, which may come then."""
    matcher = made.matcher.deep_copy()
    ids = tokenizer.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def forced(tokenizer: Any, made: Grammar, text: str = "") -> str:
    matcher = made.matcher.deep_copy()
    assert matcher.consume_tokens(tokenizer.encode(text, add_special_tokens=False))
    return str(tokenizer.decode(matcher.compute_ff_tokens()))


def test_every_envelope_is_tried_here() -> None:
    assert CALL.keys() == ENVELOPES.keys()


@pytest.mark.parametrize("name", ENVELOPES)
def test_a_demanded_call_is_the_whole_answer(tokenizer: Any, texts: Any, name: str) -> None:
    made = grammar(texts, name, offered(choice="required"))
    call, city, days = SAMPLES[name]
    assert city in call and days in call
    assert accepts(tokenizer, made, call)
    assert accepts(tokenizer, made, call.replace(days, ""))
    assert not accepts(tokenizer, made, call.replace(city, ""))
    assert not accepts(tokenizer, made, call.replace(days, days.replace("2", "two")))
    assert not accepts(tokenizer, made, call.replace(days, days + days))
    assert not accepts(tokenizer, made, call.replace("get_weather", "get_whether"))
    assert not accepts(tokenizer, made, f"Sure: {call}")
    assert not accepts(tokenizer, made, f"{call} Sure.")
    assert not accepts(tokenizer, made, "")


@pytest.mark.parametrize("name", ENVELOPES)
@pytest.mark.parametrize("city", ["Graz", "Sankt Pölten", 'the "old" town', "a=1, b", "true"])
def test_what_the_grammar_allows_is_understood(tokenizer: Any, texts: Any, name: str, city: str) -> None:
    made = grammar(texts, name, offered(choice="required"))
    written = city if name in QUOTED else json.dumps(city, ensure_ascii=False)[1:-1]
    call = CALL[name].replace("Graz", written)
    assert accepts(tokenizer, made, call)
    for guaranteed in (False, True):
        heard = hear(tokenizer, call, form=form_of(name), guaranteed=guaranteed)
        assert (heard.text, heard.calls) == ("", [("get_weather", {"city": city, "days": 2})])


@pytest.mark.parametrize("name", ENVELOPES)
def test_a_call_may_have_no_arguments(tokenizer: Any, texts: Any, name: str) -> None:
    _, city, days = SAMPLES[name]
    call = CALL[name].replace("get_weather", "time").replace(city, "").replace(days, "")
    assert accepts(tokenizer, grammar(texts, name, offered(choice="required")), call)
    assert hear(tokenizer, call, form=form_of(name)).calls == [("time", {})]


@pytest.mark.parametrize("name", [name for name, each in ENVELOPES.items() if each.gap is not None])
def test_calls_are_several_where_they_may_be(tokenizer: Any, texts: Any, name: str) -> None:
    gap = (ENVELOPES[name].gap or "").replace(MAYBE, "")
    two = f"{CALL[name]}{gap}{CALL[name]}"
    assert accepts(tokenizer, grammar(texts, name, offered(choice="required")), two)
    assert not accepts(tokenizer, grammar(texts, name, offered(choice="required", parallel=False)), two)
    assert len(hear(tokenizer, two, form=form_of(name)).calls) == 2


@pytest.mark.parametrize("name", [name for name, each in ENVELOPES.items() if each.item_gap is not None])
def test_or_within_the_same_markers(tokenizer: Any, texts: Any, name: str) -> None:
    form, envelope = form_of(name), ENVELOPES[name]
    item = CALL[name].removeprefix(form.start + envelope.open).removesuffix(envelope.close + form.end)
    two = f"{form.start}{envelope.open}{item}{envelope.item_gap}{item}{envelope.close}{form.end}"
    assert accepts(tokenizer, grammar(texts, name, offered(choice="required")), two)
    assert not accepts(tokenizer, grammar(texts, name, offered(choice="required", parallel=False)), two)
    for guaranteed in (False, True):
        assert len(hear(tokenizer, two, form=form, guaranteed=guaranteed).calls) == 2


def test_calls_come_to_an_end(tokenizer: Any, texts: Any) -> None:
    made = grammar(texts, "json", offered(choice="required"))
    assert accepts(tokenizer, made, "\n".join([CALL["json"]] * MOST_CALLS))
    assert not accepts(tokenizer, made, "\n".join([CALL["json"]] * (MOST_CALLS + 1)))


def test_a_named_function_is_forced_up_to_its_arguments(tokenizer: Any, texts: Any) -> None:
    tools = offered(choice="required", names=("get_weather",), parallel=False)
    start = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "'
    made = grammar(texts, "json", tools)
    assert forced(tokenizer, made) == start
    assert forced(tokenizer, made, f'{start}Graz"' + "}") == "}\n</tool_call>"
    assert not accepts(tokenizer, made, CALL["json"].replace("get_weather", "time"))


@pytest.mark.parametrize("name", [name for name in ENVELOPES if name != "bare"])
def test_what_follows_a_marker_is_a_call(tokenizer: Any, texts: Any, name: str) -> None:
    made = grammar(texts, name, offered())
    assert (made.shape.trigger, made.shape.again) == (form_of(name).start, ENVELOPES[name].gap is not None)
    start = form_of(name).start
    # A marker that is one token is waited for outside the grammar.
    before = "" if made.trigger_token is not None else f"I say: {start}"
    assert accepts(tokenizer, made, before + CALL[name].removeprefix(start))
    assert not accepts(tokenizer, made, f"{before}nonsense")
    assert not shape_of(form_of(name), offered(parallel=False), {}).again  # type: ignore[union-attr]


def test_nothing_opens_a_call_of_llama_s() -> None:
    assert shape_of(BARE, offered(), {}) is None


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("marker", ["<tool_call>", "<|tool_call_begin|>", "[TOOL_CALLS]", "[ARGS]", "</tool_call>"])
def test_a_marker_may_be_a_token_that_is_no_text(fast_blas: Any, marker: str, special: bool) -> None:
    from tokenizers import AddedToken

    tokenizer = toy_tokenizers.byte_level(added=())
    tokenizer._tokenizer.add_tokens([AddedToken(marker, special=special)])
    texts = token_texts(tokenizer, len(tokenizer), tokenizer.eos_token_ids)
    found = special_tokens(tokenizer)
    number = tokenizer.convert_tokens_to_ids(marker)
    assert (found.get(marker) == number) is texts.tokenizer.is_special_token(number)
    for name in ENVELOPES:
        shape = shape_of(form_of(name), offered(choice="required"), found)
        assert shape is not None
        made = compiled(texts, shape)
        assert isinstance(made, Grammar) and accepts(tokenizer, made, CALL[name])


def test_an_answer_s_own_schema_stands_beside_calls(tokenizer: Any, texts: Any) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    answer = Shape(kind="json", text=json.dumps(schema), param="response_format")
    made = grammar(texts, "json", offered(), answer)
    assert accepts(tokenizer, made, CALL["json"])
    assert accepts(tokenizer, made, '{"ok":true}')
    assert not accepts(tokenizer, made, "Hm.")
    with pytest.raises(UnsupportedSchema, match="guided_regex cannot be asked for beside tools"):
        shape_of(JSON, offered(), {}, Shape(kind="regex", text="a+", param="guided_regex"))


ODD = {"type": "object", "properties": {"a": {"not": {"type": "string"}}, "b": {"oneOf": [{"type": "integer"}, {}]}}}


def test_what_follows_reasoning_may_be_set_apart(tokenizer: Any, texts: Any) -> None:
    shape = shape_of(JSON, offered(choice="required"), MARKERS, thinks=True)
    assert shape is not None
    made = compiled(texts, shape)
    assert isinstance(made, Grammar)
    assert accepts(tokenizer, made, CALL["json"]) and accepts(tokenizer, made, f"\n\n{CALL['json']}")
    assert not accepts(tokenizer, grammar(texts, "json", offered(choice="required")), f"\n\n{CALL['json']}")


def test_only_a_strict_tool_is_refused_for_what_cannot_be_enforced(texts: Any) -> None:
    lenient = shape_of(JSON, offered(Tool(name="odd", parameters=ODD)), {})
    strict = shape_of(JSON, offered(Tool(name="odd", parameters=ODD, strict=True)), {})
    assert lenient is not None and strict is not None
    assert isinstance(compiled(texts, lenient), Grammar)
    assert "not" in str(compiled(texts, strict))


@pytest.mark.parametrize("name", [*ENVELOPES, "bare"])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_tool_that_cannot_be_enforced_is_named(texts: Any, name: str, choice: Any) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 1}}}}
    bad = Tool(name="odd-one", parameters=odd, strict=True)
    shape = shape_of(form_of(name), offered(WEATHER, bad, TIME, choice=choice), {})
    if shape is None:
        assert (name, choice) == ("bare", "auto")
        return
    reason = compiled(texts, shape)
    assert isinstance(reason, str)
    message = refused(shape, reason).message
    assert message == 'tools: the parameters of odd-one cannot be enforced: Unimplemented keys: ["not"]'


def test_a_required_argument_that_is_not_described_may_be_anything(tokenizer: Any, texts: Any) -> None:
    tool = Tool(
        name="odd", parameters={"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b", "a"]}
    )
    made = grammar(texts, "json", offered(tool, choice="required"))
    for arguments, fits in (('{"a": null, "b": [1]}', True), ('{"a": null}', False), ('{"a": null, "c": 1}', False)):
        call = f'<tool_call>\n{{"name": "odd", "arguments": {arguments}}}\n</tool_call>'
        assert accepts(tokenizer, made, call) is fits


def test_what_would_not_be_enforced_of_a_strict_tool_is_refused(texts: Any) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "object", "minProperties": 2}}}
    with pytest.raises(UnsupportedSchema, match="odd: minProperties"):
        shape_of(JSON, offered(Tool(name="odd", parameters=parameters, strict=True)), {})
    assert shape_of(JSON, offered(Tool(name="odd", parameters=parameters)), {}) is not None


def test_a_schema_that_is_none_is_refused(texts: Any) -> None:
    bad = Tool(name="bad", parameters={"type": "object", "properties": {"a": {"type": "notatype"}}})
    shape = shape_of(JSON, offered(bad), {})
    assert shape is not None and "notatype" in str(compiled(texts, shape))


@pytest.mark.parametrize("more", [{"additionalProperties": {"type": "integer"}}, {"patternProperties": {"^m": {}}}])
def test_a_schema_may_say_itself_what_else_there_is(tokenizer: Any, texts: Any, more: dict[str, Any]) -> None:
    tool = Tool(name="time", parameters=TIME.parameters | more)
    call = '<tool_call>\n{"name": "time", "arguments": {"more": 1}}\n</tool_call>'
    assert accepts(tokenizer, grammar(texts, "json", offered(tool, choice="required")), call)
    assert not accepts(tokenizer, grammar(texts, "json", offered(TIME, choice="required")), call)


# Arguments that are written one by one.

FORECAST = Tool(
    name="forecast",
    parameters={
        "type": "object",
        "properties": {
            "unit": {"enum": ["C", "F"]},
            "days": {"$ref": "#/$defs/days"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": "string"},
        },
        "required": ["days"],
        "$defs": {"days": {"type": "integer"}},
    },
)


@pytest.mark.parametrize("name", [name for name, each in ENVELOPES.items() if each.keyed and each.keyed.nested])
@pytest.mark.parametrize("left_out", [(), ("unit",), ("tags",), ("note",), ("unit", "tags", "note")])
def test_values_are_json_unless_they_are_text(tokenizer: Any, texts: Any, name: str, left_out: tuple[str, ...]) -> None:
    envelope, form = ENVELOPES[name], form_of(name)
    keyed = envelope.keyed
    assert keyed is not None
    before, after = keyed.quotes or ('"', '"')
    values = {"unit": f"{before}C{after}", "days": "3", "tags": '["a", "b"]', "note": f"{before}mild{after}"}
    said = keyed.gap.join(
        f"{keyed.open}{key}{keyed.middle}{value}{keyed.close}" for key, value in values.items() if key not in left_out
    )
    item = f"{envelope.before}forecast{envelope.between}{said}{envelope.after}"
    call = f"{form.start}{envelope.open}{item}{envelope.close}{form.end}".replace(MAYBE, "\n")
    assert accepts(tokenizer, grammar(texts, name, offered(FORECAST, choice="required")), call)
    whole = {"unit": "C", "days": 3, "tags": ["a", "b"], "note": "mild"}
    expected = {key: value for key, value in whole.items() if key not in left_out}
    assert hear(tokenizer, call, form=form, tools=(FORECAST,)).calls == [("forecast", expected)]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen3_coder", {"type": "object", "properties": {}, "anyOf": [{}]}),
        ("glm47", {"type": "object", "properties": {}, "required": ["a"]}),
        ("function_gemma", {"type": "object", "properties": {"a": {"type": "array"}}}),
    ],
)
def test_what_a_format_cannot_say_is_refused_where_it_must(name: str, parameters: dict[str, Any]) -> None:
    tool = Tool(name="odd", parameters=parameters)
    for tools in (offered(tool, choice="required"), offered(replace_strict(tool))):
        with pytest.raises(UnsupportedSchema, match="cannot be enforced") as refused:
            shape_of(form_of(name), tools, {})
        assert refused.value.param == "tools"
    assert shape_of(form_of(name), offered(tool), {}) is None


def replace_strict(tool: Tool) -> Tool:
    return Tool(name=tool.name, parameters=tool.parameters, strict=True)
