"""The media engine: decodes a bit of each admitted file in every step, so that none waits for another to end.

Knows jobs, cancellation and this process's limits; knows no codec.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import av.logging

from protocol.errors import Failure, InternalError
from protocol.events import Backend, Failed, Loading, Ready
from protocol.jobs import Decode, Job
from protocol.settings import MediaSettings
from workers.loop import Emit
from workers.media.decode import Steps, decode_steps

CAPACITY = 2
"""Files at once: a short one need not wait for a long one, and the memory limit is shared by no more."""


def build(settings: MediaSettings, report: Callable[[Loading], None]) -> MediaEngine:
    """The engine for a process of its own, whose limits are set here, once. There is nothing to load or report."""
    av.logging.set_level(None)  # a damaged file would fill the log, and callbacks into Python from codecs can hang
    limit_memory(settings.memory_bytes)
    return MediaEngine(settings)


def limit_memory(extra_bytes: int) -> None:
    """Let this process's address space grow by `extra_bytes` and no further; nothing on systems but Linux.

    Imports and codecs' libraries take far more address space than memory, so the limit counts from what is there
    after them. An allocation beyond it fails, and the file that asked for it is refused.
    """
    if sys.platform != "linux":
        return
    import resource

    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


@dataclass(frozen=True, eq=False)
class Task:
    """One file under way."""

    steps: Steps
    emit: Emit


class MediaEngine:
    """Engine of `Decode` jobs. Without state but the files under way: a restart loses nothing else."""

    blocking = False

    def __init__(self, settings: MediaSettings) -> None:
        self._settings = settings
        self._tasks: list[Task] = []

    @property
    def ready(self) -> Ready:
        return Ready(capacity=CAPACITY, backend=Backend(name="none"))

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def admit(self, job: Job, emit: Emit) -> Task:
        """Raises InternalError for a job that is no Decode."""
        if not isinstance(job, Decode):
            raise InternalError("a media worker only decodes files")
        task = Task(decode_steps(job.source, job.target, self._settings), emit)
        self._tasks.append(task)
        return task

    def cancel(self, handle: Task) -> None:
        """Forget the file and remove what was written of it."""
        if handle in self._tasks:
            self._tasks.remove(handle)
            handle.steps.close()

    def step(self) -> None:
        for task in tuple(self._tasks):
            self._advance(task)

    def _advance(self, task: Task) -> None:
        try:
            task.emit(next(task.steps))
        except StopIteration as end:
            self._tasks.remove(task)
            task.emit(end.value)
        except Failure as failure:
            self._tasks.remove(task)
            if isinstance(failure, InternalError):
                logging.getLogger(__name__).error("decoding failed", exc_info=failure)
            task.emit(Failed(failure.kind, failure.message, failure.param, failure.retry))
