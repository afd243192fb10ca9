"""Finds the calls of tools in an answer that comes character by character: text passes, markup never does.

Knows one format and the tools that may be called; knows no tokens.

Text passes at once but for white space and what may be the beginning of a marker. What an opening marker begins is
held until it is understood, and given back as text if it is not; where a grammar guarantees its form, a call's name and
arguments are told as they come.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.tools import CallPart, Tool
from workers.llm.formats import Format, understood
from workers.llm.watch import Watch

_JSON_HEADER = re.compile(r'[\s\[\]{},]*"name": "(?P<name>[\w-]+)", "arguments": ')
HEADERS: Final = {
    "json": _JSON_HEADER,
    "json_tools": _JSON_HEADER,
    "bare": re.compile(r'[\s{};,]*"name": "(?P<name>[\w-]+)", "parameters": '),
    "mistral": re.compile(r"(?:\[TOOL_CALLS\])?(?P<name>[\w-]+)\[ARGS\]"),
    "kimi_k2": re.compile(
        r"(?:<\|tool_call_end\|>)?<\|tool_call_begin\|>(?P<id>functions\.(?P<name>[\w-]+):\d+)"
        r"<\|tool_call_argument_begin\|>"
    ),
    "kimi_k3": re.compile(
        r"(?:<\|close\|>json<\|sep\|><\|close\|>call<\|sep\|>)?"
        r'<\|open\|>call tool="(?P<name>[\w-]+)" index="\d+"<\|sep\|><\|open\|>json type="object"<\|sep\|>'
    ),
}
"""What stands before a call's arguments, of the formats whose arguments are JSON and come last."""

_SELF_DELIMITING = ("json", "json_tools", "bare", "mistral", "mistral_list")
"""Formats in which a call without a closing marker is whole or does not parse."""
_BARE_START = '{"name":"'
"""An answer's first characters, but for white space, that make it a call."""


@dataclass(frozen=True)
class Calling:
    """What an answer may call, and how its model writes that."""

    form: Format
    tools: tuple[Tool, ...]
    parallel: bool
    guaranteed: bool = False
    """A grammar sees to it that a call, once opened, has the form that `HEADERS` knows."""
    demanded: bool = False
    """The answer is calls and nothing else."""


def new_id() -> str:
    """As OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


class Calls:
    """The calls of one choice."""

    def __init__(self, calling: Calling, ids: Sequence[str] = ()) -> None:
        """ids: of the first calls, where they are known."""
        self._calling = calling
        self._ids = ids
        self._form = calling.form
        self._start = Watch(self._form.start)
        self._end = Watch(self._form.end) if self._form.end else None
        self._header = HEADERS.get(self._form.name) if calling.guaranteed else None
        self._held = ""
        """White space, and what may become a marker; within a call all of it that is not told yet."""
        self._payload = 0
        """Where in `_held` a call's text begins."""
        self._arguments: _Object | None = None
        """Told at this moment."""
        self._telling = False
        """A call was told since the marker: nothing that follows is text."""
        self._begun = False
        """Something but white space was there."""
        self._parts: list[CallPart] = []
        self.inside = False
        """Of what a marker opened."""
        self.count = 0
        """Calls that were told."""

    @property
    def enough(self) -> bool:
        """No further call is wanted."""
        return not self._calling.parallel and self.count > 0 and not self.inside

    def hear(self, char: str) -> tuple[str, int]:
        """The text that passes now, and the number of characters that are no text; one of the two is nothing."""
        if not self.inside:
            return self._outside(char)
        if self._arguments is None:
            return self._collected(char)
        self._tell(char)
        if self._arguments.see(char):
            self._arguments = None
            self.count += 1
        return "", 1

    def end(self, *, cut: bool) -> tuple[str, int]:
        """As `hear`: what is held comes to its end. cut: there was no room for more."""
        whole = self.inside and not self._telling and self._form.name in _SELF_DELIMITING
        if whole and (dropped := self._understand(len(self._held))):
            return "", dropped
        markup = self._is_markup(cut)
        text, self._held, self.inside = self._held, "", False
        return ("", len(text)) if markup else (text, 0)

    def _is_markup(self, cut: bool) -> bool:
        """Whether what is held at the end is no text."""
        if cut and self._calling.demanded:
            return True
        if self.inside:
            return self._telling or (cut and self._calling.guaranteed)
        # Behind a call the beginning of a marker is that of a further one.
        rest = self._held.strip()
        return self.count > 0 and (not rest or (cut and self._form.start.startswith(rest)))

    def take(self) -> tuple[CallPart, ...]:
        """What is new."""
        parts, self._parts = tuple(self._parts), []
        return parts

    # Text.

    def _outside(self, char: str) -> tuple[str, int]:
        self._held += char
        if self._start.see(char):
            self._start = Watch(self._form.start)
            return self._open(len(self._held))
        if self._form.bare and not self._begun:
            squeezed = "".join(self._held.split())
            if squeezed and squeezed.startswith(_BARE_START):
                return self._open(len(self._held) - len(self._held.lstrip()))
            if _BARE_START.startswith(squeezed):
                return "", 0
        kept = self._start.matched
        text = self._held[: len(self._held) - kept].rstrip()
        if not text:
            return "", 0
        self._begun = True
        self._held = self._held[len(text) :]
        return text, 0

    def _open(self, payload: int) -> tuple[str, int]:
        """A call's text begins at `payload` of what is held."""
        self.inside = self._begun = True
        self._telling = False
        self._payload = payload
        self._end = Watch(self._form.end) if self._form.end else None
        return "", 0

    # Calls.

    def _collected(self, char: str) -> tuple[str, int]:
        if char == "{" and self._header is not None and (found := self._header.fullmatch(self._held, self._payload)):
            named = found.groupdict()
            if any(tool.name == named["name"] for tool in self._calling.tools):
                return self._begin(named["name"], named.get("id"), char)
        self._held += char
        if self._end is None or not self._end.see(char):
            return "", 0
        if self._telling:
            dropped, self._held, self.inside = len(self._held), "", False
            return "", dropped
        if dropped := self._understand(len(self._held) - len(self._form.end)):
            return "", dropped
        if self._open_string():
            self._end = Watch(self._form.end)
            return "", 0
        self.inside = False
        text, self._held = self._held, ""
        return text, 0

    def _begin(self, name: str, identity: str | None, char: str) -> tuple[str, int]:
        """From its name on a call is told as it comes."""
        self._parts.append(CallPart(self.count, self._id(identity), name))
        dropped, self._held, self._payload = len(self._held) + 1, "", 0
        self._telling, self._arguments = True, _Object()
        self._arguments.see(char)
        self._tell(char)
        return "", dropped

    def _id(self, own: str | None) -> str:
        """Of the next call."""
        return self._ids[self.count] if self.count < len(self._ids) else own or new_id()

    def _understand(self, end: int) -> int:
        """Tell the calls up to `end` of what is held, all of which is no text then; 0 if there are none."""
        calls = understood(self._form, self._held[self._payload : end], self._calling.tools)
        if not calls:
            return 0
        for call in calls if self._calling.parallel else calls[:1]:
            self._parts.append(CallPart(self.count, self._id(call.id), call.name, call.arguments))
            self.count += 1
        dropped, self._held, self.inside = len(self._held), "", False
        return dropped

    def _open_string(self) -> bool:
        """Whether the closing marker stands in a string of a call's JSON."""
        scan = _Object()
        text = self._held[self._payload :].lstrip()
        return text.startswith("{") and not any(scan.see(char) for char in text) and scan.quoted

    def _tell(self, char: str) -> None:
        last = self._parts[-1] if self._parts else None
        if last is not None and last.index == self.count and last.id is None:
            self._parts[-1] = CallPart(self.count, arguments=last.arguments + char)
        else:
            self._parts.append(CallPart(self.count, arguments=char))


class _Object:
    """Where in a JSON object a text is, if it is one."""

    def __init__(self) -> None:
        self.quoted = False
        self._escaped = False
        self._depth = 0

    def see(self, char: str) -> bool:
        """Whether the object ends with `char`."""
        if self.quoted:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            else:
                self.quoted = char != '"'
        elif char == '"':
            self.quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth == 0
        return False
