"""A model without weights: its logits are a function of the window and of what a row has said. Counts its calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from workers.whisper.tokenizer import Tokenizer

VOCAB = 51865
_TOKENIZER = Tokenizer(VOCAB)
PLAIN = np.array([token for token in range(300, 9000) if _TOKENIZER.bytes_of(token).isascii()])
"""Tokens that are whole characters: of halves the reference makes U+FFFD and we nothing."""
DIMS = SimpleNamespace(n_mels=80, n_audio_ctx=1500, n_audio_state=8, n_vocab=VOCAB, n_text_ctx=448, n_text_layer=1)


@dataclass
class ToyEncoded:
    context: int
    key: bytes
    mel: np.ndarray


@dataclass
class ToyRows:
    encoded: ToyEncoded
    said: list[list[int]]

    @property
    def n(self) -> int:
        return len(self.said)

    @property
    def position(self) -> int:
        return len(self.said[0])

    def select(self, indices: Sequence[int]) -> None:
        self.said = [list(self.said[i]) for i in indices]

    def truncate(self, length: int) -> None:
        self.said = [row[:length] for row in self.said]


Says = Callable[[ToyEncoded, list[int]], np.ndarray]


def hashed(encoded: ToyEncoded, said: list[int]) -> np.ndarray:
    """Random but repeatable logits that depend on the window and the whole row; timestamps come in pairs."""
    digest = hashlib.blake2b(encoded.key + np.array(said, np.int64).tobytes(), digest_size=8).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    logits = generator.standard_normal(VOCAB, np.float32)
    logits[generator.choice(PLAIN, 5)] += 14
    logits[50362] += generator.uniform(4, 12)
    spoken = said[said.index(50258) + 3 :] if 50258 in said else []
    times = [token >= 50364 for token in spoken]
    closes = len(times) > 1 and times[-1] and not times[-2]
    if closes or not spoken or (not times[-1] and generator.random() < 0.2):
        logits[50364 + generator.integers(0, 1500 if spoken else 40)] += 26
    elif spoken and generator.random() < 0.05:
        logits[50257] += 24
    if closes and generator.random() < 0.4:
        logits[50257] += 30
    return logits


@dataclass
class ToyModel:
    says: Says = hashed
    dims: Any = field(default_factory=lambda: DIMS)
    calls: list[tuple[str, int]] = field(default_factory=list)
    alignment_heads: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0), (0, 1)])

    def encode(self, mels: Sequence[np.ndarray], contexts: Sequence[int]) -> list[ToyEncoded]:
        self.calls.append(("encode", len(mels)))
        found = []
        for mel, context in zip(mels, contexts, strict=True):
            # Coarse enough to be the same for the reference's mel, which differs in the last bits.
            key = f"{float(mel.mean()):.2f}".encode()
            found.append(ToyEncoded(context, key, mel))
        return found

    def prefill(self, encoded: ToyEncoded, tokens: Sequence[int], at: Sequence[int]) -> tuple[ToyRows, np.ndarray]:
        logits = np.stack([self.says(encoded, list(tokens[: i % len(tokens) + 1])) for i in at])
        return ToyRows(encoded, [list(tokens)]), logits

    def prefill_many(self, starts: Sequence[tuple[Any, Sequence[int], Sequence[int]]]) -> list[Any]:
        self.calls.append(("prefill", len(starts)))
        return [self.prefill(*start) for start in starts]

    def step(self, rows: Sequence[ToyRows], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.calls.append(("step", sum(group.n for group in rows)))
        found = []
        for group, line in zip(rows, tokens, strict=True):
            logits = []
            for row, added in zip(group.said, line.reshape(group.n, -1).tolist(), strict=True):
                for token in added:
                    row.append(token)
                    logits.append(self.says(group.encoded, row))
            found.append(np.stack(logits))
        return found

    def align(self, encoded: ToyEncoded, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Each token attends where its turn is, some longer than others; two in three were to be expected."""
        lengths = np.array([5 + (token % 11) ** 2 for token in tokens], np.float32)
        center = (np.cumsum(lengths) - lengths / 2)[:, None]
        scores = -np.abs(np.arange(encoded.context)[None] - center) / 5
        logits = np.zeros((len(tokens), VOCAB), np.float32)
        for i, token in enumerate(tokens[1:]):
            logits[i, token] = 14.0 if token % 3 else 0.0
        return np.stack([scores, scores * 0.7]).astype(np.float32), logits


def scripted(*windows: Sequence[int], no_speech: float = -20.0, start: int = 50258) -> Says:
    """Says the given tokens window by window (a window is told by the order in which it first appears), then ends."""
    order: dict[bytes, int] = {}

    def says(encoded: ToyEncoded, said: list[int]) -> np.ndarray:
        number = order.setdefault(encoded.key, len(order))
        logits = np.full(VOCAB, -20.0, np.float32)
        logits[50362] = no_speech
        if start not in said:
            return logits
        spoken = said[said.index(start) + 3 :]
        script = windows[min(number, len(windows) - 1)]
        logits[50259] += 5  # English, where a language is asked for.
        logits[script[len(spoken)] if len(spoken) < len(script) else 50257] = 10.0
        return logits

    return says
