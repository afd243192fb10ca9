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
from typing import TYPE_CHECKING

from protocol.errors import Failure, InternalError, UnsupportedSchema, WrongModelKind
from protocol.events import Loading, Ready
from protocol.jobs import Chat, Complete, CountTokens, Embed, Heard, Job, ListAdapters, MountAdapter, UnmountAdapter
from protocol.lines import naming
from protocol.settings import LlmSettings
from workers.backend import log_loaded, start
from workers.llm.embeddings import Embeddings
from workers.llm.files import Defaults
from workers.llm.history import History
from workers.llm.queue import Shares
from workers.llm.reading import Reading
from workers.llm.rendering import Counting, Renderer
from workers.llm.running import Counts, Row, Running
from workers.llm.sampling import refuse, resolve
from workers.llm.spans import Wanted
from workers.llm.texts import Embedder, Embedding
from workers.loop import Emit, failed, is_shortage

if TYPE_CHECKING:
    from workers.llm.adapters.mounts import Mounts
    from workers.llm.grammar import Asked
    from workers.llm.language import Language
    from workers.llm.seats import Beginnings, Seats

CAPACITY = 64
"""Jobs at once. One that waits costs its prompt; one with a row costs its keys and values too."""
ROWS_MEMORY = 4
"""One part in so many of the machine's memory is for the keys and values of rows."""
WAIT_S = 0.005
"""Seconds of a step that has nothing to do but to wait for a prompt or a grammar: it may be cancelled in between."""
RENDER_S = 0.02
"""Seconds of a step in which prompts may be rendered; one always is."""
Handle = Running | Counting | Embedding
_log = logging.getLogger(__name__)


class LlmEngine:
    """The loop's Engine over rows of all jobs. Only the main thread calls it."""

    blocking = False

    def __init__(
        self,
        seats: Seats,
        beginnings: Beginnings,
        language: Language,
        mounts: Mounts,
        ready: Ready,
        *,
        vocabulary: int,
        defaults: Defaults | None = None,
        max_rows: int = 16,
        memory_bytes: int = 1 << 40,
        trace: bool = False,
        guessing: bool = True,
        embedder: Embedder | None = None,
    ) -> None:
        """vocabulary: width of the logits. max_rows: choices that decode at once. trace: every job. guessing: where it
        pays, what an answer repeats is guessed.

        memory_bytes: of rows' keys and values, beyond which further prompts wait. embedder: None: no vectors.
        """
        self._seats = seats
        self._beginnings = beginnings
        self.language = language
        self._mounts = mounts
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
        self._embeddings = Embeddings(embedder, self._shares, ready.model.id if ready.model else "", mounts)
        self._history = History()
        self._renderer = Renderer(language, self._history)
        self._counts = Counts()

    @property
    def ready(self) -> Ready:
        return self._ready

    @property
    def busy(self) -> bool:
        return bool(self._jobs or self._counting or self._embeddings.busy)

    def admit(self, job: Job, emit: Emit) -> Handle | None:
        """Take a job; its prompt is rendered later. None: it is done. Raises Failure for what no language model can
        do."""
        if isinstance(job, MountAdapter | UnmountAdapter | ListAdapters):
            emit(self._mounts.do(job))
            return None
        if isinstance(job, CountTokens):
            # Its length is that of any other; an adapter that is not there is refused all the same.
            self._mounts.leave(self._mounts.enter(job.chat.generation.adapter)[0])
            counting = Counting(self._renderer.begin(job.chat), emit)
            self._counting.append(counting)
            return counting
        if isinstance(job, Embed):
            return self._embeddings.admit(job, emit)
        if not isinstance(job, Chat | Complete):
            raise WrongModelKind("this worker runs a language model and does nothing else")
        refuse(job.generation.sampling, self.vocabulary)
        running = Running(job, emit, *self._mounts.enter(job.generation.adapter))
        self._jobs.append(running)
        self._shares.enter(running.client)
        return running

    def cancel(self, handle: Handle | None) -> None:
        """What was computed for it stays as a beginning for others."""
        if isinstance(handle, Counting):
            handle.rendering.leave()
            self._counting = [each for each in self._counting if each is not handle]
        elif isinstance(handle, Embedding):
            self._embeddings.cancel(handle)
        elif handle in self._jobs:
            self._beginnings.leave(handle.rows)
            self._part(handle)

    def answer(self, handle: Handle | None, heard: Heard) -> None:
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
        self._wait()
        self._decode()
        self._start()
        self._read()

    # The phases of a step.

    def _render(self) -> None:
        """Prompts become ids: short ones in the order of arrival, long ones meanwhile elsewhere."""
        counted = next((each for each in self._counting if each.rendering.done), None)
        if counted is not None:
            self._counting.remove(counted)
            counted.answer()
        begun = time.perf_counter()
        for running in [job for job in self._jobs if job.prompt is None]:
            if running.rendering is None:
                running.rendering = self._renderer.begin(running.job, running.key)
            if running.rendering.done:
                with self._alone(running):
                    self._prepare(running)
            if time.perf_counter() - begun > RENDER_S:
                return

    def _prepare(self, running: Running) -> None:
        """Its prompt is rendered."""
        assert running.rendering is not None
        made, running.rendering = running.rendering.result(), None
        prompt = made.prompt
        running.take(prompt, made.ids, self.language.room(prompt, len(made.ids), running.job.generation.max_tokens))
        running.clock.template += 1e3 * made.seconds
        shape = None if running.kept_shape == "hint" else prompt.shape or running.job.generation.shape
        if shape is None:
            self._reading.add(running)
        else:
            running.asked = self.language.shape(shape)

    def _compile(self) -> None:
        """Prompts whose answers have a shape are read once that can be enforced, or is known not to be."""
        for running in [job for job in self._jobs if job.asked is not None]:
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
            # Another prompt, that is rendered in its turn.
            running.job = self.language.hinted(running.job, shape)
            running.kept_shape, running.prompt = "hint", None
            return
        finally:
            asked.leave()
        self._reading.add(running)

    def _wait(self) -> None:
        """While all there is to do is done elsewhere."""
        waiting = [job.asked or job.rendering for job in self._jobs] + [each.rendering for each in self._counting]
        first = next(iter(waiting), None)
        if first is not None and all(each is not None and not each.done for each in waiting):
            first.wait(WAIT_S)

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
        return Wanted(row.known, row.certain, guessed, hope)

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
        """A piece of the prompt whose turn it is, after the last of which its answer begins; or of texts to embed."""
        running = self._reading.next(self._jobs)
        if self._embeddings.step(running.client if running else None, busy=len(self._seats) > 0) or running is None:
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
                        with naming(running.job.request):
                            self.language.trace(spent, len(running.ids), running.cached, row.voice)
                    self._part(running)
                    running.finish(spent, self._beginnings.kept)

    def _remember(self, row: Row) -> None:
        running, prompt = row.running, row.running.prompt
        if prompt is None or prompt.text is None or prompt.literal:
            return
        before = running.ids.tolist()
        ids = [*before, *row.text_ids]
        text, told = self.language.decode(ids), None
        if not text.startswith(prompt.text):
            # Its ids came from a turn that was told in other words.
            told = prompt.text + text[len(self.language.decode(before)) :]
        self._history.remember(text, ids, told=told, key=running.key)
        answer = row.answer
        if answer is not None and (again := self.language.retold(running.job, prompt, answer)) is not None:
            self._history.remember(text, ids, told=again, key=running.key)

    def _part(self, running: Running) -> None:
        """A job leaves, whatever it is at."""
        self._jobs.remove(running)
        self._counts.forced += running.forced
        self._counts.guessed += running.guessed
        self._reading.remove(running)
        if running.asked is not None:
            running.asked.leave()
        if running.rendering is not None:
            running.rendering.leave()
        self._shares.leave(running.client)
        self._seats.leave(running.rows)
        running.rows.clear()
        if running.layers is not None:
            self._beginnings.keep(running, running.ids[: running.done], running.layers)
            running.layers = running.logits = None
        self._mounts.leave(running.key)

    @contextmanager
    def _alone(self, running: Running) -> Iterator[None]:
        """What goes wrong inside concerns this job and no other."""
        try:
            yield
        except Failure as failure:
            self._fail(running, failure)
        except Exception as error:
            if is_shortage(error):
                raise
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
    backend = start(settings.data_dir, report, few=True)
    from workers.llm.adapters.mounts import mounted
    from workers.llm.cache import PromptCache
    from workers.llm.language import ModelLanguage
    from workers.llm.load import load
    from workers.llm.seats import Beginnings, Seats
    from workers.llm.vectors import served

    loaded = load(
        settings.model,
        data_dir=settings.data_dir,
        offline=settings.offline,
        report=report,
        threads=settings.threads,
    )
    log_loaded(loaded.model, backend)
    cache = PromptCache(settings.cache_bytes)
    mounts = mounted(loaded.network, settings, gone=cache.forget)
    seats = Seats(loaded.network, loaded.head, serving=mounts.serving)
    return LlmEngine(
        seats,
        Beginnings(cache, seats),
        ModelLanguage(
            loaded.tokenizer, loaded.model.context_window, vocabulary=loaded.vocabulary, trace_text=settings.trace_text
        ),
        mounts,
        Ready(capacity=CAPACITY, backend=backend, model=loaded.model),
        vocabulary=loaded.vocabulary,
        defaults=loaded.defaults,
        max_rows=settings.max_rows,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // ROWS_MEMORY,
        trace=settings.trace,
        embedder=served(loaded.embedder, mounts.serving),
    )
