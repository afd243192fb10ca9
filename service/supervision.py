"""One place in a pool: a worker process, its successors, and the jobs it holds. Knows no queue and no other place.

    starting ── Ready ──> ready ── it ends ──> waiting (0.5 s, 1 s … 30 s) ──> starting
    starting ── third end in a row before Ready, or a refusal ──> broken, until someone starts the pool again
    ready ── it ends with CANCELLED_EXIT after a Cancel of ours ──> starting, at once
    ready ── no job for `idle_end` seconds, where that is set ──> idle, without a process ── a job ──> starting
    ready ── `sleep` ──> idle

With `on_demand` it begins idle, and is so after a crash.

A process is killed when it is silent for too long with a job in hand, or while it loads, and when it sends noise. The
jobs of one that died are suspects: they go back to the queue, and each is then alone on trial until it has said
something new. Whoever was on trial in a process that dies, or alone in it, gets a strike; too many make it the poison.
A process that was ended from outside gives half a strike, and is no failed start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Literal, assert_never

from protocol.errors import Failure, InternalError, Kind, ShuttingDown, WorkerCrashed
from protocol.events import TERMINAL, Event, Failed, FromWorker, Loading, Ready
from protocol.jobs import Cancel, Heard
from protocol.settings import Settings
from protocol.wire import CANCELLED_EXIT, FrameError
from service.endings import Cancelled, Crashed, Idle, Refused, broken, poison, worded
from service.patience import Patience
from service.process import Process, spawned
from service.ticket import Ticket, failure_of
from service.timing import Timing

RESERVED = 8
"""The part of a process's room that is kept for urgent jobs: one in so many, none of a small one."""

Learn = Callable[[Settings, Event], Settings]
"""What the next process is to be told, after what this one, which was told the settings, has said."""

State = Literal["idle", "starting", "ready", "waiting", "broken", "stopped"]


class Place:
    """Keeps one worker process alive and hands it jobs. `changed` is called when it may take one, or never will;
    `bereaved` with the jobs of a process that died, for another."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        command: Sequence[str],
        timing: Timing,
        changed: Callable[[], None],
        learn: Learn,
        bereaved: Callable[[Sequence[Ticket]], None],
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
        self._learn = learn
        self._bereaved = bereaved
        self._log = logging.getLogger(f"starling.{name}")
        self._process: Process | None = None
        self._held: dict[int, Ticket] = {}
        self._cancelled: set[int] = set()
        self._patience = Patience()
        """Runs out when a process that has jobs is silent; only entered while one is ready."""
        self._served = False
        """It has done a job to its end."""
        self._wanted = asyncio.Event()
        """Set when a job waits for an idle place."""
        self._woken = False
        """Whether the process that starts does so because of that."""
        self._retiring = False
        """Whether the process is to go, and to leave an idle place: it takes no more jobs."""
        self._gone = asyncio.Event()
        """Set while it is idle, and once it does not live any more."""
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
        if self.state != "ready" or self.ready is None or self._retiring or self._patience.ran_out:
            return 0
        if any(each.suspect for each in self._held.values()):
            return 0
        reserved = 0 if ticket.urgent else self.ready.capacity // RESERVED
        return self.ready.capacity - reserved - len(self._held)

    @property
    def able(self) -> bool:
        """Whether it serves: its process is ready, or on its way to sleep, asleep, or about to be ready again after."""
        return self.state in ("ready", "idle") or self._retiring or (self.state == "starting" and self._woken)

    def wake(self) -> None:
        """There is a job for it: an idle place starts a process."""
        self._wanted.set()

    def touch(self) -> None:
        """Its idle time begins anew."""
        if self.state == "ready" and not self._held:
            self._patience.begin()
            self._set_patience()

    def sleep(self) -> None:
        """End the process, which must hold no job, so that its memory is free. Those that come start another."""
        assert not self._held
        if self.state == "ready":
            self._retiring = True
            self._set_patience()

    async def gone(self) -> None:
        """Until there is no process, and none to come by itself."""
        await self._gone.wait()

    def give(self, ticket: Ticket) -> None:
        """Hand over a job. Raises FrameError when it is too large for the pipe. There must be room."""
        assert self._process is not None
        self._process.send(ticket.number, ticket.told.begin())
        if not self._held:
            self._patience.begin()
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
            self._patience.begin()
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
            self._gone.set()
            self.drop(ShuttingDown("the server is shutting down"))

    async def _live(self) -> None:
        failed_starts = streak = 0
        timing = self._timing
        asleep = timing.on_demand
        while True:
            if asleep:
                await self._until_wanted()
            end = await self._one_life()
            asleep, self._woken = timing.on_demand or self._retiring or isinstance(end, Idle), False
            match end:
                case Idle(quiet_s):
                    why = "it was told to" if quiet_s is None else f"nobody has needed it for {quiet_s:.3g} s"
                    self._log.info("ended: %s", why)
                    self.spawns -= 1  # The next process is no restart.
                case Cancelled():
                    self._log.info("ended itself to cancel its job")
                case Refused(failure):
                    self._log.error("cannot serve: %s", failure.message)
                    self._break(failure)
                    return
                case Crashed(why, healthy_s, outside):
                    failed_starts = failed_starts + (not outside) if healthy_s is None else 0
                    healthy = self._served or (healthy_s is not None and healthy_s >= timing.healthy_after)
                    streak = 1 if healthy else streak + 1
                    if failed_starts >= timing.failed_starts:
                        self._log.error("%s; it failed to start %d times in a row: giving up", why, failed_starts)
                        self._break(broken(self.name, failed_starts, why))
                        return
                    delay = min(timing.first_backoff * 2 ** min(streak - 1, 30), timing.longest_backoff)
                    self._log.warning("%s; starting it again in %.3g s", why, delay)
                    self.state = "waiting"
                    await asyncio.sleep(delay)
                case _:
                    assert_never(end)

    async def _until_wanted(self) -> None:
        """Until there is a job."""
        self.state, self._retiring = "idle", False
        self._gone.set()
        self._changed()
        await self._wanted.wait()
        self._wanted.clear()
        self._woken = True

    async def _one_life(self) -> Refused | Crashed | Cancelled | Idle:
        self.state, self.loading = "starting", None
        self._served = False
        self._gone.clear()
        self.spawns += 1
        began: float | None = None
        loop = asyncio.get_running_loop()
        try:
            async with spawned(self._command, self._settings, self._log, self._timing.leave) as process:
                self._process = process
                try:
                    loaded = await self._load(process)
                    if isinstance(loaded, Failure):
                        return Refused(loaded)
                    if isinstance(loaded, Ready):
                        began = loop.time()
                        why = await self._serve(process, loaded)
                        if isinstance(why, Idle):
                            return why
                    else:
                        why = loaded
                    healthy_s = None if began is None else loop.time() - began
                    cancelling = bool(self._cancelled)
                finally:
                    self._lost()
        except OSError as error:
            # Too many files or processes: the machine's state, which passes, and so no failed start.
            return Crashed(f"it could not be started: {error}", 0.0)
        if cancelling and process.status == CANCELLED_EXIT:
            self._bereave([])
            return Cancelled()
        outside = process.ended_from_outside
        self._bereave(self._blamed(), self._timing.strike_outside if outside else 1.0)
        return Crashed(f"{why} ({worded(process.status)})", healthy_s, outside)

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

    async def _serve(self, process: Process, ready: Ready) -> str | Idle:
        """Until the process ends or has to be ended; the string says why."""
        try:
            async with Patience() as self._patience:
                self._log.info("ready (process %d)", process.pid)
                self.state, self.ready, self.loading, self._retiring = "ready", ready, None, False
                self._patience.begin()
                self._set_patience()
                self._changed()
                while (frame := await process.read()) is not None:
                    self._receive(*frame)
            return "it ended"
        except TimeoutError:
            if not self._held:
                idle = Idle(None if self._retiring else self._timing.idle_end)
                self._retiring = True
                return idle
            process.kill()
            return f"it was silent for {self._patience.silence:.3g} s with a job in hand"
        except FrameError as error:
            process.kill()
            return f"it sent noise: {error}"

    def _receive(self, number: int, event: FromWorker) -> None:
        self._patience.begin()
        if number == 0 and isinstance(event, Failed):
            self.state = "waiting"  # It is about to end: no more jobs for it.
        elif isinstance(event, Loading | Ready):
            self._log.warning("it said %r while it was ready", event)
        elif ticket := self._held.get(number):
            self._settings = self._learn(self._settings, event)
            if isinstance(event, TERMINAL):
                self._served = self._served or not isinstance(event, Failed)
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
            return 0.0 if self._retiring else self._timing.idle_end
        limits = [
            min(ticket.limit, self._timing.cancel_stall) if number in self._cancelled else ticket.limit
            for number, ticket in self._held.items()
            if number in self._cancelled or not ticket.doubts
        ]
        return max(limits, default=None)

    def _set_patience(self) -> None:
        self._patience.allow(self._limit())

    def _lost(self) -> None:
        """The process is of no use any more; it may still be on its way out."""
        self._process = None
        self.ready = self.loading = None
        if self.state == "ready":
            self.state = "waiting"
        self._changed()

    def _blamed(self) -> list[Ticket]:
        """The job that the process has probably died of, if one stands out."""
        held = list(self._held.values())
        suspects = [each for each in held if each.suspect] or (held if len(held) == 1 else [])
        return [each for each in suspects if not each.told.further]

    def _bereave(self, blamed: Sequence[Ticket], strike: float = 1.0) -> None:
        """Give back what the process held, and give up the job that has been to blame too often."""
        held = [each for each in self._held.values() if not each.over]
        self._held.clear()
        self._cancelled.clear()
        self._emptied.set()
        for ticket in held:
            ticket.bereave(strike if ticket in blamed else 0.0)
            if not ticket.told.resumable:
                ticket.fail(WorkerCrashed("the worker crashed while it worked on this request"))
            elif ticket.strikes >= self._timing.strikes:
                self._log.error("%d processes in a row died of one job: it is given up", ticket.deaths)
                ticket.fail(poison(ticket.deaths))
        self._bereaved([each for each in held if not each.over])

    def _break(self, failure: Failure) -> None:
        self.state, self.failure, self._retiring = "broken", failure, False
        self._changed()
