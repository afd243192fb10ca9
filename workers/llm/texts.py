"""A job that asks for vectors of texts, on its way: texts become tokens, tokens pieces, and vectors are told.

Knows tokenizers, lengths and events; the tensors are a `Network`'s.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from protocol.errors import ContextLengthExceeded, InternalError, InvalidValue
from protocol.events import Embedded, Progress, Read, Vectors
from protocol.jobs import Embed
from workers.loop import Emit

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

MOST_TOGETHER = 256
"""Texts of one piece: their vectors cross the pipe in one frame."""
LONG = 8
"""Characters for each token that fits: a longer text is counted before it is tokenized as a whole."""
SEAM = 8
"""Tokens that cutting a text in two may add."""


class Network(Protocol):
    """What makes vectors of tokens. They need not be of length 1."""

    width: int
    """Numbers in a vector."""

    def together(self, inputs: Sequence[Ids]) -> Floats:
        """Whole texts at once -> (inputs, width)."""

    def begin(self, ids: Ids) -> Reading | None:
        """A text to be read part by part; None: this network has to see a text as a whole."""

    def adapted(self, key: str) -> Network:
        """The same with the adapter of this key."""


class Reading(Protocol):
    """A text that is read part by part."""

    @property
    def left(self) -> int:
        """Tokens."""

    def read(self, size: int) -> Floats | None:
        """The next `size` tokens; after the last the vector (width,)."""


@dataclass(frozen=True)
class Tokens:
    """A tokenizer, as far as vectors need it. `encode` puts around a text what the model expects there."""

    encode: Callable[[str], Sequence[int]]
    vocabulary: int
    """Tokens that the network has too."""
    window: int
    """The longest text, in tokens."""

    def of(self, given: str | tuple[int, ...], param: str) -> Ids:
        """Raises InvalidValue and ContextLengthExceeded, calling the text `param`."""
        if isinstance(given, str):
            self._check_length(given, param)
            ids: Sequence[int] = self.encode(given)
        else:
            ids = given
        wrong = next((token for token in ids if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            last = self.vocabulary - 1
            raise InvalidValue(f"{param}: the model has no token {wrong}; its tokens are 0 to {last}", param=param)
        if not len(ids):
            raise InvalidValue(f"{param} must not be empty: the model's tokenizer makes nothing of it", param=param)
        if len(ids) > self.window:
            raise self._too_long(str(len(ids)), param)
        return np.array(ids, np.int32)

    def _check_length(self, text: str, param: str) -> None:
        """A text that cannot fit is found out without tokenizing all of it."""
        piece, counted = LONG * self.window, 0
        for start in range(0, len(text) if len(text) > piece else 0, piece):
            counted += len(self.encode(text[start : start + piece])) - SEAM
            if counted > self.window:
                raise self._too_long(f"at least {counted}", param)

    def _too_long(self, tokens: str, param: str) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"This model's maximum context length is {self.window} tokens, but {param} has {tokens}", param=param
        )


@dataclass(frozen=True)
class Embedder:
    """What a model has for this work."""

    network: Network
    tokens: Tokens


class Embedding:
    """An admitted job. Its texts are read from the shortest to the longest, so that few are filled up."""

    def __init__(self, job: Embed, emit: Emit, network: Network, key: str = "", adapter: str | None = None) -> None:
        """key: of its adapter, whose id is `adapter`; empty and None: it has none."""
        self.job = job
        self.emit = emit
        self.client = job.client
        self.network = network
        self.key = key
        self._adapter = adapter
        self._told: list[tuple[int, Ids]] = []
        self.total = 0
        """Tokens of all texts."""
        self.left = 0
        """Tokens that are not read yet."""
        self.waiting: deque[tuple[int, Ids]] = deque()
        """Texts with their places that are not begun, once all are tokens."""
        self.reading: tuple[int, Reading] | None = None
        self._arrived = time.perf_counter()
        self._begun: float | None = None
        self._tokenizing = self._embedding = 0.0

    def tokenize(self, tokens: Tokens, until: float) -> bool:
        """Texts become tokens, one at least, and more until then (perf_counter). True: all have. Raises Failure."""
        begun = time.perf_counter()
        inputs = self.job.inputs
        try:
            while True:
                place = len(self._told)
                self._told.append((place, tokens.of(inputs[place], f"input[{place}]")))
                if len(self._told) == len(inputs) or time.perf_counter() > until:
                    break
        finally:
            self._tokenizing += time.perf_counter() - begun
        if len(self._told) < len(inputs):
            return False
        self.waiting.extend(sorted(self._told, key=lambda each: len(each[1])))
        self.total = self.left = sum(len(ids) for _, ids in self._told)
        self._told.clear()
        return True

    def begins_long(self, size: int) -> bool:
        """Whether its next text alone has more tokens."""
        return bool(self.waiting) and len(self.waiting[0][1]) > size

    def take(self, size: int) -> list[tuple[int, Ids]]:
        """The next texts that together, filled up, have at most `size` tokens; one at least."""
        taken = [self.waiting.popleft()]
        while self.waiting and len(taken) < MOST_TOGETHER and (len(taken) + 1) * len(self.waiting[0][1]) <= size:
            taken.append(self.waiting.popleft())
        return taken

    def begin(self) -> None:
        self._begun = self._begun or time.perf_counter()

    def took(self, tokens: int, seconds: float) -> None:
        self.left -= tokens
        self._embedding += seconds

    def answer(self, found: tuple[tuple[int, ...], Floats] | None) -> None:
        """Tell how far it is, and the vectors (places, width) of some texts, where a piece was their last. The last
        piece of all ends the job. Raises InternalError."""
        if found:
            self.emit(Vectors(found[0], ones(found[1][:, : self.job.dimensions]).astype("<f4").tobytes()))
        if self.left:
            self.emit(Progress(self.total - self.left, self.total))
            return
        queued = (self._begun or self._arrived) - self._arrived - self._tokenizing
        spent = Read(*(1e3 * seconds for seconds in (queued, self._tokenizing, self._embedding)))
        self.emit(Embedded(self.total, spent, self._adapter))


def ones(vectors: Floats) -> Floats:
    """Each of length 1, but for one that is 0. Raises InternalError for what is not finite."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        raise InternalError("the model's vector of a text is not finite")
    made: Floats = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return made
