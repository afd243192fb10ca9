"""Special tokens that a client spells out, as in "what does <|im_end|> mean?": the model reads them as letters.

A tokenizer makes control tokens of them wherever they stand, and whoever writes one into a message would end it and
speak as somebody else. Knows tokenizers and strings; renders nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from protocol.errors import InvalidValue
from protocol.jobs import Chat
from workers.llm import spelling

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Mark = Callable[[Any], Any]
"""Messages or tools, at any depth -> the same with a mark within each special token that is spelt out."""

_MARKS: Final = (0xF0000, 0xFFFFD)
"""Unicode's plane for private use: templates do nothing with its characters, and hardly any text has one."""


def ids_of(tokenizer: TokenizerWrapper, job: Chat, text: str, render: Callable[[Mark], str]) -> tuple[int, ...] | None:
    """The ids of `text`, a rendering of the job, in which the client's words are text.

    render: the same rendering of what a `Mark` returns. None: the client spells no special token, or the template would
    make another text of one that is broken up.
    """
    special = _special(tokenizer)
    if special is None or not any(special.search(each) for each in _strings(job)):
        return None
    mark = next(chr(each) for each in range(*_MARKS) if chr(each) not in text)
    try:
        parts = render(lambda value: _broken(value, special, mark)).split(mark)
    except InvalidValue:
        return None
    if len(parts) == 1 or "".join(parts) != text:
        return None
    ids = [token for place, part in enumerate(parts) for token in _encoded(tokenizer, part, first=not place)]
    return tuple(ids) if spelling.decode(tokenizer, ids) == text else None


def _special(tokenizer: TokenizerWrapper) -> re.Pattern[str] | None:
    """What matches each of the tokenizer's special tokens: those that templates write and no text has. Markers of
    reasoning and of calls are mostly none of them, and stay what they are in an answer that comes back."""
    added = tokenizer.added_tokens_decoder.values()
    spelt = sorted((each.content for each in added if each.special and len(each.content) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, spelt))) if spelt else None


def _strings(job: Chat) -> Iterator[str]:
    """All that the client says, however deep."""
    left: list[Any] = [msgspec.to_builtins((job.messages, [tool.shown for tool in job.tools.offered]))]
    while left:
        each = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            yield from each
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each


def _broken(value: Any, special: re.Pattern[str], mark: str) -> Any:
    """A mark behind the first character of each special token."""
    if isinstance(value, str):
        return special.sub(lambda found: f"{found[0][0]}{mark}{found[0][1:]}", value)
    if isinstance(value, dict):
        return {_broken(name, special, mark): _broken(member, special, mark) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_broken(entry, special, mark) for entry in value]
    return value


def _encoded(tokenizer: TokenizerWrapper, text: str, *, first: bool) -> list[int]:
    """The ids of a part. What is not the first stands behind a line break, which is taken away again: SentencePiece
    puts a space before whatever begins a text."""
    if first:
        return _ids(tokenizer, text)
    before, ids = _ids(tokenizer, "\n"), _ids(tokenizer, "\n" + text)
    return ids[len(before) :] if ids[: len(before)] == before else _ids(tokenizer, text)


def _ids(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids
