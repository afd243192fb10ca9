"""What another process has said of a choice, to be said again: by itself as far as the model has no part in it.

Knows tokens and a voice; knows neither rows nor logits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from protocol.jobs import Generation
from protocol.resume import Begun

if TYPE_CHECKING:
    from workers.llm.language import Language
    from workers.llm.prompt import Prompt


class Repeat:
    """Tokens still to be said again, in order. All bookkeeping sees them as it did the first time, and so goes on from
    where it was: text that is held back, shapes, penalties, counts."""

    def __init__(self, begun: Begun, generation: Generation, prompt: Prompt, language: Language) -> None:
        self.ids = deque(begun.ids)
        held = 0
        if generation.logprobs is not None and not begun.ended:
            held = _held(begun, generation, prompt, language)
        self._held = held
        """The last so many need the model all the same: their log-probabilities are not told yet."""

    @property
    def blind(self) -> bool:
        """The next one does without logits."""
        return len(self.ids) > self._held

    def said(self) -> None:
        """A token was said: the next of these, if there are any left."""
        if self.ids:
            self.ids.popleft()


def _held(begun: Begun, generation: Generation, prompt: Prompt, language: Language) -> int:
    """Tokens at the end of which something is held back."""
    voice = language.voice(generation, prompt, begun.calls)
    settled = 0
    for place, token in enumerate(begun.ids):
        if token in language.ends:
            break
        voice.feed(token)
        if voice.settled:
            settled = place + 1
    return len(begun.ids) - settled
