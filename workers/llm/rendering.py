"""A job's prompt as the ids that it is read by, and the job that asks for no more than their number. Runs no model.

A long prompt is rendered in a thread of its own: a megabyte takes a tokenizer most of a second, in which rows decode.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from protocol.errors import Failure, InternalError
from protocol.events import Counted
from protocol.jobs import Chat, Complete
from workers.loop import Emit, failed, is_shortage

if TYPE_CHECKING:
    from workers.llm.history import History
    from workers.llm.language import Language
    from workers.llm.prompt import Prompt

LONG_BYTES = 64 << 10
"""Of a job, as the pipe has it: less is rendered in about 30 ms at most."""


@dataclass(frozen=True)
class Rendered:
    prompt: Prompt
    ids: Sequence[int]
    """Those of an earlier conversation that the prompt goes on from, with the same adapter; what another process read;
    else its own."""
    seconds: float
    """That it took."""


class Rendering:
    """A prompt that is rendered, or will be when it is asked for."""

    def __init__(self, make: Callable[[], Rendered], threads: ThreadPoolExecutor | None) -> None:
        """threads: None: in the caller's own."""
        self._make = make
        self._future: Future[Rendered] | None = None if threads is None else threads.submit(make)

    @property
    def done(self) -> bool:
        return self._future is None or self._future.done()

    def wait(self, seconds: float) -> None:
        """Until it is done, or that long."""
        if self._future is not None:
            wait_for([self._future], seconds)

    def result(self) -> Rendered:
        """When it is done. Raises Failure."""
        return self._make() if self._future is None else self._future.result(0)

    def leave(self) -> None:
        """Nobody waits any more; what is not begun is not begun."""
        if self._future is not None:
            self._future.cancel()


class Renderer:
    """All prompts of one model. Only one thread calls it."""

    def __init__(self, language: Language, history: History, *, long_bytes: int = LONG_BYTES) -> None:
        self._language = language
        self._history = history
        self._long_bytes = long_bytes
        self._threads = ThreadPoolExecutor(1, "prompts")

    def begin(self, job: Chat | Complete, key: str = "") -> Rendering:
        """At once. key: the adapter."""
        long = len(msgspec.msgpack.encode(job)) > self._long_bytes
        return Rendering(lambda: self._render(job, key), self._threads if long else None)

    def _render(self, job: Chat | Complete, key: str) -> Rendered:
        begun = time.perf_counter()
        prompt = self._language.render(job)
        ids: Sequence[int] = prompt.ids
        if job.generation.resume is not None:
            ids = job.generation.resume.prompt or prompt.ids
        elif prompt.text is not None and not prompt.literal:
            encode, decode = self._language.encode, self._language.decode
            ids = self._history.ids_of(prompt.text, prompt.ids, encode, decode, key=key)
        return Rendered(prompt, ids, time.perf_counter() - begun)


@dataclass(frozen=True, eq=False)
class Counting:
    """An admitted job that is over once its prompt is rendered."""

    rendering: Rendering
    emit: Emit

    def answer(self) -> None:
        """Say how many tokens it has, or why it has none, when it is rendered."""
        try:
            ids = self.rendering.result().ids
        except Failure as failure:
            self.emit(failed(failure))
        except Exception as error:
            if is_shortage(error):
                raise
            traceback.print_exc()
            self.emit(failed(InternalError("counting met an error; the worker's log has the details")))
        else:
            self.emit(Counted(len(ids)))
