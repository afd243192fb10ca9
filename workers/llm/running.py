"""What the engine holds of a job: its prompt, how far it is read, its rows and what was said. Runs no model."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from protocol.events import ChoiceEnded, Delta, Generated, Progress, Spent, Started
from protocol.jobs import Chat, Complete
from workers.llm.sampling import Floats, Resolved, Sampler, logprobs
from workers.loop import Emit

if TYPE_CHECKING:
    from workers.llm.cache import Ids, Layers
    from workers.llm.language import Language
    from workers.llm.prompt import Prompt
    from workers.llm.text import Piece, Voice

BASE = ""
"""The prompt cache's key of the model without an adapter."""


class Clock:
    """Milliseconds of a job's phases."""

    def __init__(self) -> None:
        self.arrived = time.perf_counter()
        self.template = 0.0
        self.cache = 0.0
        self.prefill = 0.0
        self._begun: float | None = None
        self._first: float | None = None

    def begin(self) -> None:
        """The first piece of the prompt is about to be read."""
        self._begun = self._begun or time.perf_counter()

    def first_token(self) -> None:
        self._first = self._first or time.perf_counter()

    def spent(self) -> Spent:
        now = time.perf_counter()
        begun, first = self._begun or now, self._first or now
        return Spent(
            queue=1e3 * (begun - self.arrived) - self.template,
            template=self.template,
            cache=self.cache,
            prefill=self.prefill,
            first_token=1e3 * (first - self.arrived),
            decode=1e3 * (now - first),
        )


class Running:
    """An admitted job."""

    def __init__(self, job: Chat | Complete, emit: Emit) -> None:
        self.job = job
        self.emit = emit
        self.key = BASE
        self.clock = Clock()
        self.seed = job.generation.sampling.seed
        if self.seed is None:
            self.seed = secrets.randbits(63)
        self.prompt: Prompt | None = None
        self.ids: Ids = np.zeros(0, np.int32)
        self.room = 0
        """Tokens that one choice may have."""
        self.pin = job.generation.pin
        self.layers: Layers | None = None
        """Caches of the first `done` tokens of the prompt; None before they are made and when a row has taken them."""
        self.done = 0
        self.cached = 0
        """Tokens of the prompt that came from elsewhere."""
        self.logits: Floats | None = None
        """After the prompt, once it is read, until every choice has its first token."""
        self.to_start: list[int] = list(range(job.generation.n))
        self.rows: list[Row] = []
        self._tokens = 0
        self._ended = 0

    @property
    def client(self) -> str:
        return self.job.generation.client

    @property
    def left(self) -> int:
        """Tokens of the prompt that are not read yet."""
        return len(self.ids) - self.done

    @property
    def over(self) -> bool:
        return self._ended == self.job.generation.n

    def take(self, prompt: Prompt, ids: Sequence[int], room: int) -> None:
        self.prompt = prompt
        self.ids = np.array(ids, np.int32)
        self.room = room

    def progress(self) -> None:
        self.emit(Progress(done=self.done, total=len(self.ids)))

    def start(self) -> None:
        self.emit(Started(prompt_tokens=len(self.ids), cached_tokens=self.cached))
        if self.prompt is not None and self.prompt.echo:
            for choice in self.to_start:
                self.emit(Delta(choice=choice, text=self.prompt.echo))

    def count(self, ended: ChoiceEnded) -> None:
        self._ended += 1
        self._tokens += ended.tokens
        self.emit(ended)

    def finish(self, spent: Spent) -> None:
        self.emit(
            Generated(
                prompt_tokens=len(self.ids),
                cached_tokens=self.cached,
                completion_tokens=self._tokens,
                spent=spent,
            )
        )


class Row:
    """One choice that is being written."""

    def __init__(self, running: Running, choice: int, settled: Resolved, language: Language) -> None:
        generation = running.job.generation
        assert running.prompt is not None and running.seed is not None
        self.running = running
        self.choice = choice
        self.ids: list[int] = []
        """Generated so far, an end of text included. All but the last are in the row's caches."""
        self.over = False
        self.voice: Voice = language.voice(generation, running.prompt)
        self._ends = language.ends
        self._likeliest = generation.logprobs
        context = generation.sampling.repetition_context_size
        self._sampler = Sampler(
            generation.sampling,
            settled,
            seed=running.seed,
            choice=choice,
            prompt=running.ids[-context:].tolist(),
            ends=language.ends,
        )

    @property
    def text_ids(self) -> list[int]:
        """What was generated, without an end of text."""
        return self.ids[:-1] if self.ids and self.ids[-1] in self._ends else self.ids

    def advance(self, logits: Floats) -> None:
        """Say the token that follows from `logits` (vocabulary,). Raises Failure."""
        token = self._sampler.choose(logits)
        self.ids.append(token)
        self.running.clock.first_token()
        if token in self._ends:
            self._say(self.voice.end())
            self._end("stop")
            return
        if self._likeliest is None:
            self._say(self.voice.feed(token))
        else:
            self._say(self.voice.feed(token, *logprobs(logits, token, self._likeliest)))
        if self.voice.stopped is None and len(self.ids) >= self.running.room:
            # What was held back may turn out to be a stop string only now.
            self._say(self.voice.end(cut=True))
            self._end("length" if self.voice.stopped is None else "stop")
        elif self.voice.stopped is not None or self.voice.enough:
            self._end("stop")

    def _say(self, piece: Piece) -> None:
        if piece:
            self.running.emit(Delta(self.choice, piece.text, piece.reasoning, piece.said, piece.calls))

    def _end(self, reason: Literal["stop", "length"]) -> None:
        self.over = True
        self.running.count(
            ChoiceEnded(
                choice=self.choice,
                reason="tool_calls" if reason == "stop" and self.voice.called else reason,
                tokens=len(self.ids),
                reasoning_tokens=self.voice.reasoning_tokens,
                stop=self.voice.stopped,
            )
        )
