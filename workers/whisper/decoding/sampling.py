"""Choosing a token from filtered logits. Knows random keys; no rows and no model."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Sampler:
    """The likeliest token at temperature 0, else a drawn one.

    A draw depends on the key (job, window, temperature), the sample's number and its length alone, never on what
    else is being decoded: the same job gives the same text in any company.
    """

    def __init__(self, temperature: float, key: tuple[int, ...]) -> None:
        self._temperature = temperature
        # Python's own hash is salted for strings and weak for ints; Philox takes 128 bits of key.
        digest = hashlib.blake2b(struct.pack(f"<d{len(key)}q", temperature, *key), digest_size=16).digest()
        self._key = np.frombuffer(digest, np.uint64)

    def choose(self, logits: Floats, number: int, position: int) -> int:
        """logits: (vocab,), of which one at least is finite."""
        if self._temperature == 0:
            return int(logits.argmax())
        weights = np.exp((logits - logits.max()) / self._temperature)
        total = np.cumsum(weights, dtype=np.float64)
        return int(np.searchsorted(total, self._uniform(number, position) * total[-1], side="right"))

    def _uniform(self, number: int, position: int) -> float:
        """In [0, 1): one draw from the counter-based generator at this sample's place."""
        counter = np.array([0, 0, number, position], np.uint64)
        return float(np.random.Generator(np.random.Philox(key=self._key, counter=counter)).random())
