"""Many conversations over one model: each step decodes a token for every row, then reads a piece of one prompt.

Knows jobs, rows and turns; the wording of prompts and answers is a `Language`'s, the tensors are `batch.py`'s.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.errors import Failure, InternalError, UnsupportedSchema, WrongModelKind
from protocol.events import Loading, Ready
from protocol.jobs import Chat, Complete, CountTokens, Heard, Job
from protocol.settings import LlmSettings
from workers.backend import log_loaded, start
from workers.llm.files import Defaults
from workers.llm.history import History
from workers.llm.queue import Shares
from workers.llm.reading import Reading
from workers.llm.rendering import Counting, rendered
from workers.llm.running import Row, Running
from workers.llm.sampling import refuse, resolve
from workers.llm.spans import Wanted
from workers.loop import Emit, failed

if TYPE_CHECKING:
    from workers.llm.grammar import Asked
    from workers.llm.language import Language
    from workers.llm.prompt import Prompt
    from workers.llm.seats import Beginnings, Seats

CAPACITY = 64
"""Jobs at once. One that waits costs its prompt; one with a row costs its keys and values too."""
ROWS_MEMORY = 4
"""One part in so many of the machine's memory is for the keys and values of rows."""
COMPILE_S = 0.005
"""Seconds of a step that has nothing to do but to wait for a grammar: it may be cancelled in between."""
RENDER_S = 0.02
"""Seconds of a step in which prompts may be rendered; one always is."""
_log = logging.getLogger(__name__)


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


class LlmEngine:
    """The loop's Engine over rows of all jobs. Only the main thread calls it."""

    blocking = False

    def __init__(
        self,
        seats: Seats,
        beginnings: Beginnings,
        language: Language,
        ready: Ready,
        *,
        vocabulary: int,
        defaults: Defaults | None = None,
        max_rows: int = 16,
        memory_bytes: int = 1 << 40,
        trace: bool = False,
        guessing: bool = True,
    ) -> None:
        """vocabulary: width of the logits. max_rows: choices that decode at once. trace: every job. guessing: where it
        pays, what an answer repeats is guessed.

        memory_bytes: of rows' keys and values, beyond which further prompts wait.
        """
        self._seats = seats
        self._beginnings = beginnings
        self.language = language
        self._ready = ready
        self.vocabulary = vocabulary
        self._defaults = defaults or Defaults()
        self._max_rows = max_rows
        self._trace = trace
        self.guessing = guessing
        """What an answer repeats is guessed, where it pays."""
        self._jobs: list[Running] = []
        self._counting: list[Counting] = []
        self._shares = Shares()
        self._reading = Reading(seats, beginnings, self._shares, max_rows=max_rows, memory_bytes=memory_bytes)
        self._history = History()
        self._counts = Counts()

    @property
    def ready(self) -> Ready:
        return self._ready

    @property
    def busy(self) -> bool:
        return bool(self._jobs or self._counting)

    def admit(self, job: Job, emit: Emit) -> Running | Counting:
        """Take a job; its prompt is rendered later. Raises Failure for what no language model can do."""
        if isinstance(job, CountTokens):
            counting = Counting(job.chat, emit)
            self._counting.append(counting)
            return counting
        if not isinstance(job, Chat | Complete):
            raise WrongModelKind("this worker runs a language model and does nothing else")
        refuse(job.generation.sampling, self.vocabulary)
        running = Running(job, emit)
        self._jobs.append(running)
        self._shares.enter(running.client)
        return running

    def cancel(self, handle: Running | Counting) -> None:
        """What was computed for it stays as a beginning for others."""
        if isinstance(handle, Counting):
            self._counting = [each for each in self._counting if each is not handle]
        elif handle in self._jobs:
            self._beginnings.leave(handle.rows)
            self._part(handle)

    def answer(self, handle: Running | Counting, heard: Heard) -> None:
        """Nothing is ever asked."""

    def stats(self) -> Counts:
        self._counts.jobs = len(self._jobs)
        self._counts.rows = len(self._seats)
        self._counts.cached_bytes = self._beginnings.nbytes
        self._counts.read = self._reading.tokens
        self._counts.pieces = self._reading.pieces
        return self._counts

    def step(self) -> None:
        self._counts.steps += 1
        self._render()
        self._compile()
        self._decode()
        self._start()
        self._read()

    # The phases of a step.

    def _render(self) -> None:
        """Prompts become ids, in the order of arrival."""
        if self._counting:
            self._counting.pop(0).answer(self.language, self._history)
        begun = time.perf_counter()
        for running in [job for job in self._jobs if job.prompt is None]:
            with self._alone(running):
                self._prepare(running)
            if time.perf_counter() - begun > RENDER_S:
                return

    def _prepare(self, running: Running) -> None:
        prompt = self._take(running)
        shape = prompt.shape or running.job.generation.shape
        if shape is None:
            self._reading.add(running)
        else:
            running.asked = self.language.shape(shape)

    def _take(self, running: Running) -> Prompt:
        """Its prompt as ids."""
        begun = time.perf_counter()
        prompt, ids = rendered(running.job, self.language, self._history)
        running.take(prompt, ids, self.language.room(prompt, len(ids), running.job.generation.max_tokens))
        running.clock.template += 1e3 * (time.perf_counter() - begun)
        return prompt

    def _compile(self) -> None:
        """Prompts whose answers have a shape are read once that can be enforced, or is known not to be."""
        waiting = [job for job in self._jobs if job.asked is not None]
        if waiting and len(waiting) == len(self._jobs):
            assert waiting[0].asked is not None
            waiting[0].asked.wait(COMPILE_S)
        for running in waiting:
            assert running.asked is not None
            if running.asked.done:
                with self._alone(running):
                    self._shaped(running, running.asked)

    def _shaped(self, running: Running, asked: Asked) -> None:
        running.asked = None
        shape = asked.shape
        try:
            running.grammar = asked.grammar()
            running.kept_shape = "enforced"
        except UnsupportedSchema:
            if not shape.hint:
                raise
            running.job = self.language.hinted(running.job, shape)
            running.kept_shape = "hint"
            self._take(running)
        finally:
            asked.leave()
        self._reading.add(running)

    def _decode(self) -> None:
        """Every row goes on: by a token, by those that its shape forces, by what was guessed right."""
        rows = self._seats.rows
        if not rows:
            return
        begun = time.perf_counter()
        answers = self._seats.step({id(row): self._wanted(row) for row in rows})
        each = (time.perf_counter() - begun) / len(answers)
        kept: dict[int, int] = {}
        failed_jobs: list[tuple[Running, Exception]] = []
        for row, span, logits, tried, price in answers:
            self._shares.charge(row.running.client, each)
            try:
                kept[id(row)] = row.hear(span, logits, tried, price)
            except Exception as error:
                # Its caches are of no use, but the others' are settled with them.
                kept[id(row)] = len(span)
                failed_jobs.append((row.running, error))
        self._counts.fed += sum(kept.values())
        self._seats.settle(kept)
        for running, met in failed_jobs:
            if running in self._jobs:
                with self._alone(running):
                    raise met
        self._end([row for row, *_ in answers if row.over])

    def _wanted(self, row: Row) -> Wanted:
        guessed, hope = row.guess() if self.guessing and self._seats.guesses(row) else ([], 0.0)
        return Wanted(row.known, row.ahead, guessed, hope)

    def _start(self) -> None:
        """Choices whose prompt is read get their first token and a seat, as far as there is room."""
        for running in [job for job in self._jobs if job.logits is not None]:
            free = self._max_rows - len(self._seats)
            if free <= 0:
                return
            with self._alone(running):
                self._begin_rows(running, free)

    def _begin_rows(self, running: Running, free: int) -> None:
        assert running.logits is not None and running.layers is not None
        settled = resolve(running.job.generation.sampling, self._defaults)
        chosen, running.to_start = running.to_start[:free], running.to_start[free:]
        rows = [Row(running, choice, settled, self.language) for choice in chosen]
        for row in rows:
            row.begin(running.logits)
        layers, last = running.layers, not running.to_start
        if last:
            running.logits = running.layers = None
        going = [row for row in rows if not row.over]
        running.rows.extend(going)
        alone = last and len(going) == 1
        if going:
            self._seats.seat(going, layers, len(running.ids), shared=not alone)
        if last and not alone and not any(row.choice == 0 for row in running.rows):
            # Its first choice is over at its first token, and with it what would have been remembered.
            self._beginnings.keep(running, running.ids, layers)
        self._end([row for row in rows if row.over])

    def _read(self) -> None:
        """A piece of the prompt whose turn it is; after the last its answer begins."""
        running = self._reading.next(self._jobs)
        if running is None:
            return
        with self._alone(running):
            self._reading.read(running, self._jobs)
            if running.logits is not None:
                running.start()
        self._start()

    # How jobs end.

    def _end(self, rows: Sequence[Row]) -> None:
        """Rows that are over leave; what their conversations were is remembered; jobs without a choice left end."""
        self._beginnings.leave(rows)
        for row in rows:
            running = row.running
            if row in running.rows:
                running.rows.remove(row)
            with self._alone(running):
                self._remember(row)
                if running.over and running in self._jobs:
                    spent = running.clock.spent()
                    if self._trace or running.job.generation.trace:
                        self.language.trace(spent, len(running.ids), running.cached, row.voice)
                    self._part(running)
                    running.finish(spent)

    def _remember(self, row: Row) -> None:
        running, prompt = row.running, row.running.prompt
        if prompt is None or prompt.text is None:
            return
        before = running.ids.tolist()
        ids = [*before, *row.text_ids]
        text, told = self.language.decode(ids), None
        if not text.startswith(prompt.text):
            # Its ids came from a turn that was told in other words.
            told = prompt.text + text[len(self.language.decode(before)) :]
        self._history.remember(text, ids, told=told)
        answer = row.answer
        if answer is not None and (again := self.language.retold(running.job, prompt, answer)) is not None:
            self._history.remember(text, ids, told=again)

    def _part(self, running: Running) -> None:
        """A job leaves, whatever it is at."""
        self._jobs.remove(running)
        self._counts.forced += running.forced
        self._counts.guessed += running.guessed
        self._reading.remove(running)
        if running.asked is not None:
            running.asked.leave()
        self._shares.leave(running.client)
        self._seats.leave(running.rows)
        running.rows.clear()
        if running.layers is not None:
            self._beginnings.keep(running, running.ids[: running.done], running.layers)
            running.layers = running.logits = None

    @contextmanager
    def _alone(self, running: Running) -> Iterator[None]:
        """What goes wrong inside concerns this job and no other."""
        try:
            yield
        except Failure as failure:
            self._fail(running, failure)
        except Exception:
            traceback.print_exc()
            self._fail(running, InternalError("answering this request met an error; the worker's log has the details"))

    def _fail(self, running: Running, failure: Failure) -> None:
        if running in self._jobs:
            # Its caches may be in any state.
            running.layers = None
            self._part(running)
        running.emit(failed(failure))


def build(settings: LlmSettings, report: Callable[[Loading], None]) -> LlmEngine:
    """Load the BLAS, MLX and the model, in this order and this thread. Raises ModelNotConfigured."""
    backend = start(settings.data_dir, report)
    from workers.llm.cache import PromptCache
    from workers.llm.language import ModelLanguage
    from workers.llm.load import load
    from workers.llm.seats import Beginnings, Seats

    loaded = load(
        settings.model,
        data_dir=settings.data_dir,
        offline=settings.offline,
        report=report,
        threads=settings.threads,
    )
    log_loaded(loaded.model, backend)
    seats = Seats(loaded.network, loaded.head)
    return LlmEngine(
        seats,
        Beginnings(PromptCache(settings.cache_bytes), seats),
        ModelLanguage(
            loaded.tokenizer, loaded.model.context_window, vocabulary=loaded.vocabulary, trace_text=settings.trace_text
        ),
        Ready(capacity=CAPACITY, backend=backend, model=loaded.model),
        vocabulary=loaded.vocabulary,
        defaults=loaded.defaults,
        max_rows=settings.max_rows,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // ROWS_MEMORY,
        trace=settings.trace,
    )
