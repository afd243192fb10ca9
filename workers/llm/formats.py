"""How models write the calls of tools: mlx-lm's parsers, two formats of our own, and what becomes of what they find.

Knows templates and markup; knows neither rows nor when which character came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from protocol.tools import Tool
from workers.llm.schemas import properties

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Parse = Callable[[str, list[dict[str, Any]]], Any]
"""What stands between a call's markers, and the tools in OpenAI's form -> one call or a list of them, each an object
with name, arguments and perhaps id. Raises whatever it meets."""

_TOOLS = re.compile(r"\btools\b")
_ROLE = re.compile("""["']tool["']""")
_BETWEEN = re.compile(r"[\s;,]*")


@dataclass(frozen=True)
class Format:
    """One model's markup."""

    name: str
    """As mlx-lm calls it, or one of ours: `json`, `bare`."""
    start: str
    """Opens a call, or several."""
    end: str
    """Closes what `start` opened; empty: the end of the answer does."""
    parse: Parse
    bare: bool = False
    """An answer that begins with an object is a call without `start`."""
    native: bool = True
    """The template shows tools by itself."""


@dataclass(frozen=True)
class Call:
    """A call that was understood. `arguments`: a JSON object."""

    name: str
    arguments: str
    id: str | None
    """The model's own, where its format has one."""


def _parse_json(text: str, tools: list[dict[str, Any]]) -> Any:
    return json.loads(text.strip())


def _parse_bare(text: str, tools: list[dict[str, Any]]) -> Any:
    """Objects one after the other, as Llama writes them."""
    decoder = json.JSONDecoder()
    found, place = [], 0
    while place < len(text):
        call, place = decoder.raw_decode(text, place)
        found.append(call)
        gap = _BETWEEN.match(text, place)
        place = gap.end() if gap else place
    return found


JSON: Final = Format("json", "<tool_call>", "</tool_call>", _parse_json, native=False)
"""For models whose template knows no tools: described in the system message, as Hermes and Qwen were trained."""
BARE: Final = Format("bare", "<|python_tag|>", "", _parse_bare, bare=True)
"""For templates that show tools in a way that mlx-lm does not know: Llama 3's answer is the call's object and nothing
else."""


def format_of(tokenizer: TokenizerWrapper) -> Format:
    """What the model's template asks of it."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        # One for conversations with tools, one for those without; mlx-lm looks for a parser in neither.
        template = template.get("tool_use", template.get("default"))
    if isinstance(template, str) and not _TOOLS.search(template):
        return JSON
    if tokenizer.has_tool_calling:
        parse: Parse = tokenizer.tool_parser
        kind = parse.__module__.rpartition(".")[2]
        if kind == "mistral" and isinstance(template, str) and "[ARGS]" not in template:
            # Until 2024: one list of calls, with ids of the model's own.
            kind = "mistral_list"
        return Format(kind, str(tokenizer.tool_call_start), tokenizer.tool_call_end or "", parse)
    if isinstance(template, str) and JSON.start in template:
        return replace(JSON, native=True)
    return BARE


def speaks_tools(tokenizer: TokenizerWrapper) -> bool:
    """Whether the template renders calls and results of tools. One that is no plain text is trusted to."""
    template = tokenizer.chat_template
    return not isinstance(template, str) or ("tool_calls" in template and _ROLE.search(template) is not None)


def understood(form: Format, text: str, tools: Sequence[Tool]) -> list[Call]:
    """The calls between markers; none where the text does not parse or calls what is none of `tools`."""
    names = {tool.name for tool in tools}
    if text.strip() in names:
        # In formats that write arguments one by one; longcat's parser does not know it.
        return [Call(text.strip(), "{}", None)]
    try:
        found = form.parse(text, [_resolved(tool) for tool in tools])
        return [_call(each, names) for each in (found if isinstance(found, list) else [found])]
    except (ValueError, SyntaxError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        # A parser meets whatever a model wrote and raises what it likes.
        return []


def _resolved(tool: Tool) -> dict[str, Any]:
    """As parsers are told of it, which look at the types of properties and follow no reference."""
    shown = tool.shown
    parameters = {**tool.parameters, "properties": properties(tool.parameters)}
    return {**shown, "function": {**shown["function"], "parameters": parameters}}


def _call(found: Any, names: set[str]) -> Call:
    """Raises ValueError, LookupError or TypeError."""
    name = found["name"]
    if name not in names:
        raise ValueError("a tool that was not offered")
    arguments = found["arguments"] if "arguments" in found else found.get("parameters")
    if isinstance(arguments, str):
        arguments = json.loads(arguments) if arguments.strip() else None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("arguments that are no object")
    identity = found.get("id")
    return Call(name, written(arguments), identity if isinstance(identity, str) and identity else None)


def written(value: Any) -> str:
    """JSON as templates write it, with ", " and ": ". Raises ValueError for what JSON has no word for."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, which no frame can carry as it is.
        return json.dumps(value, allow_nan=False)
    return text
