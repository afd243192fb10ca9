"""The beginning of a window that other jobs have written: the tokens that stand for it, and the words to align with it.

Pure: knows timestamps and token ids, no model.
"""

from __future__ import annotations

from dataclasses import replace

from protocol.past import Context
from protocol.settings import SAMPLE_RATE
from workers.whisper.decoding.attempt import Result
from workers.whisper.segments import SECONDS_PER_TOKEN, Draft, Window
from workers.whisper.tokenizer import Tokenizer

LAST_TIMESTAMP = 1500
"""30 s."""


class Known:
    """What a job knows of its first window; without a context nothing."""

    def __init__(self) -> None:
        self.start = 0.0
        """Seconds: where that begins which is to be said."""
        self.tokens: tuple[int, ...] = ()
        """What the window has said: its segments, and the timestamp with which the next begins."""
        self.text: tuple[int, ...] = ()
        """The same without timestamps."""
        self._opening: tuple[int, ...] = ()
        self._said: list[Draft] = []

    @classmethod
    def of(cls, context: Context | None, tokenizer: Tokenizer, *, timestamps: bool) -> Known:
        known = cls()
        if context is None:
            return known
        known.start = context.stop / SAMPLE_RATE
        tokens: list[int] = []
        latest = tokenizer.timestamp_begin

        def mark(seconds: float) -> int:
            """A timestamp; they never decrease."""
            nonlocal latest
            place = min(round(seconds / SECONDS_PER_TOKEN), LAST_TIMESTAMP)
            latest = max(latest, tokenizer.timestamp_begin + place)
            return latest

        for past in context.said:
            text = [token for token in past.tokens if 0 <= token < tokenizer.eot]
            tokens += [mark(past.start), *text, mark(past.end)]
            known._said.append(Draft(past.start, past.end, tuple(text), first=0))
        tokens.append(mark(known.start))
        known.text = tuple(token for token in tokens if token < tokenizer.eot)
        known.tokens = tuple(tokens) if timestamps else known.text
        known._opening = tuple(tokens[-1:]) if timestamps else ()
        return known

    def begun(self, result: Result) -> Result:
        """The result with the timestamp that it begins with."""
        if not self._opening:
            return result
        return replace(result, tokens=(*self._opening, *result.tokens), logprobs=(0.0, *result.logprobs))

    def bound(self, drafts: list[Draft], window: Window) -> None:
        """A window that is one segment begins where the new begins, and lasts as long as it says, if it does."""
        for draft in drafts:
            draft.start = max(draft.start, self.start)
            if draft.end <= draft.start and self.start:
                draft.end = window.offset + window.seconds

    def drafts(self) -> list[Draft]:
        """The segments, to be aligned with what follows them."""
        return [replace(draft) for draft in self._said]
