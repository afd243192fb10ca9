"""A job's hint terms and prompt, fitted into Whisper's prompt budget. Knows tokens through `encode`, no model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROOM = 80
"""Tokens that terms may take however long the prompt is (API.md, Prompt budget)."""
LONGEST_TOKEN = 128
"""Bytes of the longest token in Whisper's vocabularies (a run of spaces): bounds a term's tokens from below."""


@dataclass(frozen=True)
class Fitted:
    """`terms` stand first in every window's prompt; `prompt` only until text of the job's own pushes it out."""

    terms: tuple[int, ...]
    prompt: tuple[int, ...]
    given: int
    """Terms asked for, duplicates and blanks included."""
    fitted: int
    budget: int
    """Tokens that the terms could have taken."""
    said: tuple[str, ...] = ()
    """The terms as they were given."""

    def echoed(self, text: str) -> bool:
        """Whether a text may come from the terms rather than from a sound: it says one, or nothing but their words.

        In noise Whisper repeats its prompt, and is sure enough of it to pass its own tests.
        """
        spoken = _words(text)
        known = [_words(term) for term in self.said]
        return bool(spoken) and (
            any(" ".join(term) in " ".join(spoken) for term in known if term)
            or {word for term in known for word in term}.issuperset(spoken)
        )


def _encoded(encode: Callable[[str], list[int]], text: str) -> list[int]:
    return encode(" " + text.strip()) if text.strip() else []


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def fit(
    encode: Callable[[str], list[int]], terms: Sequence[str], prompt: str | None, budget: int, before: str = ""
) -> Fitted:
    """Take terms in order, each whole or not at all; `budget`: tokens of a prompt in all (223).

    `before`: text said earlier. It stands behind the prompt and takes no room from the terms. The prompt's tokens are
    not yet cut: the text of earlier windows follows them, and the cut is made there.
    """
    asked = _encoded(encode, prompt or "")
    said = _encoded(encode, (prompt or "") + before) if before else asked
    room = min(budget, max(ROOM, budget - len(asked)))
    tokens: list[int] = []
    fitted: list[str] = []
    for term in dict.fromkeys(filter(None, map(str.strip, terms))):
        left = room - len(tokens)
        if left < 2:  # A further term costs a comma at least.
            break
        if len(term.encode(errors="ignore")) > left * LONGEST_TOKEN:
            continue
        more = encode(f", {term}" if tokens else f" {term}")
        if len(more) <= left:
            tokens += more
            fitted.append(term)
    if tokens and len(tokens) < room:
        tokens += encode(".")
    return Fitted(tuple(tokens), tuple(said), given=len(terms), fitted=len(fitted), budget=room, said=tuple(fitted))
