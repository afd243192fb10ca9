"""All jobs that ask for vectors of texts, over one network: whose turn it is, and how much goes through it at once.

Knows jobs, clients and seconds. A piece is several short texts together, or a part of one that is long. Which texts
share a piece makes no difference to their vectors but for rounding.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from typing import Protocol

from protocol.errors import Failure, InternalError, InvalidValue, UnknownAdapter, UnsupportedTask
from protocol.jobs import BASE_MODEL, Embed
from workers.llm.queue import BUSY_S, Line, Pace, Shares
from workers.llm.texts import Embedder, Embedding, Floats, Network
from workers.loop import Emit, failed, is_shortage

TOKENIZE_S = 0.02
"""Seconds of one step in which texts may become tokens; one always does."""
IDLE_S = 0.3
"""Seconds of a piece while nobody is being answered beside it."""
MOST_TOKENS = 4096
"""Of one piece: with texts of 512 tokens, a layer's attention in float32 takes 100 MB."""
LIMITLESS = 1 << 30


class Adapters(Protocol):
    """Those of the network: workers/llm/adapters/mounts.py."""

    def enter(self, adapter: str) -> tuple[str, str | None]:
        """A job begins: the key of its adapter, and its id. Raises UnknownAdapter."""

    def leave(self, key: str) -> None:
        """It is over."""


class NoAdapters:
    """Of a model that cannot have any."""

    def __init__(self, name: str) -> None:
        self._name = name

    def enter(self, adapter: str) -> tuple[str, str | None]:
        if adapter not in ("", BASE_MODEL):
            raise UnknownAdapter(
                f"there is no adapter {adapter[:100]!r} here: {self._name} is a model for embeddings, which has none; "
                "model chooses a language model",
                param="adapter",
            )
        return "", None

    def leave(self, key: str) -> None:
        """Nothing was taken."""


class Embeddings:
    """All jobs of one model. `shares` are those of all work on its network."""

    def __init__(self, embedder: Embedder | None, shares: Shares, name: str, adapters: Adapters | None = None) -> None:
        """embedder: None where the model has no vectors. name: the model's, for refusals. adapters: None: no job can
        have one."""
        self._embedder = embedder
        self._name = name
        self._shares = shares
        self._adapters = adapters or NoAdapters(name)
        self._jobs: list[Embedding] = []
        self._untold: deque[Embedding] = deque()
        self._line: Line[Embedding] = Line(shares, lambda job: job.client, lambda job: job.left)
        self._busy_pace = Pace(BUSY_S, first=32, most=MOST_TOKENS)
        self._idle_pace = Pace(IDLE_S, first=256, most=MOST_TOKENS)
        self._went = False
        """The last piece was of these jobs, and not of other work."""

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def admit(self, job: Embed, emit: Emit) -> Embedding:
        """Raises UnsupportedTask, InvalidValue and UnknownAdapter."""
        if self._embedder is None:
            raise UnsupportedTask(f"the model {self._name} gives no embeddings; --embedding-model names one that does")
        width = self._embedder.network.width
        if job.dimensions is not None and job.dimensions > width:
            raise InvalidValue(
                f"dimensions must be an integer from 1 to {width}, the width of {self._name}, not {job.dimensions}",
                param="dimensions",
            )
        key, adapter = self._adapters.enter(job.adapter)
        network = self._embedder.network
        made = Embedding(job, emit, network.adapted(key) if key else network, key, adapter)
        self._jobs.append(made)
        self._untold.append(made)
        self._shares.enter(made.client)
        return made

    def cancel(self, job: Embedding) -> None:
        if job in self._jobs:
            self._part(job)

    def step(self, other: str | None, *, busy: bool) -> bool:
        """Some texts become tokens. Then a piece goes through the network, unless other work of the client `other`
        (None: there is none) goes before it: False. busy: somebody is being answered beside it."""
        self._tokenize()
        job = self._next(busy)
        if job is None or not self._goes(job, other):
            return False
        self._read(job, busy)
        return True

    def _tokenize(self) -> None:
        """Of one job after the other."""
        if not self._untold or self._embedder is None:
            return
        job = self._untold.popleft()
        try:
            done = job.tokenize(self._embedder.tokens, time.perf_counter() + TOKENIZE_S)
        except Failure as failure:
            self._fail(job, failure)
        except Exception as error:
            self._fail(job, _bug(error))
        else:
            if done:
                self._line.add(job)
            else:
                self._untold.append(job)

    def _next(self, busy: bool) -> Embedding | None:
        """Whose turn it is. One long text at a time is in the middle: its keys and values take memory."""
        if any(job.reading for job in self._jobs):
            size = self._pace(busy).piece(LIMITLESS)
            return self._line.next(lambda job: job.reading is not None or not job.begins_long(size))
        return self._line.next()

    def _goes(self, job: Embedding, other: str | None) -> bool:
        """The client that has had least goes first. Of one client, both kinds of work take turns."""
        if other is None:
            self._went = True
        elif other == job.client:
            self._went = not self._went
        else:
            self._went = self._shares.had(job.client) < self._shares.had(other)
        return self._went

    def _read(self, job: Embedding, busy: bool) -> None:
        """A piece of a job that is in line."""
        pace = self._pace(busy)
        begun = time.perf_counter()
        job.begin()
        try:
            tokens = self._piece(job, job.network, pace)
        except Failure as failure:
            self._fail(job, failure)
        except Exception as error:
            self._fail(job, _bug(error))
        else:
            pace.took(tokens, time.perf_counter() - begun)
            if not job.left and job in self._jobs:
                self._part(job)

    def _piece(self, job: Embedding, network: Network, pace: Pace) -> int:
        """The tokens that were read, those that fill texts up included."""
        begun = time.perf_counter()
        size = pace.piece(job.reading[1].left if job.reading else job.left)
        if job.reading is None and job.begins_long(size) and (reading := network.begin(job.waiting[0][1])):
            job.reading = job.waiting.popleft()[0], reading
        if job.reading is not None:
            place, reading = job.reading
            read = tokens = pace.piece(reading.left)
            vector = reading.read(read)
            found: tuple[tuple[int, ...], Floats] | None = None if vector is None else ((place,), vector[None])
            if found:
                job.reading = None
        else:
            texts = job.take(size)
            read, tokens = sum(len(ids) for _, ids in texts), len(texts) * len(texts[-1][1])
            found = tuple(place for place, _ in texts), network.together([ids for _, ids in texts])
        seconds = time.perf_counter() - begun
        self._shares.charge(job.client, seconds)
        job.took(read, seconds)
        job.answer(found)
        return tokens

    def _pace(self, busy: bool) -> Pace:
        return self._busy_pace if busy else self._idle_pace

    def _part(self, job: Embedding) -> None:
        """A job leaves, whatever it is at."""
        self._jobs.remove(job)
        if job in self._untold:
            self._untold.remove(job)
        self._line.remove(job)
        self._shares.leave(job.client)
        job.waiting.clear()
        job.reading = None
        self._adapters.leave(job.key)

    def _fail(self, job: Embedding, failure: Failure) -> None:
        if job in self._jobs:
            self._part(job)
        job.emit(failed(failure))


def _bug(error: Exception) -> InternalError:
    """What the client is told; the log has the rest. Raises the error again if nothing here can be relied on after
    it."""
    if is_shortage(error):
        raise error
    traceback.print_exc()
    return InternalError("this request met an error; the worker's log has the details")
