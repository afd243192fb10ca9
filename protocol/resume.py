"""How far another process has come with an answer, for the one that goes on with it. Knows tokens, no text."""

from __future__ import annotations

import msgspec


class Begun(msgspec.Struct, frozen=True):
    """One choice of an answer, as far as another process has said it."""

    ids: tuple[int, ...] = ()
    """Its tokens."""
    calls: tuple[str, ...] = ()
    """The ids of its calls."""
    ended: bool = False


class Resume(msgspec.Struct, frozen=True):
    """Where an answer goes on whose process has died. What was said is said again first, event by event, so that who
    counts them knows where the new begins; but nothing of it is chosen anew."""

    choices: tuple[Begun, ...]
    """One for each choice."""
    cached_tokens: int
    """As Started told it."""
    prompt: tuple[int, ...] = ()
    """As Started told it."""
