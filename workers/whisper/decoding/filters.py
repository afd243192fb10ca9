"""Which token may come next: Whisper's suppressions and timestamp rules, on the host, all rows at once.

Knows logits and token ids, no sampling and no model. A row costs about 0.1 ms: few passes over 51865 floats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workers.whisper.tokenizer import Tokenizer

Floats = npt.NDArray[np.float32]
NEVER = np.float32(-np.inf)

MAX_INITIAL_TIMESTAMP = 1.0
"""Seconds; no transcript of a window begins later (openai/whisper decoding.py)."""
TIMESTAMP_STEP = 0.02
"""Seconds between timestamp tokens."""


class Filters:
    """The rules of one model, with timestamps or without. Immutable; one serves all rows of that kind."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, *, timestamps: bool = True, ascending: bool = True) -> None:
        """`ascending`: timestamps never decrease and segments take time, as openai/whisper has it. mlx-whisper
        means to but compares positions with values, so there the rule never acts (decoding.py,
        ApplyTimestampRules)."""
        self._eot = tokenizer.eot
        self._begin = tokenizer.timestamp_begin
        self._no_timestamps = tokenizer.no_timestamps
        self._timestamps = timestamps
        self._ascending = ascending
        self._last_initial = self._begin + round(MAX_INITIAL_TIMESTAMP / TIMESTAMP_STEP)
        self._always = np.zeros(n_vocab, np.float32)
        self._always[list(tokenizer.unspoken)] = NEVER
        self._first = self._always.copy()
        self._first[list(tokenizer.blank)] = NEVER

    def apply(self, logits: Floats, said: Sequence[Sequence[int]]) -> Floats:
        """logits: (rows, vocab); said: what each row has sampled so far. -> a filtered copy.

        All rows are at the same position, so that all are at their first token or none is.
        """
        first = not said[0]
        filtered: Floats = logits + (self._first if first else self._always)
        if not self._timestamps:
            return filtered
        begin = self._begin
        if self._ascending:
            for row, tokens in zip(filtered, said, strict=True):
                self._forbid_past(row, tokens)
        prefers_time = self._prefers_time(filtered)
        filtered[:, self._no_timestamps] = NEVER
        if first:
            filtered[:, :begin] = NEVER
            filtered[:, self._last_initial + 1 :] = NEVER
            return filtered
        for row, tokens, timely in zip(filtered, said, prefers_time, strict=True):
            self._pair(row, tokens)
            # A row that just had its pair may say no third one. The reference then forbids text as well and says
            # token 0, "!", with a probability of nan; openai/whisper weighs only what is still allowed.
            if timely and row[begin:].max() > NEVER:
                row[:begin] = NEVER
        return filtered

    def next_start(self, said: Sequence[int]) -> int | None:
        """The timestamp that probably comes next: of a window its beginning, of a segment the end of the one before.
        None where text is to come, or anything."""
        if not self._timestamps:
            return None
        if not said:
            return self._begin
        return said[-1] if said[-1] >= self._begin and not self._paired(said) else None

    def _prefers_time(self, logits: Floats) -> npt.NDArray[np.bool_]:
        """Whether all timestamps together are likelier than any other single token. Weighed before the pairing rules
        act, as mlx-whisper does."""
        times, others = logits[:, self._begin :], logits[:, : self._begin]
        top = np.maximum(times.max(axis=-1), np.finfo(np.float32).min)
        with np.errstate(divide="ignore"):  # No timestamp is left: the mass is 0 and its logarithm -inf.
            mass = top + np.log(np.exp(times - top[:, None]).sum(axis=-1))
        return np.asarray(mass > others.max(axis=-1))

    def _pair(self, row: Floats, tokens: Sequence[int]) -> None:
        """Timestamps come in pairs, an end and the next start, but for the first and one before the end of text."""
        if tokens[-1] < self._begin:
            return
        if self._paired(tokens):
            row[self._begin :] = NEVER
        else:
            row[: self._eot] = NEVER

    def _paired(self, tokens: Sequence[int]) -> bool:
        return len(tokens) < 2 or tokens[-2] >= self._begin

    def _forbid_past(self, row: Floats, tokens: Sequence[int]) -> None:
        """The second of a pair may repeat the first; an end must come after its start."""
        latest = next((token for token in reversed(tokens) if token >= self._begin), None)
        if latest is not None:
            repeats = tokens[-1] >= self._begin and not self._paired(tokens)
            row[self._begin : latest + (0 if repeats else 1)] = NEVER


def log_normaliser(logits: Floats) -> npt.NDArray[np.float64]:
    """log(sum(exp)) of each row, (rows,); logits less this are log-probabilities."""
    top = logits.max(axis=-1)
    total = np.exp(logits - top[:, None]).sum(axis=-1, dtype=np.float64)
    return np.asarray(top + np.log(total), np.float64)
