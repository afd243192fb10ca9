"""What the engine holds of a job: its prompt, how far it is read, its rows and what was said. Runs no model."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from protocol.events import ChoiceEnded, Delta, Generated, Kept, Progress, Spent, Started
from protocol.jobs import Chat, ChatMessage, Complete
from protocol.resume import Begun
from protocol.tools import CallPart
from workers.llm.guess import Guesser
from workers.llm.guide import Guide
from workers.llm.repeat import Repeat
from workers.llm.sampling import Allowed, Floats, Resolved, Sampler, logprobs
from workers.loop import Emit

if TYPE_CHECKING:
    from workers.llm.cache import Ids, Layers
    from workers.llm.grammar import Asked, Grammar
    from workers.llm.language import Language
    from workers.llm.prompt import Prompt
    from workers.llm.rendering import Rendering
    from workers.llm.text import Piece, Voice


@dataclass
class Counts:
    """For `stats` and the tests: what is held now, and what was done since the start."""

    jobs: int = 0
    rows: int = 0
    cached_bytes: int = 0
    steps: int = 0
    pieces: int = 0
    """Of prompts."""
    read: int = 0
    """Tokens of prompts that went through the network."""
    fed: int = 0
    """Tokens of answers that did."""
    forced: int = 0
    """Tokens of answers that their shapes left no choice about; this and the next of jobs that are over."""
    guessed: int = 0
    """Tokens of answers that were guessed right."""


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

    def __init__(self, job: Chat | Complete, emit: Emit, key: str = "", adapter: str | None = None) -> None:
        """key: of the adapter that the job runs with, for whatever is computed of it. adapter: its id; None: none."""
        self.job = job
        self.emit = emit
        self.key = key
        self._adapter = adapter
        self.clock = Clock()
        self.seed = job.generation.sampling.seed
        if self.seed is None:
            self.seed = secrets.randbits(63)
        self.rendering: Rendering | None = None
        """The prompt, while it is rendered."""
        self.prompt: Prompt | None = None
        self.ids: Ids = np.zeros(0, np.int32)
        self.room = 0
        """Tokens that one choice may have."""
        self.asked: Asked | None = None
        """The shape of the answer, while it is compiled."""
        self.grammar: Grammar | None = None
        self.kept_shape: Literal["enforced", "hint"] | None = None
        """What became of the shape that was asked for; None: none was."""
        self.forced = self.guessed = 0
        """Tokens of all choices that were never sampled; that were guessed right."""
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

    @property
    def told_cached(self) -> int:
        """As the client was told: by the process that read its prompt first."""
        resume = self.job.generation.resume
        return self.cached if resume is None else resume.cached_tokens

    def start(self) -> None:
        assert self.prompt is not None
        canonical = self.prompt.text is None or np.array_equal(self.ids, self.prompt.ids)
        prompt = () if canonical else tuple(self.ids.tolist())
        self.emit(Started(len(self.ids), self.told_cached, prompt))
        if self.prompt.echo:
            for choice in self.to_start:
                self.emit(Delta(choice=choice, text=self.prompt.echo))

    def count(self, ended: ChoiceEnded) -> None:
        self._ended += 1
        self._tokens += ended.tokens
        self.emit(ended)

    def finish(self, spent: Spent, kept: Kept) -> None:
        self.emit(
            Generated(
                prompt_tokens=len(self.ids),
                cached_tokens=self.told_cached,
                completion_tokens=self._tokens,
                spent=spent,
                grammar=self.kept_shape,
                forced_tokens=self.forced,
                guessed_tokens=self.guessed,
                adapter=self._adapter,
                kept=kept,
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
        """Generated so far, an end of text included."""
        self.fed = 0
        """So many of `ids` are in the row's caches."""
        self._told = 0
        """So many of `ids` went out with a Delta."""
        self.ahead: deque[int] = deque()
        """Tokens that the shape forces, to be said as soon as their log-probabilities are known."""
        self.over = False
        begun = generation.resume.choices[choice] if generation.resume is not None else Begun()
        self._repeat = Repeat(begun, generation, running.prompt, language)
        self.voice: Voice = language.voice(generation, running.prompt, begun.calls)
        self._calling = running.prompt.calling is not None
        self._text = ""
        """What was said, where calls may be made."""
        self._calls: list[CallPart] = []
        self._ends = language.ends
        self._likeliest = generation.logprobs
        self._guide = None if running.grammar is None else Guide(running.grammar)
        self._guesser = Guesser(running.ids)
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
    def answer(self) -> ChatMessage | None:
        """What was said and called, as it comes back; None where nothing was called, or where there was reasoning,
        which may come back or not."""
        if not self.voice.called or self.voice.reasoning_tokens:
            return None
        calls: list[dict[str, Any]] = []
        for part in self._calls:
            if part.id is not None:
                function = {"name": part.name, "arguments": part.arguments}
                calls.append({"id": part.id, "type": "function", "function": function})
            else:
                calls[-1]["function"]["arguments"] += part.arguments
        return ChatMessage(role="assistant", content=self._text, tool_calls=tuple(calls))

    @property
    def text_ids(self) -> list[int]:
        """What was generated, without an end of text."""
        return self.ids[:-1] if self.ids and self.ids[-1] in self._ends else self.ids

    @property
    def known(self) -> list[int]:
        """What was said and is not in the caches yet."""
        return self.ids[self.fed :]

    @property
    def certain(self) -> Sequence[int]:
        """Tokens that come next, whatever the logits."""
        return max(self.ahead, self._repeat.ids, key=len)

    def guess(self) -> tuple[list[int], float]:
        """What may be said next, and the probability of each token of it."""
        room = self.running.room - len(self.ids) - len(self.ahead) - 1
        if self.certain or room <= 0:
            return [], 0.0
        tokens = self._guesser.guess()[:room]
        if tokens and self._guided:
            assert self._guide is not None
            tokens = tokens[: self._guide.fits(tokens)]
        return tokens, self._guesser.hope

    def begin(self, logits: Floats) -> None:
        """Say what follows on the prompt, after which `logits` (vocabulary,) stand. Raises Failure."""
        self.running.clock.first_token()
        forced = self._force()
        while self._repeat.blind and not self.over:
            self._advance(None)
        if not (forced or self.ids):
            self._advance(logits)

    def hear(self, span: Sequence[int], logits: Floats, tried: int, price: float) -> int:
        """Say what follows from a step that fed `span`: what was known, then what is certain, then `tried` guesses.

        logits: (positions, vocabulary), after the last tokens of the span. price: of the guesses. Returns how many
        tokens of the span are part of the answer. Raises Failure.
        """
        at = len(span) - len(logits)
        if not len(logits):
            self.fed += len(span)
            return len(span)
        first = at
        while True:
            self._advance(logits[at - first])
            while at + 1 < len(span) and self.ids[self.fed + at + 1 : self.fed + at + 2] == [span[at + 1]]:
                at += 1
            if self.over or self.fed + at + 1 != len(self.ids):
                break
        right = max(at + 1 - (len(span) - tried), 0)
        self._guesser.took(tried, right, price)
        self.running.guessed += right
        self.fed += at + 1
        return at + 1

    def _advance(self, logits: Floats | None) -> None:
        """Say the token that follows from `logits` (vocabulary,), and what the shape forces after it. None: it was said
        before, and all about it is told."""
        if self.ahead:
            token = self.ahead.popleft()
            self._sampler.take(token)
            self.running.forced += 1
        elif self._repeat.ids:
            token = self._repeat.ids[0]
            self._sampler.take(token)
        else:
            assert logits is not None
            token = self._choose(logits)
            self._guesser.chose(token)
        self._utter(token, logits)
        self._force()

    @property
    def _guided(self) -> bool:
        """The next token is the shape's affair: reasoning is not."""
        return self._guide is not None and not self.voice.reasoning

    def _choose(self, logits: Floats) -> int:
        """The next token. A greedy row asks about the likeliest first: a mask of all tokens takes a hundred times as
        long, and most tokens need none."""
        best = self._sampler.certain(logits) if self._guided and self.voice.opening is None else None
        if best is not None and best not in self._ends and self._guide is not None and self._guide.may(best):
            self._sampler.take(best)
            return best
        return self._sampler.choose(logits, self._allowed())

    def _allowed(self) -> Allowed | None:
        if not self._guided:
            return None
        assert self._guide is not None
        allowed = self._guide.allowed()
        opening = self.voice.opening
        if allowed is not None and opening is not None:
            allowed[opening] = True
        return allowed

    def _force(self) -> bool:
        """Say what the shape leaves no choice about; True if there was something to say."""
        if not self._guided or self.over or self.ahead or self.voice.opening is not None:
            return False
        assert self._guide is not None
        forced = self._guide.forced()
        if self._likeliest is not None:
            self.ahead.extend(forced)
            return False
        for token in forced:
            if self.over:
                break
            self._sampler.take(token)
            self.running.forced += 1
            self._utter(token, None)
        return bool(forced)

    def _utter(self, token: int, logits: Floats | None) -> None:
        """A token becomes part of the answer. logits: those that it follows from, for its log-probability."""
        self.ids.append(token)
        self._repeat.said()
        self._guesser.said((token,))
        if token in self._ends:
            self._say(self.voice.end())
            self._end("stop")
            return
        guided = self._guided
        if self._likeliest is None or logits is None:
            self._say(self.voice.feed(token))
        else:
            self._say(self.voice.feed(token, *logprobs(logits, token, self._likeliest)))
        if guided and self._guided:
            assert self._guide is not None
            self._guide.take(token)
        if self._guide is not None and self._guide.over:
            self._say(self.voice.end())
            self._end("stop")
        elif self.voice.stopped is None and len(self.ids) >= self.running.room:
            # What was held back may turn out to be a stop string only now.
            self._say(self.voice.end(cut=True))
            self._end("length" if self.voice.stopped is None else "stop")
        elif self.voice.stopped is not None or self.voice.enough:
            self._end("stop")

    def _say(self, piece: Piece) -> None:
        if piece:
            self._text += piece.text if self._calling else ""
            self._calls += piece.calls
            self.running.emit(Delta(self.choice, piece.text, piece.reasoning, piece.said, piece.calls, self._new_ids()))

    def _new_ids(self) -> tuple[int, ...]:
        ids = tuple(self.ids[self._told :])
        self._told = len(self.ids)
        return ids

    def _end(self, reason: Literal["stop", "length"]) -> None:
        self.over = True
        self.running.count(
            ChoiceEnded(
                choice=self.choice,
                reason="tool_calls" if reason == "stop" and self.voice.called else reason,
                tokens=len(self.ids),
                reasoning_tokens=self.voice.reasoning_tokens,
                stop=self.voice.stopped,
                ids=self._new_ids(),
            )
        )
