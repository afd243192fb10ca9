"""A conversation as a chat template takes it: OpenAI's messages, and calls and tools as text where it knows none.

Knows what templates expect; renders nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from protocol.jobs import Chat, ChatMessage
from workers.llm.formats import Format, speaks_tools, written

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

SHORT = 9
"""Letters and digits of a call's id in Mistral's older formats."""

DESCRIPTION: Final = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""In the words of Qwen2.5's own template, which many small models have seen."""


def messages_for(tokenizer: TokenizerWrapper, job: Chat, form: Format) -> Iterator[list[dict[str, Any]]]:
    """The conversation, in the first way that the template does not refuse."""
    messages = [_message(each) for each in job.messages]
    if _short_ids(tokenizer):
        messages = [_with_short_ids(each) for each in messages]
    if not speaks_tools(tokenizer):
        messages = _spelt_out(messages)
    if form.native or not job.tools.allowed:
        yield messages
        return
    described = DESCRIPTION.format(tools="\n".join(written(tool.shown) for tool in job.tools.offered))
    if messages[0]["role"] == "system":
        content = messages[0]["content"]
        yield [{**messages[0], "content": f"{content}\n\n{described}" if content else described}, *messages[1:]]
        return
    yield [{"role": "system", "content": described}, *messages]
    # Some templates have no place for a system message.
    yield [{**messages[0], "content": f"{described}\n\n{messages[0]['content']}"}, *messages[1:]]


def _short_ids(tokenizer: TokenizerWrapper) -> bool:
    """Whether the template refuses ids of calls that are not `SHORT` characters, as Mistral's do."""
    template = tokenizer.chat_template
    return isinstance(template, str) and re.search(rf"length\s*!=\s*{SHORT}\b", template) is not None


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    found = dict(message)
    if "tool_call_id" in message:
        found["tool_call_id"] = _short(message["tool_call_id"])
    if "tool_calls" in message:
        found["tool_calls"] = [{**call, "id": _short(call.get("id", ""))} for call in message["tool_calls"]]
    return found


def _short(identity: str) -> str:
    """The same for the same id; one that has the form stays."""
    return (
        identity
        if len(identity) == SHORT and identity.isalnum()
        else hashlib.blake2s(identity.encode()).hexdigest()[:SHORT]
    )


def _message(message: ChatMessage) -> dict[str, Any]:
    """As templates expect it: what is not there is no key, a call's arguments are an object."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    for key in ("name", "tool_call_id", "reasoning_content"):
        if getattr(message, key) is not None:
            found[key] = getattr(message, key)
    if message.tool_calls:
        found["tool_calls"] = [_call(each) for each in message.tool_calls]
    return found


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"])
    except (msgspec.DecodeError, RecursionError):
        # A model said it, and its conversation goes on all the same.
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _spelt_out(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls and results of tools as text of the assistant and the user, who still take turns."""
    found: list[dict[str, Any]] = []
    for message in messages:
        plain = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        if message["role"] == "tool":
            plain["role"] = "user"
            plain["content"] = f"<tool_response>\n{message['content']}\n</tool_response>"
        for call in message.get("tool_calls", ()):
            said = {key: value for key, value in call.get("function", call).items() if key in ("name", "arguments")}
            text = f"<tool_call>\n{written(said)}\n</tool_call>"
            plain["content"] = f"{plain['content']}\n{text}" if plain["content"] else text
        before = found[-1] if found else None
        if before and before["role"] == plain["role"] == "user" and before["content"].endswith("</tool_response>"):
            before["content"] += "\n" + plain["content"]
        else:
            found.append(plain)
    return found
