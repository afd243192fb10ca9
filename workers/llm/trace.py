"""What a traced request leaves in the log: how long each phase took, and what became of its first tokens.

Knows numbers and routes. A prompt's text never gets here; an answer's is written only where the operator allows it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.events import Spent

MAX_ROUTES = 8
"""Tokens of an answer whose way is recorded, at most: those up to the first that a client sees something of."""

Way = Literal["marker", "held back", "text", "reasoning", "call", "stop"]
"""What came of a token: it ended a reasoning marker; nothing yet; an event with text, reasoning or a call; a stop
string."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Route:
    """One token's way."""

    token: str
    way: Way


def log(spent: Spent, prompt_tokens: int, cached_tokens: int, routes: Sequence[Route], *, show_text: bool) -> None:
    """One line. Times in milliseconds; `routes` are the first choice's. show_text: tokens may be spelt out."""
    ways = [f"{route.way} {route.token!r}" if show_text else route.way for route in routes]
    _log.info(
        "trace: prompt %d tokens, %d cached; ms: queue %.1f, template %.1f, cache %.1f, prefill %.1f, "
        "first token %.1f, decode %.1f; first tokens: %s",
        prompt_tokens,
        cached_tokens,
        spent.queue,
        spent.template,
        spent.cache,
        spent.prefill,
        spent.first_token,
        spent.decode,
        ", ".join(ways) or "none",
    )
