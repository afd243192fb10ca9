"""The loop every worker process runs over its engine. Knows frames and queues; knows no model.

Two threads: a reader that turns frames into an Inbox, and the main thread, which alone touches the engine.

    an end of stream            the process ends at once, also within a step
    a garbled frame             the process ends with status 1
    Failure out of admit        that job is refused
    any other error in admit    logged; that job fails with internal_error, the others go on
    any error in step, cancel,
    answer; no memory           the engine's state is unknown: the process ends, and its jobs are somebody else's
    Heard                       goes to the job that asked; for one that is unknown or over, nowhere
    steps without an answer     now and then a Progress for job 0 says that the process is alive
    Cancel                      answered by Failed(request_cancelled); for a job inside a blocking step the process
                                ends with wire.CANCELLED_EXIT instead
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, BinaryIO, Generic, NoReturn, Protocol, TypeVar

from protocol.errors import Failure, InternalError, RequestCancelled
from protocol.events import TERMINAL, Event, Failed, FromWorker, Loading, Progress, Ready
from protocol.jobs import Cancel, Heard, Job, ToWorker
from protocol.lines import REQUESTS
from protocol.settings import Settings
from protocol.wire import CANCELLED_EXIT, Codec, FrameError
from workers.heap import give_back
from workers.outbox import Outbox

Emit = Callable[[Event], None]
"""Answers one job; the loop knows which. After a terminal event further calls are dropped. Main thread only."""

Send = Callable[[tuple[int, FromWorker]], None]
Report = Callable[[Loading], None]
"""Says what loading is at. Any thread may call it."""

_log = logging.getLogger(__name__)

LIFE_S = 5.0
"""Seconds without an answer after which a step is followed by a sign of life: a window may take hundreds of steps."""

REST_S = 30.0
"""Seconds without a job after which freed memory goes back to the system. The next job pays for it with page faults,
some 40 ms of an utterance; those of one dictation come sooner."""

H = TypeVar("H")
"""Whatever the engine calls a job that it has admitted."""


class Engine(Protocol[H]):
    """What a model or codec looks like to the loop. Only the main thread calls it."""

    blocking: bool
    """One `step` may run a whole job. Cancelling that job then ends the process (wire.CANCELLED_EXIT)."""

    @property
    def ready(self) -> Ready:
        """What the service is told when loading is over."""

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""

    def admit(self, job: Job, emit: Emit) -> H:
        """Take a job. Raises Failure to refuse it."""

    def cancel(self, handle: H) -> None:
        """Forget a job. Idempotent; after its end too."""

    def answer(self, handle: H, heard: Heard) -> None:
        """Answer the oldest Doubt of a job that has not ended. An engine that never doubts has nothing to do."""

    def step(self) -> None:
        """Do a little work for the admitted jobs and emit what came of it.

        Raises nothing that concerns one job alone: that is emitted as Failed.
        """


Build = Callable[[Settings, Report], Engine[Any]]


class Inbox:
    """Frames on their way from the reader thread to the main thread.

    Its lock also settles the race between a Cancel and the step that runs the job: a frame is either
    seen before that step begins or is known to have come within it.
    """

    def __init__(self) -> None:
        self._frames: queue.SimpleQueue[tuple[int, ToWorker] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stepping: set[int] = set()

    def put(self, job: int, message: ToWorker) -> bool:
        """False, and nothing is kept, when `message` cancels a job that a blocking step is running."""
        with self._lock:
            if isinstance(message, Cancel) and job in self._stepping:
                return False
            self._frames.put((job, message))
            return True

    def close(self) -> None:
        """After the frames that are there, `take` raises EOFError."""
        self._frames.put(None)

    def take(self, *, wait: bool, seconds: float | None = None) -> tuple[int, ToWorker] | None:
        """The next frame; None when there is none and `wait` is false or has lasted so long. Raises EOFError at the
        end."""
        try:
            taken = self._frames.get(block=wait, timeout=seconds)
        except queue.Empty:
            return None
        if taken is None:
            raise EOFError
        return taken

    def begin_step(self, running: Iterable[int]) -> bool:
        """`running` are now inside a blocking step. False, and they are not, when a frame came first."""
        with self._lock:
            if not self._frames.empty():
                return False
            self._stepping.update(running)
            return True

    def leave_step(self, job: int) -> None:
        """`job` has ended; from here on its Cancel is late and harmless."""
        with self._lock:
            self._stepping.discard(job)

    def end_step(self) -> None:
        with self._lock:
            self._stepping.clear()


class _Desk(Generic[H]):
    """The jobs that the engine holds, and who gets which answer."""

    def __init__(self, engine: Engine[H], inbox: Inbox, send: Send, life_s: float) -> None:
        self._engine = engine
        self._inbox = inbox
        self._pipe = send
        self._life_s = life_s
        self._sent_at = time.monotonic()
        self._open: set[int] = set()
        self._handles: dict[int, H] = {}
        self._requests: dict[int, str] = {}

    def _name(self, *jobs: int) -> None:
        """From here on what is logged is about these jobs' requests."""
        REQUESTS.set(tuple(dict.fromkeys(filter(None, (self._requests.get(job) for job in jobs)))))

    def emit(self, job: int, event: Event) -> None:
        if job not in self._open:
            return
        if isinstance(event, TERMINAL):
            # Before the answer goes out: who has read it may cancel late, and that must not end the process.
            self._inbox.leave_step(job)
            self._open.discard(job)
            self._handles.pop(job, None)
            self._requests.pop(job, None)
            self._name(*self._open)
        self._send((job, event))

    def admit(self, job: int, message: Job) -> None:
        self._open.add(job)
        self._requests[job] = message.request
        self._name(job)
        try:
            handle = self._engine.admit(message, lambda event: self.emit(job, event))
        except Failure as refusal:
            self.emit(job, failed(refusal))
        except Exception as error:
            if is_shortage(error):
                raise
            _log.error("a bug: the job cannot be taken; its traceback follows")
            traceback.print_exc()
            self.emit(job, failed(_internal_error()))
        else:
            if job in self._open:
                self._handles[job] = handle
        self._name(*self._open)

    def cancel(self, job: int) -> None:
        if job in self._open:
            self._engine.cancel(self._handles[job])
            self.emit(job, failed(RequestCancelled("the request was cancelled")))

    def answer(self, job: int, heard: Heard) -> None:
        if job in self._open:
            self._engine.answer(self._handles[job], heard)

    def step(self) -> None:
        if not self._inbox.begin_step(self._handles if self._engine.blocking else ()):
            return
        try:
            self._engine.step()
        finally:
            self._inbox.end_step()
        if time.monotonic() - self._sent_at > self._life_s:
            self._send((0, Progress(done=0, total=0)))

    def _send(self, answer: tuple[int, FromWorker]) -> None:
        self._sent_at = time.monotonic()
        self._pipe(answer)

    def give_up(self) -> None:
        """Say, as job 0, that the process is about to end, so that it gets no more jobs."""
        self._send((0, failed(_internal_error())))


def run(
    engine: Engine[H],
    inbox: Inbox,
    send: Send,
    life_s: float = LIFE_S,
    rest: Callable[[], None] = give_back,
    rest_s: float = REST_S,
    stepped: Callable[[], None] = lambda: None,
) -> None:
    """Serve until the inbox ends. What `step`, `cancel` or `answer` raises ends everything.

    rest: done once whenever there has been no job for `rest_s` seconds. stepped: done after each step.
    """
    desk = _Desk(engine, inbox, send, life_s)
    rested = True
    try:
        while True:
            try:
                taken = inbox.take(wait=not engine.busy, seconds=None if rested else rest_s)
            except EOFError:
                return
            idle, rested = taken is None and not engine.busy, False
            match taken:
                case None if idle:
                    rest()
                    rested = True
                case None:
                    desk.step()
                    stepped()
                case (job, Cancel()):
                    desk.cancel(job)
                case (job, Heard() as heard):
                    desk.answer(job, heard)
                case (job, message):
                    desk.admit(job, message)
    except Exception:
        _log.error("a bug: the process ends, with all jobs in its hands; its traceback follows")
        desk.give_up()
        raise


def serve(fd: int, build: Build) -> NoReturn:
    """Be the worker behind the socket `fd`, to the end of the process.

    Exit status: 0 at the end of the stream and after a refusal to start, 1 after a bug or a garbled frame.
    """
    status = 1
    try:
        _serve(fd, build)
        status = 0
    except BaseException:
        with suppress(Exception):  # There may be no memory even for that.
            traceback.print_exc()
    with suppress(Exception):
        sys.stdout.flush()
    # Not sys.exit: the reader holds the pipe's lock, and interpreters abort over that on their way out.
    os._exit(status)


def is_shortage(error: Exception) -> bool:
    """Whether there was no memory: then nothing that the process holds can be relied on."""
    match error:
        case MemoryError() | OSError(errno=errno.ENOMEM):
            return True
        case ImportError():
            # numpy loads some of its parts when they are first used.
            return "failed to map segment" in str(error)
        case RuntimeError():
            # In MLX's words, and in those of a thread that has no room for its stack.
            return "nable to allocate" in str(error) or "start new thread" in str(error)
        case _:
            return False


def failed(failure: Failure) -> Failed:
    """`failure` as it crosses the pipe."""
    return Failed(kind=failure.kind, message=failure.message, param=failure.param, retry=failure.retry)


def _serve(fd: int, build: Build) -> None:
    link = socket.socket(fileno=fd)
    # A child of ours (a compiler, say) that kept the pipe open would hide our death from the service.
    link.set_inheritable(False)
    pipe = link.makefile("rb")
    first = Codec[Settings](Settings).read(pipe)
    if first is None:
        return
    outbox, inbox = Outbox(_writer(link)), Inbox()
    threading.Thread(target=_read, args=(pipe, inbox), name="reader", daemon=True).start()
    try:
        engine = build(first[1], lambda loading: outbox.say((0, loading)))
    except Failure as refusal:
        outbox.say((0, failed(refusal)))
        return
    outbox.say((0, engine.ready))
    run(engine, inbox, outbox.say, stepped=outbox.let_go)


def _read(pipe: BinaryIO, inbox: Inbox) -> None:
    """The reader thread. It never returns while the process lives."""
    codec = Codec[ToWorker](ToWorker)
    try:
        while (taken := codec.read(pipe)) is not None:
            if not inbox.put(*taken):
                os._exit(CANCELLED_EXIT)
    except FrameError:
        traceback.print_exc()
        os._exit(1)
    except ConnectionError:
        pass  # The service died with frames of ours unread: an end of stream like any other.
    except MemoryError:
        os._exit(1)  # Without this thread the process would be deaf.
    # Nothing is flushed: the main thread may be stuck in a print, with stdout's lock in its hands.
    os._exit(0)


def _writer(link: socket.socket) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        try:
            link.sendall(data)
        except ConnectionError:
            os._exit(0)  # The service is gone; the reader is about to see the same.

    return write


def _internal_error() -> InternalError:
    return InternalError("the worker met an error of its own; its log has the details")
