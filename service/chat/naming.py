"""A refusal in the words of a protocol whose request was made into a chat: its fields have other names there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import InvalidRequest

Names = tuple[tuple[str, str], ...]
"""A chat's name for a field, or a part of one, and the other protocol's; longer names come first."""


@contextmanager
def renaming(names: Names) -> Iterator[None]:
    """What is refused inside is refused in the other protocol's words."""
    try:
        yield
    except InvalidRequest as refusal:
        raise renamed(refusal, names) from None


def renamed(refusal: InvalidRequest, names: Names) -> InvalidRequest:
    """The same refusal. The name of the field is changed wherever the message has it; other words stay."""
    if refusal.param is None:
        return refusal
    param = refusal.param
    for ours, theirs in names:
        param = param.replace(ours, theirs)
    # A list's own name alone is also a word: "the chat template refuses these messages".
    message = refusal.message if refusal.param.isalpha() else refusal.message.replace(refusal.param, param)
    return type(refusal)(message, param=param, retry=refusal.retry)
