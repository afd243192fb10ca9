"""One pool of worker processes: queue, route, bound. `run(job)` is its whole interface; restarts are supervision's."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

import msgspec

from protocol.errors import Failure, PayloadTooLarge, QueueFull, ShuttingDown, WorkerStarting
from protocol.events import TERMINAL, Delta, Doubt, Event, Failed, Loading, Ready, Segment
from protocol.jobs import Heard, Job
from protocol.lines import REQUESTS
from protocol.settings import Settings
from protocol.wire import FrameError
from service.process import rss_bytes
from service.supervision import Learn, Place, State
from service.ticket import Ticket, again, failure_of
from service.timing import TIMING, Timing
from service.told import told
from service.watch import UNWATCHED, Watch

COMMAND = (sys.executable, "-P", "-m", "workers")
"""-P: a folder called `workers` where the service happens to be started is none of ours."""

BEST_FIRST: tuple[State, ...] = ("ready", "starting", "waiting", "idle", "broken", "stopped")
"""States of a place, in the order in which they tell how its pool is."""


class ProcessStats(msgspec.Struct, frozen=True):
    """One line of `/stats`."""

    name: str
    pid: int | None
    state: State
    rss_bytes: int
    restarts: int
    queued: int
    """Jobs that wait in front of the whole pool: in its first line only, so that lines can be added up."""
    running: int


class Worker(Protocol):
    """What the rest of the service knows of a pool of worker processes (tests/fakes.py has another)."""

    name: str

    def run(self, job: Job) -> AsyncGenerator[Event, Heard | None]:
        """The job's events, the terminal one last; a Failed is raised as its Failure instead.

        A process that dies is no event: another goes on, and each event comes once. A Doubt is answered by
        `asend(Heard(…))`, perhaps twice; who reads on without an answer says that there is speech.
        Closing the generator early cancels the job. Raises QueueFull, WorkerStarting, WorkerCrashed,
        ModelNotConfigured, ShuttingDown and whatever the worker refuses.
        """

    @property
    def ready(self) -> Ready | None:
        """What the newest process said when it had loaded; None before the first one did."""

    @property
    def loading(self) -> Loading | None:
        """What a starting process is doing now."""

    @property
    def failure(self) -> Failure | None:
        """Why it cannot serve now and will not by itself: broken or unconfigured. None otherwise."""

    @property
    def state(self) -> State:
        """That of its process which is best off: ready, starting, waiting, idle, broken, stopped."""

    @property
    def able(self) -> bool:
        """Whether it serves: a process is ready, or one is there as soon as someone asks for it."""

    @property
    def busy(self) -> int:
        """Jobs that wait or run."""

    @property
    def used_at(self) -> float:
        """When a job last came or went, or someone was about to send one: on the event loop's clock."""

    async def unload(self) -> str | None:
        """End the processes, so that their memory is the system's again; the next job starts others.

        None once they have ended; else why they do not: it waits for no job, and none is hurt.
        """

    def touch(self, *, wake: bool = False) -> None:
        """Someone is about to need it: it is not idle, and with `wake` a process starts that was ended for idleness."""

    def stats(self) -> list[ProcessStats]: ...

    async def start(self) -> None:
        """Spawn the processes and return at once; loading goes on behind."""

    async def stop(self, grace: float) -> None:
        """Refuse new jobs, let running ones end within `grace` seconds, then end the processes. Idempotent."""


class Pool:
    """The Worker that runs processes. Usable within one event loop; `stop` ends what `start` began.

    `stall(job)` is the silence in seconds that a process may keep while it has that job. With `timing.on_demand` none
    runs before the first job, with `timing.idle_end` none for long after the last. `learn` makes the
    settings of a process's successor. `exact`: a job that is done again says the same, so that another process can
    go on with it where it was.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        *,
        processes: int,
        queue_limit: int,
        start_wait: float,
        stall: Callable[[Job], float],
        command: Sequence[str] = COMMAND,
        timing: Timing = TIMING,
        learn: Learn = lambda settings, _: settings,
        watch: Watch = UNWATCHED,
        exact: bool = True,
    ) -> None:
        self.name = name
        self._watch = watch
        self._queue_limit = queue_limit
        self._start_wait = start_wait
        self._stall = stall
        self._backlog = timing.backlog
        self._exact = exact
        names = [name] if processes == 1 else [f"{name}-{number}" for number in range(1, processes + 1)]
        self._places = [Place(each, settings, command, timing, self._changed, learn, self._return) for each in names]
        self._waiting: deque[Ticket] = deque()
        self._numbers = itertools.count(1)
        self._ready: Ready | None = None
        self._down_since: float | None = 0.0
        """Since when no process is ready, on the event loop's clock; None while one is."""
        self._used_at = 0.0
        self._stopping = False
        self._ending = asyncio.Lock()
        self._owner: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()

    async def run(self, job: Job) -> AsyncGenerator[Event, Heard | None]:
        ticket = self._enter(job)
        came, silent = ticket.came, True
        try:
            while True:
                event = await ticket.next()
                if isinstance(event, Failed):
                    raise failure_of(event)
                first = silent and isinstance(event, Segment | Delta)
                silent = silent and not first
                self._watch.told(self.name, job, event, time.monotonic() - came, first=first)
                lives = ticket.lives
                heard = yield event
                if isinstance(event, TERMINAL):
                    return
                if isinstance(event, Doubt) and ticket.lives == lives:
                    for place in self._places:
                        place.answer(ticket, heard or Heard(speech=True))
        finally:
            self._forget(ticket)

    @property
    def ready(self) -> Ready | None:
        return self._ready

    @property
    def loading(self) -> Loading | None:
        return next((place.loading for place in self._places if place.loading), None)

    @property
    def failure(self) -> Failure | None:
        if all(place.state == "broken" for place in self._places):
            return self._places[0].failure
        return None

    @property
    def state(self) -> State:
        return min((place.state for place in self._places), key=BEST_FIRST.index)

    @property
    def able(self) -> bool:
        return any(place.able for place in self._places)

    @property
    def busy(self) -> int:
        return len(self._waiting) + sum(place.running for place in self._places)

    @property
    def used_at(self) -> float:
        return self._used_at

    async def unload(self) -> str | None:
        if self.busy:
            return "a request is under way; try again later"
        if any(place.state in ("starting", "waiting") for place in self._places):
            return "it is starting; try again later"
        loaded = [place for place in self._places if place.state == "ready"]
        for place in loaded:
            place.sleep()
        for place in loaded:
            await place.gone()
        return None if loaded else "it is not loaded"

    def touch(self, *, wake: bool = False) -> None:
        self._used_at = asyncio.get_running_loop().time()
        for place in self._places:
            place.touch()
        if wake and self.state == "idle":
            self._places[0].wake()

    def stats(self) -> list[ProcessStats]:
        queued = itertools.chain([len(self._waiting)], itertools.repeat(0))
        return [
            ProcessStats(
                name=place.name,
                pid=place.pid,
                state=place.state,
                rss_bytes=rss_bytes(place.pid) if place.pid else 0,
                restarts=max(0, place.spawns - 1),
                queued=waiting,
                running=place.running,
            )
            for place, waiting in zip(self._places, queued, strict=False)
        ]

    async def start(self) -> None:
        """Spawn what does not run. Again, later: broken processes get another three chances."""
        self._stopping = False
        if self.failure and self._owner:
            await asyncio.wait([self._owner])
        if self._owner is None or self._owner.done():
            self._down_since = asyncio.get_running_loop().time()
            begun = asyncio.Event()
            self._owner = asyncio.create_task(self._own(begun), name=f"pool {self.name}")
            await begun.wait()
        else:
            self._revive("broken")

    async def stop(self, grace: float) -> None:
        self._stopping = True
        while self._waiting:
            self._waiting.popleft().fail(ShuttingDown("the server is shutting down"))
        async with self._ending:
            try:
                async with asyncio.timeout(grace):
                    for place in self._places:
                        await place.emptied()
            except TimeoutError:
                pass
            finally:
                for place in self._places:
                    place.drop(ShuttingDown("the server is shutting down"))
                if self._owner is not None:
                    self._owner.cancel()
                    await asyncio.wait([self._owner])
                for place in self._places:
                    place.state = "stopped"

    async def _own(self, begun: asyncio.Event) -> None:
        """Owns the processes' tasks. It ends when it is cancelled, or when all of them are broken."""
        async with asyncio.TaskGroup() as self._group:
            self._revive("starting", "broken", "stopped")
            begun.set()

    def _revive(self, *states: State) -> None:
        for place in self._places:
            if place.state in states:
                place.state, place.failure = "starting", None
                self._group.create_task(place.live(), name=f"worker {place.name}")

    def _enter(self, job: Job) -> Ticket:
        if self._stopping:
            raise ShuttingDown("the server is shutting down")
        if failure := self.failure:
            raise again(failure)
        requests = REQUESTS.get()
        if requests and not job.request:
            job = msgspec.structs.replace(job, request=requests[0])
        ticket = Ticket(next(self._numbers), job, told(job, exact=self._exact), self._stall(job), self._backlog)
        self._used_at = asyncio.get_running_loop().time()
        self._waiting.append(ticket)
        self._dispatch()
        # Each kind has a queue of its own: neither files nor dictations can keep the others out.
        mine = [each for each in self._waiting if each.urgent == ticket.urgent and not each.lives]
        if ticket in mine and len(mine) > self._queue_limit:
            self._waiting.remove(ticket)
            raise QueueFull(f"{self._queue_limit} requests are waiting for this model already; try again later")
        self._expect_start(ticket, asyncio.get_running_loop().time())
        return ticket

    def _forget(self, ticket: Ticket) -> None:
        """The reader is gone: a job that waits never runs, one that runs is cancelled, one that ended is no more."""
        ticket.leave()
        self._used_at = asyncio.get_running_loop().time()
        if ticket.overdue:
            ticket.overdue.cancel()
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        for place in self._places:
            place.cancel(ticket)

    def _return(self, bereaved: Sequence[Ticket]) -> None:
        """Their process has died: they wait for another, before all that have not begun."""
        for ticket in bereaved:
            if self._stopping:
                ticket.fail(ShuttingDown("the server is shutting down"))
            else:
                self._waiting.append(ticket)
                self._expect_start(ticket, asyncio.get_running_loop().time())
        self._changed()

    def _changed(self) -> None:
        """A process can take a job, has gone, or is broken."""
        ready = [place for place in self._places if place.ready]
        if ready:
            self._ready, self._down_since = ready[-1].ready, None
        elif self._down_since is None:
            self._down_since = asyncio.get_running_loop().time()
        if failure := self.failure:
            while self._waiting:
                self._waiting.popleft().fail(failure)
        self._dispatch()

    def _dispatch(self) -> None:
        """Hand waiting jobs to the least busy process that has room."""
        while self._waiting:
            ticket = self._next()
            place = min(self._places, key=lambda place: (place.room(ticket) <= 0, place.running))
            if place.room(ticket) <= 0:
                if asleep := next((place for place in self._places if place.state == "idle"), None):
                    asleep.wake()
                return
            self._waiting.remove(ticket)
            if not ticket.lives:
                self._watch.given(self.name, ticket.job, time.monotonic() - ticket.came)
            try:
                place.give(ticket)
            except FrameError as error:
                ticket.fail(PayloadTooLarge(f"the request is too large for the worker: {error}"))

    def _next(self) -> Ticket:
        """The job whose turn it is: first what someone waits for while speaking, or what a running job waits for; of
        these, and of the others, first what a process has died with."""
        return min(self._waiting, key=lambda each: (not each.urgent, not each.lives, each.number))

    def _expect_start(self, ticket: Ticket, entered: float) -> None:
        """Fail `ticket` with WorkerStarting once it has waited while no process was ready for `start_wait`."""
        if ticket not in self._waiting:
            return
        loop = asyncio.get_running_loop()
        down_since = loop.time() if self._down_since is None else self._down_since
        deadline = max(entered, down_since) + self._start_wait
        if loop.time() < deadline:
            ticket.overdue = loop.call_at(deadline, self._expect_start, ticket, entered)
        else:
            self._waiting.remove(ticket)
            ticket.fail(WorkerStarting(f"no {self.name} worker was ready within {self._start_wait:.3g} s"))
