"""The grammar of calls: a format's markup around the names and arguments that the tools of a conversation allow.

Knows formats and schemas; what compiles a grammar is grammar.py. Written in llguidance's Lark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from protocol.errors import UnsupportedSchema
from protocol.jobs import Shape
from protocol.tools import Tool, Tools
from workers.llm.formats import Format
from workers.llm.schemas import is_scalar, is_text, properties, unenforceable

MOST_CALLS = 16
"""In an answer that must call: a model that does not know how to end ends here."""

_JSON: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As templates write a call when it comes back, so that the next turn's prompt says the same."""
_LENIENT: Final = {"lenient": True, "coerce_one_of": True}
"""For tools that are not strict: what llguidance cannot enforce is left to the model."""
_OPEN: Final = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"}
    | {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"}
)
"""A schema with one of these says itself which other arguments there are; elsewhere those named are all."""


MAYBE: Final = "\0"
"""A line break, or none."""


@dataclass(frozen=True)
class Keyed:
    """How a format writes arguments one by one, that is no JSON object."""

    open: str
    """Before a name."""
    middle: str
    close: str
    """After a value."""
    gap: str = ""
    """Between two."""
    quotes: tuple[str, str] | None = ("", "")
    """Around a string, which is written as it is; None: it is written as JSON has it."""
    text: str = r"/(?s:.*)/"
    """What such a string may be, as an expression."""
    nested: bool = True
    """Its values may be lists and objects."""


@dataclass(frozen=True)
class Envelope:
    """What stands around a name and its arguments, between the markers of a format."""

    open: str = ""
    before: str = ""
    between: str = ""
    after: str = ""
    close: str = ""
    item_gap: str | None = None
    """Between calls within the same markers; None: there is one."""
    gap: str | None = None
    """Between one closing marker and the next opening one; None: there is one."""
    number: str | None = None
    """A call's number follows its name, behind this."""
    keyed: Keyed | None = None
    """None: the arguments are a JSON object."""


ENVELOPES: Final[Mapping[str, Envelope]] = {
    "json": Envelope("\n", '{"name": "', '", "arguments": ', "}", "\n", gap="\n"),
    "json_tools": Envelope("\n", '{"name": "', '", "arguments": ', "}", "\n", gap="\n"),
    "bare": Envelope("", '{"name": "', '", "parameters": ', "}"),
    "mistral": Envelope(between="[ARGS]", gap=""),
    "mistral_list": Envelope("[", '{"name": "', '", "arguments": ', "}", "]", item_gap=", "),
    "kimi_k2": Envelope(
        "",
        "<|tool_call_begin|>functions.",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        item_gap="",
        number=":",
    ),
    "kimi_k3": Envelope(
        "",
        '<|open|>call tool="',
        '"<|sep|><|open|>json type="object"<|sep|>',
        "<|close|>json<|sep|><|close|>call<|sep|>",
        item_gap="",
        number='" index="',
    ),
    "qwen3_coder": Envelope(
        "\n",
        "<function=",
        ">\n",
        "</function>",
        "\n",
        gap="\n",
        keyed=Keyed("<parameter=", ">\n", "\n</parameter>\n"),
    ),
    "glm47": Envelope(
        between=MAYBE,
        gap=MAYBE,
        keyed=Keyed("<arg_key>", f"</arg_key>{MAYBE}<arg_value>", f"</arg_value>{MAYBE}"),
    ),
    "longcat": Envelope(
        between="\n",
        gap="\n",
        keyed=Keyed("<longcat_arg_key>", "</longcat_arg_key>\n<longcat_arg_value>", "</longcat_arg_value>\n"),
    ),
    "minimax_m2": Envelope(
        "\n",
        '<invoke name="',
        '">\n',
        "</invoke>\n",
        item_gap="",
        keyed=Keyed('<parameter name="', '">', "</parameter>\n"),
    ),
    "minicpm5": Envelope(
        "",
        '"',
        '">',
        gap="",
        keyed=Keyed('<param name="', '">', "</param>", text="/[^<&\\n]*/"),
    ),
    "muse_spark": Envelope(
        "\n",
        '<atem:invoke name="',
        '">\n',
        "</atem:invoke>\n",
        item_gap="",
        keyed=Keyed('<atem:parameter name="', '">', "</atem:parameter>\n", quotes=None),
    ),
    "pythonic": Envelope("[", "", "(", ")", "]", item_gap=", ", keyed=Keyed("", "=", "", ", ", quotes=None)),
    "gemma4": Envelope("", "call:", "{", "}", gap="", keyed=Keyed("", ":", "", ",", quotes=('<|"|>', '<|"|>'))),
    "function_gemma": Envelope(
        "",
        "call:",
        "{",
        "}",
        gap="",
        keyed=Keyed("", ":", "", ",", quotes=("<escape>", "<escape>"), text="/[^{}]*/", nested=False),
    ),
}
"""Of every format that mlx-lm parses and of ours."""


def shape_of(
    form: Format, tools: Tools, special: Mapping[str, int], answer: Shape | None = None, *, thinks: bool = False
) -> Shape | None:
    """What an answer with calls must look like: all of it where a call is demanded or `answer` shapes the rest of it,
    else what follows an opening marker.

    special: tokens that are no text, by their spelling. thinks: the model may reason first. None: the format has no
    grammar, or nothing opens a call in it.
    Raises UnsupportedSchema for an `answer` that calls cannot stand beside.
    """
    envelope = ENVELOPES.get(form.name)
    if envelope is None:
        if tools.choice == "required" or any(tool.strict for tool in tools.allowed):
            raise UnsupportedSchema("tools: nothing is known of how this model writes calls", param="tools")
        return None
    grammar = _Grammar(envelope, form, tools, special)
    if tools.choice == "required":
        return Shape(kind="lark", text=grammar.whole("calls", thinks=thinks), param="tools")
    if answer is not None:
        if answer.kind != "json" or answer.trigger is not None:
            raise UnsupportedSchema(f"{answer.param} cannot be asked for beside tools", param=answer.param)
        given = json.loads(answer.text)
        schema = {"x-guidance": {"whitespace_flexible": False}} | (given if isinstance(given, dict) else {})
        text = (
            grammar.whole("(calls | answer)", thinks=thinks)
            + f"answer: %json {json.dumps(schema, ensure_ascii=False)}\n"
        )
        return Shape(kind="lark", text=text, param=answer.param)
    if form.bare:
        return None
    try:
        text = grammar.body("start")
    except UnsupportedSchema:
        if any(tool.strict for tool in tools.allowed):
            raise
        return None
    again = tools.parallel and envelope.gap is not None
    return Shape(kind="lark", text=text, param="tools", trigger=form.start, again=again)


class _Grammar:
    """The rules for one conversation's calls."""

    def __init__(self, envelope: Envelope, form: Format, tools: Tools, special: Mapping[str, int]) -> None:
        self._envelope = envelope
        self._form = form
        self._tools = tools
        self._special = special
        self._marker = re.compile("|".join(map(re.escape, sorted([*special, MAYBE], key=len, reverse=True))))

    def whole(self, start: str, *, thinks: bool) -> str:
        """From the answer's first character on. start: what it may be; `calls` is known."""
        opening = "" if self._form.bare else self._form.start
        # Models that reason were trained to set what follows apart.
        rules = [
            _rule("start", r'"\n\n"?' if thinks else "", start),
            _rule("calls", "call", self._more("call", self._envelope.gap)),
        ]
        return "\n".join([*rules, _rule("call", self._said(opening), "body"), self.body("body")])

    def body(self, name: str) -> str:
        """What follows an opening marker, as a rule called `name` and those that it needs."""
        envelope, allowed = self._envelope, self._tools.allowed
        closing = self._said(envelope.close + self._form.end)
        names = " | ".join(f"item_{place}" for place in range(len(allowed)))
        rules = [
            _rule(name, self._said(envelope.open), "item", self._more("item", envelope.item_gap), closing),
            _rule("item", self._said(envelope.before), f"({names})", self._said(envelope.after)),
        ]
        number = f"{self._said(envelope.number)} /[0-9]{{1,3}}/" if envelope.number else ""
        for place, tool in enumerate(allowed):
            arguments = f"%json {arguments_schema(tool)}"
            if envelope.keyed is not None:
                arguments, values = self._keyed(envelope.keyed, tool, f"value_{place}")
                rules += values
            rules.append(_rule(f"item_{place}", self._said(tool.name), number, self._said(envelope.between), arguments))
        if envelope.keyed is not None:
            rules.append(f"TEXT: {envelope.keyed.text}")
        return "\n".join(rules) + "\n"

    def _keyed(self, keyed: Keyed, tool: Tool, name: str) -> tuple[str, list[str]]:
        """The arguments in the schema's order, and the rules for their values. Raises UnsupportedSchema."""
        found = properties(tool.parameters)
        needed = set(tool.parameters.get("required", ()))
        if needed - found.keys() or (_OPEN - {"additionalProperties"}) & tool.parameters.keys():
            raise UnsupportedSchema(
                f"tools: the parameters of {tool.name} cannot be enforced in the way that this model writes calls: "
                "they must be properties with names and nothing else",
                param="tools",
            )
        rules = []
        arguments: list[tuple[str, bool]] = []
        for place, (key, schema) in enumerate(found.items()):
            value = f"{name}_{place}"
            rules += self._value(keyed, tool, value, key, schema)
            said = f"{self._said(keyed.open + key + keyed.middle)} {value}"
            arguments.append((said, key in needed))
        return _chain(arguments, self._said(keyed.gap), name, rules), rules

    def _value(self, keyed: Keyed, tool: Tool, name: str, key: str, schema: Mapping[str, Any]) -> list[str]:
        """The rules for a value and what closes it. Raises UnsupportedSchema."""
        if keyed.quotes is None or not is_text(schema):
            if not keyed.nested and not is_scalar(schema):
                raise UnsupportedSchema(
                    f"tools: {tool.name}.{key} cannot be enforced: this model's calls have no lists and no objects",
                    param="tools",
                )
            guidance = _JSON if tool.strict else _JSON | _LENIENT
            shared = {each: tool.parameters[each] for each in ("$defs", "definitions") if each in tool.parameters}
            told = json.dumps({**shared, **schema, "x-guidance": guidance}, ensure_ascii=False)
            return [_rule(name, f"%json {told}", self._said(keyed.close))]
        before, after = keyed.quotes
        close = after + keyed.close
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices:
            said = " | ".join(_quoted(each) or '""' for each in choices if isinstance(each, str))
            return [_rule(name, self._said(before), f"({said})", self._said(close))]
        marker = next((each for each in self._marker.finditer(close) if each[0] != MAYBE), None)
        if marker is not None:
            # A token that is no text ends it; white space before that is part of it.
            return [_rule(name, self._said(before), "TEXT", self._said(close[marker.start() :]))]
        ended = close.partition(MAYBE)
        rest = self._said(ended[1] + ended[2])
        return [
            _rule(name, self._said(before), f"{name}_text", rest),
            f"{name}_text[lazy]: TEXT {_quoted(ended[0])}",
        ]

    def _more(self, name: str, gap: str | None) -> str:
        if gap is None or not self._tools.parallel:
            return ""
        return f"({self._said(gap)} {name}){{0,{MOST_CALLS - 1}}}"

    def _said(self, text: str) -> str:
        """`text` in a rule: tokens that are no text by number."""
        found, place = [], 0
        for marker in self._marker.finditer(text):
            token = self._special.get(marker[0])
            found += [_quoted(text[place : marker.start()]), '"\\n"?' if token is None else f"<[{token}]>"]
            place = marker.end()
        return " ".join(each for each in (*found, _quoted(text[place:])) if each)


_COMPLAINT = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?(.*)", re.DOTALL)
_OF_TOOL = re.compile(r"(?:item|value)_(\d+)")


def blamed(grammar: str, reason: str) -> tuple[str, str] | None:
    """The name of the tool that llguidance complains of, and the rest of the complaint; None: of nothing that is one
    tool's. grammar: as `shape_of` wrote it."""
    found, lines = _COMPLAINT.fullmatch(reason), grammar.splitlines()
    if found is None or not 1 <= int(found[1]) <= len(lines):
        return None
    rule = _OF_TOOL.match(lines[int(found[1]) - 1])
    own = next((line for line in lines if rule and line.startswith(f"item_{rule[1]}: ")), None)
    name = re.match(r'item_\d+: "([\w-]+)"', own or "")
    return (name[1], found[2]) if name else None


def _rule(name: str, *parts: str) -> str:
    return f"{name}: {' '.join(part for part in parts if part)}"


def arguments_schema(tool: Tool) -> str:
    """A tool's parameters as JSON, with what llguidance is told of them. Raises UnsupportedSchema."""
    if tool.strict and (reason := unenforceable(tool.parameters)):
        raise UnsupportedSchema(f"tools: the parameters of {tool.name}: {reason}", param="tools")
    parameters: dict[str, Any] = dict(tool.parameters)
    if not _OPEN & parameters.keys():
        parameters["additionalProperties"] = False
        required = parameters.get("required")
        if isinstance(required, list):
            found = parameters["properties"]
            undescribed: dict[str, Any] = {name: {} for name in required if isinstance(name, str) and name not in found}
            parameters["properties"] = {**found, **undescribed}
    guidance = _JSON if tool.strict else _JSON | _LENIENT
    return json.dumps({**parameters, "x-guidance": guidance}, ensure_ascii=False)


def _chain(arguments: list[tuple[str, bool]], gap: str, name: str, rules: list[str]) -> str:
    """Arguments one after the other, those that are not needed perhaps left out; what stands for them in a rule."""
    if not gap:
        return " ".join(said if needed else f"({said})?" for said, needed in arguments)
    # Whether a gap stands before an argument hangs on whether any stood before that one.
    for place in range(len(arguments) - 1, -1, -1):
        said, needed = arguments[place]
        rest = f"{name}_after_{place + 1}" if place + 1 < len(arguments) else ""
        skipped = "" if needed else f" | {name}_first_{place + 1}" if rest else ' | ""'
        rules.append(f"{name}_first_{place}: {said} {rest}{skipped}")
        later = f"{gap} {said} {rest}"
        rules.append(f"{name}_after_{place}: {later}" + ("" if needed else f" | {rest}" if rest else ' | ""'))
    return f"{name}_first_0" if arguments else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
