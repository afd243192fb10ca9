"""One place in a pool: a worker process, its successors, and the jobs it holds. Knows no queue and no other place.

    starting ── Ready ──> ready ── it ends ──> waiting (0.5 s, 1 s … 30 s) ──> starting
    starting ── third end in a row before Ready, or a refusal ──> broken, until someone starts the pool again
    ready ── it ends with CANCELLED_EXIT after a Cancel of ours ──> starting, at once
    ready ── no job for `idle_end` seconds, where that is set ──> idle, without a process ── a job ──> starting

A process is killed when it is silent for too long with a job in hand, or while it loads, and when it sends noise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from protocol.errors import Failure, InternalError, Kind, ShuttingDown, WorkerCrashed
from protocol.events import TERMINAL, Failed, FromWorker, Loading, Ready
from protocol.jobs import Cancel, Heard
from protocol.settings import Settings
from protocol.wire import CANCELLED_EXIT, FrameError
from service.process import Process, spawned
from service.ticket import Ticket, failure_of
from service.timing import Timing

RESERVED = 8
"""The part of a process's room that is kept for urgent jobs: one in so many, none of a small one."""

State = Literal["idle", "starting", "ready", "waiting", "broken", "stopped"]


@dataclass(frozen=True)
class _Refused:
    failure: Failure


@dataclass(frozen=True)
class _Crashed:
    why: str
    healthy_s: float | None
    """How long it was ready; None when it never was."""


@dataclass(frozen=True)
class _Cancelled:
    """It ended itself, because that is how its engine cancels."""


@dataclass(frozen=True)
class _Idle:
    """Nobody needed it any more."""


class Place:
    """Keeps one worker process alive and hands it jobs. `changed` is called when it may take one, or never will."""

    def __init__(
        self, name: str, settings: Settings, command: Sequence[str], timing: Timing, changed: Callable[[], None]
    ) -> None:
        self.name = name
        self.state: State = "starting"
        self.ready: Ready | None = None
        """What the process said that serves now."""
        self.loading: Loading | None = None
        self.failure: Failure | None = None
        """Why it is broken."""
        self.spawns = 0
        self._settings = settings
        self._command = command
        self._timing = timing
        self._changed = changed
        self._log = logging.getLogger(f"starling.{name}")
        self._process: Process | None = None
        self._held: dict[int, Ticket] = {}
        self._cancelled: set[int] = set()
        self._patience = asyncio.timeout(None)
        """Runs out when a process that has jobs is silent; only entered while one is ready."""
        self._quiet_since = 0.0
        self._wanted = asyncio.Event()
        """Set when a job waits for an idle place."""
        self._emptied = asyncio.Event()
        self._emptied.set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> int:
        return len(self._held)

    def room(self, ticket: Ticket) -> int:
        """How many more jobs like this one the process takes now. Some of its room is for urgent ones alone."""
        if self.state != "ready" or self.ready is None or self._patience.expired():
            return 0
        reserved = 0 if ticket.urgent else self.ready.capacity // RESERVED
        return self.ready.capacity - reserved - len(self._held)

    def wake(self) -> None:
        """There is a job for it: an idle place starts a process."""
        self._wanted.set()

    def give(self, ticket: Ticket) -> None:
        """Hand over a job. Raises FrameError when it is too large for the pipe. There must be room."""
        assert self._process is not None
        self._process.send(ticket.number, ticket.job)
        if not self._held:
            self._quiet_since = asyncio.get_running_loop().time()
        self._held[ticket.number] = ticket
        self._emptied.clear()
        self._set_patience()

    def cancel(self, ticket: Ticket) -> None:
        """Tell the process to forget a job. Its room is free again when the process has said so."""
        if ticket.number in self._held and ticket.number not in self._cancelled and self._process is not None:
            self._cancelled.add(ticket.number)
            self._process.send(ticket.number, Cancel())
            self._set_patience()

    def answer(self, ticket: Ticket, heard: Heard) -> None:
        """Pass on what the process asked to know about a job. Does nothing when it does not hold that job."""
        if ticket.number in self._held and self._process is not None:
            ticket.doubts -= 1
            self._quiet_since = asyncio.get_running_loop().time()
            self._process.send(ticket.number, heard)
            self._set_patience()

    def drop(self, failure: Failure) -> None:
        """Fail all jobs that the process holds."""
        for ticket in self._held.values():
            ticket.fail(failure)
        self._held.clear()
        self._cancelled.clear()
        self._emptied.set()

    async def emptied(self) -> None:
        """Until the process holds no job."""
        await self._emptied.wait()

    async def live(self) -> None:
        """Run one process after the other, until cancelled or broken."""
        try:
            await self._live()
        except Exception:
            # The last wall: a bug in here must not end the service, and this place serves no more.
            self._log.exception("the supervision of a worker failed")
            self._break(InternalError("the server cannot run this worker any more", retry=False))
        finally:
            self.drop(ShuttingDown("the server is shutting down"))

    async def _live(self) -> None:
        failed_starts = streak = 0
        timing = self._timing
        while True:
            await self._until_wanted()
            match await self._one_life():
                case _Idle():
                    self._log.info("ended: nobody has needed it for %.3g s", timing.idle_end)
                    self.spawns -= 1  # The next process is no restart.
                case _Cancelled():
                    self._log.info("ended itself to cancel its job")
                case _Refused(failure):
                    self._log.error("cannot serve: %s", failure.message)
                    self._break(failure)
                    return
                case _Crashed(why, healthy_s):
                    failed_starts = failed_starts + 1 if healthy_s is None else 0
                    streak = 1 if healthy_s is not None and healthy_s >= timing.healthy_after else streak + 1
                    if failed_starts >= timing.failed_starts:
                        self._log.error("%s; it failed to start %d times in a row: giving up", why, failed_starts)
                        self._break(_broken(self.name, failed_starts, why))
                        return
                    delay = min(timing.first_backoff * 2 ** min(streak - 1, 30), timing.longest_backoff)
                    self._log.warning("%s; starting it again in %.3g s", why, delay)
                    self.state = "waiting"
                    await asyncio.sleep(delay)
                case end:
                    assert_never(end)

    async def _until_wanted(self) -> None:
        """Where processes are on demand: until there is a job."""
        if self._timing.idle_end is not None:
            self.state = "idle"
            self._changed()
            await self._wanted.wait()
            self._wanted.clear()

    async def _one_life(self) -> _Refused | _Crashed | _Cancelled | _Idle:
        self.state, self.loading = "starting", None
        self.spawns += 1
        began: float | None = None
        loop = asyncio.get_running_loop()
        try:
            async with spawned(self._command, self._settings, self._log, self._timing.leave) as process:
                self._process = process
                try:
                    loaded = await self._load(process)
                    if isinstance(loaded, Failure):
                        return _Refused(loaded)
                    if isinstance(loaded, Ready):
                        began = loop.time()
                        why = await self._serve(process, loaded)
                        if isinstance(why, _Idle):
                            return why
                    else:
                        why = loaded
                    healthy_s = None if began is None else loop.time() - began
                    cancelling = bool(self._cancelled)
                finally:
                    self._lost()
        except OSError as error:
            # Too many files or processes: the machine's state, which passes, and so no failed start.
            return _Crashed(f"it could not be started: {error}", 0.0)
        if cancelling and process.status == CANCELLED_EXIT:
            return _Cancelled()
        return _Crashed(f"{why} ({_worded(process.status)})", healthy_s)

    async def _load(self, process: Process) -> Ready | Failure | str:
        """Until it is ready, refuses to be, or went wrong in the way that the string says."""
        limit = self._timing.start_stall
        try:
            while True:
                async with asyncio.timeout(limit):
                    frame = await process.read()
                match frame:
                    case (0, Loading() as loading):
                        self.loading = loading
                    case (0, Ready() as ready):
                        return ready
                    case (0, Failed() as failed) if failed.kind is not Kind.INTERNAL_ERROR:
                        return failure_of(failed)
                    case (0, Failed() as failed):
                        return f"it could not load: {failed.message}"
                    case None:
                        return "it ended before it was ready"
                    case _:
                        process.kill()
                        return "it answered before it was ready"
        except TimeoutError:
            process.kill()
            return f"it said nothing for {limit:.3g} s while it loaded"
        except FrameError as error:
            process.kill()
            return f"it sent noise: {error}"

    async def _serve(self, process: Process, ready: Ready) -> str | _Idle:
        """Until the process ends or has to be ended; the string says why."""
        try:
            async with asyncio.timeout(None) as self._patience:
                self._log.info("ready (process %d)", process.pid)
                self.state, self.ready, self.loading = "ready", ready, None
                self._quiet_since = asyncio.get_running_loop().time()
                self._set_patience()
                self._changed()
                while (frame := await process.read()) is not None:
                    self._receive(*frame)
            return "it ended"
        except TimeoutError:
            if not self._held:
                return _Idle()
            process.kill()
            silent = asyncio.get_running_loop().time() - self._quiet_since
            for ticket in self._held.values():
                ticket.fail(_ended(silent, jobs=len(self._held)))
            return f"it was silent for {silent:.3g} s with a job in hand"
        except FrameError as error:
            process.kill()
            return f"it sent noise: {error}"

    def _receive(self, number: int, event: FromWorker) -> None:
        self._quiet_since = asyncio.get_running_loop().time()
        if number == 0 and isinstance(event, Failed):
            self.state = "waiting"  # It is about to end: no more jobs for it.
        elif isinstance(event, Loading | Ready):
            self._log.warning("it said %r while it was ready", event)
        elif ticket := self._held.get(number):
            if isinstance(event, TERMINAL):
                del self._held[number]
                self._cancelled.discard(number)
            if not ticket.put(event):
                self.cancel(ticket)
        if not self._held:
            self._emptied.set()
        self._set_patience()
        self._changed()

    def _limit(self) -> float | None:
        """Seconds that the process may be silent now: what its most patient job allows. None: for ever."""
        if not self._held:
            return self._timing.idle_end
        limits = [
            min(ticket.limit, self._timing.cancel_stall) if number in self._cancelled else ticket.limit
            for number, ticket in self._held.items()
            if number in self._cancelled or not ticket.doubts
        ]
        return max(limits, default=None)

    def _set_patience(self) -> None:
        if not self._patience.expired():
            limit = self._limit()
            self._patience.reschedule(None if limit is None else self._quiet_since + limit)

    def _lost(self) -> None:
        """The process is of no use any more; it may still be on its way out."""
        self._process = None
        self.ready = self.loading = None
        if self.state == "ready":
            self.state = "waiting"
        self.drop(WorkerCrashed("the worker crashed while it worked on this request"))
        self._changed()

    def _break(self, failure: Failure) -> None:
        self.state, self.failure = "broken", failure
        self._changed()


def _broken(name: str, times: int, why: str) -> WorkerCrashed:
    return WorkerCrashed(
        f"the {name} worker failed to start {times} times in a row ({why}); the server's log has the details",
        retry=False,
    )


def _ended(silent: float, *, jobs: int) -> WorkerCrashed:
    """What the jobs of a process hear that was ended for its silence. A job that was alone would do it again."""
    return WorkerCrashed(
        f"the worker said nothing for {silent:.3g} s and was ended", retry=False if jobs == 1 else None
    )


def _worded(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {-status}"
    return f"exit status {status}"
