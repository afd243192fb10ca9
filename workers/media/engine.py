"""The media engine: a bit of each admitted job in every step, so that none waits for another to end.

Knows jobs, cancellation and this process's limits; knows neither codecs nor speech.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import av.logging

from protocol.errors import Failure, InternalError
from protocol.events import Backend, Decoded, Followed, Loading, Progress, Ready, Speech
from protocol.jobs import Decode, DetectSpeech, Follow, Heard, Job
from protocol.settings import MediaSettings
from workers.loop import Emit, failed
from workers.media.decode import decode_steps
from workers.media.live import Kept, follow_steps
from workers.media.speech import Silero, detect_steps

Steps = Generator[Progress, None, Decoded | Speech | Followed]


def build(settings: MediaSettings, report: Callable[[Loading], None]) -> MediaEngine:
    """The engine for a process of its own, whose limits are set here, once. There is nothing to report."""
    av.logging.set_level(None)  # a damaged file would fill the log, and callbacks into Python from codecs can hang
    silero = Silero()
    limit_memory(settings.memory_bytes)
    return MediaEngine(settings, silero)


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
    """One job under way."""

    steps: Steps
    emit: Emit


class MediaEngine:
    """Engine of `Decode`, `DetectSpeech` and `Follow`. Its only state: jobs under way, and what saves `Follow` time."""

    blocking = False

    def __init__(self, settings: MediaSettings, silero: Silero) -> None:
        self._settings = settings
        self._silero = silero
        self._kept = Kept()
        self._tasks: list[Task] = []

    @property
    def ready(self) -> Ready:
        return Ready(capacity=self._settings.capacity, backend=Backend(name="none"))

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def admit(self, job: Job, emit: Emit) -> Task:
        """Raises InternalError for a job that belongs elsewhere."""
        match job:
            case Decode():
                task = Task(decode_steps(job.source, job.target, self._settings), emit)
            case DetectSpeech():
                task = Task(detect_steps(job, self._silero), emit)
            case Follow():
                steps = follow_steps(job, self._silero, self._kept, self._settings.max_decode_seconds)
                task = Task(steps, emit)
            case _:
                raise InternalError("a media worker only decodes files and finds speech in them")
        self._tasks.append(task)
        return task

    def cancel(self, handle: Task) -> None:
        """Forget the job and remove what was written for it."""
        if handle in self._tasks:
            self._tasks.remove(handle)
            handle.steps.close()

    def answer(self, handle: Task, heard: Heard) -> None:
        """Nothing: these jobs never doubt."""

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
                logging.getLogger(__name__).error("a job failed", exc_info=failure)
            task.emit(failed(failure))
